"""The CPU backend: one fused kernel, compiled for the machine and the window at hand."""

import ctypes
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from sepconv import kernels, settings
from sepconv.backends import results
from sepconv.backends.eager import EagerBackend
from sepconv.backends.threads import Threads, threads
from sepconv.backends.workspace import workspace
from sepconv.device import Device
from sepconv.errors import CompilerError, StoreError
from sepconv.jit import compilers, cxx
from sepconv.problem import CHANNELS_LAST, Activation, Operands, Options, Problem, dense_strides
from sepconv.reference import ACTIVATIONS
from sepconv.tuning import model, records
from sepconv.tuning.candidates import candidates
from sepconv.tuning.config import VECTORS, CpuConfig, units

ELEMENTS = {torch.float32: "float", torch.bfloat16: "sepconv::BFloat16", torch.float16: "sepconv::Float16"}
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mprefer-vector-width=512")
FLAGS: dict[str, tuple[str, ...]] = {
    "amx": (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    "avx512_bf16": (*_AVX512, "-mavx512bf16"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "generic": (),
}
WITHOUT_TERMS = "avx512"  # what computes where an operand does not split into terms, on a machine that splits them
COMMON_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-pthread")
SOURCES = Path(kernels.__file__).parent / "cpu"
# The windows and the activations that are compiled in; any other is known to the kernel at run time only. Each of these
# gains, and every kernel costs a second or two of compiling when it is needed first.
WINDOWS = {(1, 3), (1, 5), (1, 7), (1, 9), (3, 3), (5, 5)}
COMPILED_ACTIVATIONS = {"identity", "relu", "relu6"}


class CpuBackend:
    """The fused kernel for CPUs. Gradients are PyTorch's own, with the intermediate recomputed."""

    name = "cpu"
    kind: str | None = "cpu"

    def unavailable(self, device: Device) -> list[str]:
        if device.kind != "cpu":
            return [f"runs on CPUs, not on {device.kind}"]
        try:
            compilers.find_compiler()
        except CompilerError as error:
            return [str(error)]
        return []

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        found = []
        if problem.direction != "forward":
            found.append("computes the forward pass only")
        if problem.rank > 2:
            found.append(f"computes 1-D and 2-D, not {problem.rank}-D")
        if problem.dtype not in ELEMENTS:
            found.append(f"computes float32, float16 and bfloat16, not {str(problem.dtype).removeprefix('torch.')}")
        if not found and not candidates(problem, device):
            found.append("one row of the output takes more scratch memory than a thread may have")
        if not found:
            found += [_FAILURES[wanted] for wanted in _needed(problem, device.isa) if wanted in _FAILURES]
        return found

    def slower(self, problem: Problem, device: Device) -> list[str]:
        """What was measured goes before what the model expects."""
        record = records.lookup(problem, device)
        reason = record.eager_won() if record else model.eager_is_faster(problem, device)
        return [reason] if reason else []

    def is_ready(self, problem: Problem, device: Device) -> bool:
        return cxx.is_built(build(problem, device.isa))

    def configure(self, problem: Problem, device: Device) -> tuple[CpuConfig, str]:
        record = records.lookup(problem, device)
        return (record.config, "record") if record else (model.best(problem, device), "model")

    def forget(self) -> None:
        _kernel.cache_clear()
        _FAILURES.clear()
        results.forget()

    def forward(self, problem: Problem, config: object, operands: Operands, options: Options, device: Device) -> Tensor:
        assert isinstance(config, CpuConfig)
        if not math.prod(problem.output_shape):
            return results.empty(operands.x, problem.output_shape, problem.output_strides)
        return _compute(_kernel(problem, config, device), problem, config, operands, device)

    def direct_call(
        self, problem: Problem, config: object, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        assert isinstance(config, CpuConfig)
        if not math.prod(problem.output_shape) or build(problem, device.isa) in _FAILURES:
            return None
        if not _is_laid_out(problem, like):
            return None

        def without_terms(operands: Operands, y: Tensor) -> Tensor | None:
            try:
                _without_terms(problem, config, device).run(operands, y)
            except (CompilerError, StoreError):  # the whole way says so
                return None
            return y

        return _kernel(problem, config, device).on_operands_like(like, problem, without_terms)

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        return EagerBackend().gradients(problem, grad, operands, options, wanted)


def _compute(kernel: "Kernel", problem: Problem, config: CpuConfig, operands: Operands, device: Device) -> Tensor:
    """y by this kernel, or by the one without terms where an operand does not split into them."""
    y = results.empty(operands.x, problem.output_shape, problem.output_strides)
    laid_out = _laid_out(problem, operands)
    if not kernel.run(laid_out, y):
        _without_terms(problem, config, device).run(laid_out, y)
    return y


def _without_terms(problem: Problem, config: CpuConfig, device: Device) -> "Kernel":
    return _kernel(problem, config, replace(device, isa=WITHOUT_TERMS))


def build(problem: Problem, isa: str) -> cxx.Build:
    """What is compiled for a problem: all problems with the same window, dtype, layout and activations share it."""
    unit = units(problem, isa)
    if unit == VECTORS and isa in ("amx", "avx512_bf16"):  # what they add is of no use here: one kernel for all three
        isa = WITHOUT_TERMS
    kernel, stride, dilation = (_two_axes(axes) for axes in (problem.kernel_size, problem.stride, problem.dilation))
    if kernel not in WINDOWS or max(stride) > 2 or max(dilation) > 1:
        kernel, stride = (0, 0), (1, 1)
    defines: dict[str, str | int] = {
        "ELEMENT": ELEMENTS[problem.dtype],
        "UNITS": unit.name,
        "TERMS": unit.terms,
        "CHANNELS_LAST": int(problem.layout == CHANNELS_LAST),
        "MULTIPLIER": int(problem.depth_multiplier == 1),
        "KERNEL_H": kernel[0],
        "KERNEL_W": kernel[1],
        "STRIDE_H": stride[0],
        "STRIDE_W": stride[1],
        "DEPTHWISE_ACTIVATION": _compiled(problem.epilogue.depthwise_activation),
        "POINTWISE_ACTIVATION": _compiled(problem.epilogue.pointwise_activation),
    }
    named = tuple((f"SEPCONV_{name}", value) for name, value in defines.items())
    return cxx.Build("forward", SOURCES / "forward.cpp", COMMON_FLAGS + FLAGS[isa], named, isa)


def _needed(problem: Problem, isa: str) -> list[cxx.Build]:
    """What a call may need: where operands are split into terms, the kernel for those that do not split too."""
    isas = [isa] if units(problem, isa).terms == 1 else [isa, WITHOUT_TERMS]
    return [build(problem, each) for each in isas]


def _compiled(activation: Activation) -> str:
    return activation.name if activation.name in COMPILED_ACTIVATIONS else "any"


class Activate(ctypes.Structure):
    """An activation with its number; mirrors `Activate` in kernels/cpu/activation.h."""

    _fields_ = (("which", ctypes.c_int), ("value", ctypes.c_float))

    @classmethod
    def of(cls, activation: Activation) -> "Activate":
        return cls(ACTIVATIONS.index(activation.name), activation.value)


class Call(ctypes.Structure):
    """One call of the kernel; mirrors `Call` in kernels/cpu/call.h. Strides are in elements."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*Operands._fields, "y", "workspace")),
        *(
            (name, ctypes.c_long)
            for name in (
                *("x_stride_n", "x_stride_c", "x_stride_h", "x_stride_w"),
                *("batch", "channels", "multiplier", "outputs", "in_h", "in_w", "out_h", "out_w"),
                *("kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "padding_h", "padding_w"),
                *("tile_rows", "tile_columns", "shared", "huge_pages"),
            )
        ),
        ("threads", Threads),
        ("depthwise_activation", Activate),
        ("pointwise_activation", Activate),
    )


_ADDRESSES = struct.Struct("8P")  # the first fields of a call


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel with everything of its call that is no tensor."""

    library: ctypes.CDLL
    template: bytes

    def run(self, operands: Operands, y: Tensor) -> bool:
        """Compute y; operands are laid out as the kernel reads them.

        False where y is not right: an operand does not split into terms, as infinities do not (kernels/cpu/terms.h).
        """
        call = self._call(operands.x)
        scratch = workspace(self.library.sepconv_workspace(ctypes.byref(call)))
        _ADDRESSES.pack_into(call, 0, *operands.addresses(), y.data_ptr(), scratch.address)
        return bool(self.library.sepconv_forward(ctypes.byref(call)))

    def on_operands_like(
        self, like: Operands, problem: Problem, otherwise: Callable[[Operands, Tensor], Tensor | None]
    ) -> Callable[[Operands], Tensor | None]:
        """The kernel as a function of operands with these strides, laid out as it reads them. Where y is not right, it is what
        `otherwise` makes of it.

        All of its call but the addresses is there. Behind a kernel that filled the caches the way to the next one is slow,
        and each step of it counts: 115 us became 85 (one core of a Xeon, 2026-11-30).
        """
        call = self._call(like.x)
        rest, size = bytes(call)[_ADDRESSES.size :], self.library.sepconv_workspace(ctypes.byref(call))
        pack, forward = _ADDRESSES.pack, self.library.sepconv_forward
        shape, strides = problem.output_shape, problem.output_strides
        small = math.prod(shape) * problem.dtype.itemsize < results.SMALLEST

        def compute(operands: Operands) -> Tensor | None:
            x = operands.x
            y = x.new_empty_strided(shape, strides) if small else results.empty(x, shape, strides)
            scratch = workspace(size)
            addresses = pack(*operands.addresses(), y.data_ptr(), scratch.address)
            return y if forward(addresses + rest) else otherwise(operands, y)

        return compute

    def _call(self, x: Tensor) -> Call:
        """A call without addresses."""
        call = Call.from_buffer_copy(self.template)
        n, c, *h, w = x.stride()
        call.x_stride_n, call.x_stride_c, call.x_stride_h, call.x_stride_w = n, c, h[0] if h else 0, w
        call.threads = threads()
        return call


@lru_cache(maxsize=4096)
def _kernel(problem: Problem, config: CpuConfig, device: Device) -> Kernel:
    """The kernel for a problem, compiled where it was not before. Raises CompilerError or StoreError, and remembers why."""
    wanted = build(problem, device.isa)
    try:
        library = cxx.library(wanted)
    except (CompilerError, StoreError) as error:
        _FAILURES[wanted] = str(error)
        raise
    library.sepconv_workspace.restype = ctypes.c_long
    library.sepconv_forward.restype = ctypes.c_int
    axes = [problem.in_size, problem.out_size, problem.kernel_size, problem.stride, problem.dilation]
    in_size, out_size, kernel, stride, dilation = map(_two_axes, axes)
    padding = (0, *(before for before, _ in problem.padding))[-2:]
    call = Call()
    call.batch, call.channels, call.outputs = problem.batch, problem.in_channels, problem.out_channels
    call.multiplier = problem.depth_multiplier
    call.in_h, call.in_w = in_size
    call.out_h, call.out_w = out_size
    call.kernel_h, call.kernel_w = kernel
    call.stride_h, call.stride_w = stride
    call.dilation_h, call.dilation_w = dilation
    call.padding_h, call.padding_w = padding
    call.tile_rows, call.tile_columns, call.shared = config.tile_rows, config.tile_columns, config.shared
    call.huge_pages = settings.HUGE_PAGES.read()
    call.depthwise_activation = Activate.of(problem.epilogue.depthwise_activation)
    call.pointwise_activation = Activate.of(problem.epilogue.pointwise_activation)
    return Kernel(library, bytes(call))


def _two_axes(axes: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns; in 1-D there is one row."""
    return (1, axes[0]) if len(axes) == 1 else (axes[0], axes[1])


def _laid_out(problem: Problem, operands: Operands) -> Operands:
    """The operands as the kernel reads them: weights dense, the residual as y, and in channels_last neighbouring channels of
    x as neighbours in memory. What is so already is not copied."""
    if _is_laid_out(problem, operands):
        return operands
    x = operands.x
    if not _x_is_laid_out(problem, x):
        x = x.new_empty_strided(x.shape, dense_strides(x.shape, CHANNELS_LAST)).copy_(x)
    return operands.with_dense_weights()._replace(x=x, residual=operands.residual_with_strides(problem.output_strides))


def _is_laid_out(problem: Problem, operands: Operands) -> bool:
    x, *weights, residual = operands
    return (
        _x_is_laid_out(problem, x)
        and all(t is None or t.is_contiguous() for t in weights)
        and (residual is None or residual.stride() == problem.output_strides)
    )


def _x_is_laid_out(problem: Problem, x: Tensor) -> bool:
    return problem.layout != CHANNELS_LAST or x.stride(1) == 1 or x.shape[1] <= 1


_FAILURES: dict[cxx.Build, str] = {}
