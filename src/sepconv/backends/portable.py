"""The portable backend for GPUs: one fused kernel for any problem of one or two axes, from compute capability 8.0 on."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from sepconv.backends import cuda_driver
from sepconv.backends.cuda import ELEMENTS, SOURCES, macros
from sepconv.backends.eager import EagerBackend
from sepconv.device import Device
from sepconv.errors import CompilerError, StoreError
from sepconv.jit import nvrtc
from sepconv.problem import Operands, Options, Problem, dense_strides
from sepconv.tuning import portable
from sepconv.tuning.hopper import terms
from sepconv.tuning.portable import PortableConfig

OLDEST = (8, 0)
THREADS = 256  # of a block
WEIGHT_BYTES = 16  # that are loaded or copied at once


class PortableBackend:
    """The fused kernel without Hopper's copy engine and matrix products. Gradients are PyTorch's own."""

    name = "portable"
    kind: str | None = "cuda"

    def unavailable(self, device: Device) -> list[str]:
        return [] if device.kind == "cuda" else [f"runs on CUDA devices, not on {device.kind}"]

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        if (device.capability or (0, 0)) < OLDEST:
            return ["needs compute capability 8.0 or later"]
        limits = [
            (problem.direction == "forward", "computes the forward pass only"),
            (problem.rank <= 2, f"computes 1-D and 2-D, not {problem.rank}-D"),
            (
                problem.dtype in ELEMENTS,
                f"computes float32, float16 and bfloat16, not {str(problem.dtype).removeprefix('torch.')}",
            ),
            (math.prod(problem.out_size) < 2**31, "counts the pixels of an image in 32 bits"),
        ]
        if found := [reason for holds, reason in limits if not holds]:
            return found
        failure = _FAILURES.get(_wanted(problem, device)) or nvrtc.missing()
        return [failure] if failure else []

    def slower(self, problem: Problem, device: Device) -> list[str]:
        return ["has not been measured beside PyTorch's kernels yet: it runs where SEPCONV_BACKEND names it"]

    def is_ready(self, problem: Problem, device: Device) -> bool:
        return nvrtc.is_built(_wanted(problem, device))

    def configure(self, problem: Problem, device: Device) -> tuple[PortableConfig, str]:
        return portable.configuration(problem, device), "model"

    def forget(self) -> None:
        _kernel.cache_clear()
        _FAILURES.clear()

    def forward(self, problem: Problem, config: object, operands: Operands, options: Options, device: Device) -> Tensor:
        assert isinstance(config, PortableConfig)
        if not math.prod(problem.output_shape):
            return operands.x.new_empty_strided(problem.output_shape, problem.output_strides)
        laid_out = _laid_out(problem, operands)
        y = _on_operands_like(laid_out, problem, config, device)(laid_out)
        assert y is not None
        return y

    def direct_call(
        self, problem: Problem, config: object, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        assert isinstance(config, PortableConfig)
        laid_out = _laid_out(problem, like)
        as_they_are = all(one is other for one, other in zip(like, laid_out, strict=True))
        if not math.prod(problem.output_shape) or build(problem, config, device) in _FAILURES or not as_they_are:
            return None
        return _on_operands_like(like, problem, config, device)

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        return EagerBackend().gradients(problem, grad, operands, options, wanted)


def _on_operands_like(
    like: Operands, problem: Problem, config: PortableConfig, device: Device
) -> Callable[[Operands], Tensor | None]:
    assert device.index is not None
    with torch.cuda.device(device.index):
        return _kernel(problem, config, device).on_operands_like(like, problem, device.index)


def _wanted(problem: Problem, device: Device) -> nvrtc.Build:
    return build(problem, portable.configuration(problem, device), device)


def build(problem: Problem, config: PortableConfig, device: Device) -> nvrtc.Build:
    """What is compiled for a problem; the batch, and the strides of x, are known at run time only."""
    assert device.capability is not None
    major, minor = device.capability
    how = {
        "TILE": config.tile,
        "TILE_COLUMNS": config.columns,
        "TILE_IMAGES": portable.images_of_tile(problem, config),
        "RUN": config.run,
        "BLOCK": config.block,
        "STAGES": config.stages,
        "PIECE_BYTES": portable.piece_bytes(problem, config.columns),
        "PART_CHUNKS": portable.PART_CHUNKS[terms(problem)],
        "RESIDENT": int(config.resident),
        "BLOCKS_OF_SM": config.blocks_of_sm,
    }
    return nvrtc.Build("portable", SOURCES / "portable.cu", macros(problem, how), f"sm_{major}{minor}")


class Call(ctypes.Structure):
    """The parameter of the kernel; mirrors `Call` in kernels/cuda/portable/problem.cuh. Strides are in elements."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*Operands._fields, "y")),
        ("x_strides", ctypes.c_longlong * 4),
        ("rows", ctypes.c_longlong),
        ("x_in_pieces", ctypes.c_int),
        ("depthwise_value", ctypes.c_float),
        ("pointwise_value", ctypes.c_float),
    )


class _Launch(cuda_driver.Launch):
    """The kernel with the addresses of its last call. An x on multiples of `x_bytes` comes in pieces (0: none does)."""

    def __init__(self, function: Any, grid: tuple[int, int], shared: int, call: Call, x_bytes: int) -> None:
        super().__init__(function, grid, THREADS, shared, bytes(call))
        self._call, self._x_bytes = Call.from_address(self.address), x_bytes
        self._places = (ctypes.c_uint64 * len(self.addresses)).from_address(self.address)

    def fill(self, addresses: tuple[int, ...]) -> bool:
        if addresses[Operands._fields.index("pointwise_weight")] % WEIGHT_BYTES:
            return False
        self._call.x_in_pieces = bool(self._x_bytes) and addresses[0] % self._x_bytes == 0
        self._places[:] = list(addresses)
        return True


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel with everything of its call that is no tensor."""

    function: Any
    grid: tuple[int, int]
    shared: int
    rows: int  # of y, of all images together
    values: tuple[float, float]
    piece_bytes: int

    def on_operands_like(self, like: Operands, problem: Problem, device: int) -> Callable[[Operands], Tensor | None]:
        """The kernel as a function of operands with these strides; weights are dense, the residual has the strides of y."""
        n, c, *h, w = like.x.stride()
        strides = (n, c, h[0] if h else 0, w)
        x_bytes = self.piece_bytes if _is_dense(like.x, problem.layout) else 0
        call = Call(*[None] * 7, strides, self.rows, False, *self.values)
        make = partial(_Launch, self.function, self.grid, self.shared, call, x_bytes)
        return cuda_driver.call_of(make, device, problem.output_shape, problem.output_strides, problem.dtype)


@lru_cache(maxsize=4096)
def _kernel(problem: Problem, config: PortableConfig, device: Device) -> Kernel:
    """The kernel for a problem, compiled where it was not before. Raises CompilerError or StoreError, and remembers why."""
    wanted = build(problem, config, device)
    try:
        code = nvrtc.cubin(wanted)
    except (CompilerError, StoreError) as error:
        _FAILURES[wanted] = str(error)
        raise
    shared = portable.shared_bytes(problem, config)
    rows = problem.batch * math.prod(problem.out_size[:-1])
    grid = (portable.tiles(problem, config), config.splits)
    epilogue = problem.epilogue
    values = (epilogue.depthwise_activation.value, epilogue.pointwise_activation.value)
    function = cuda_driver.load(code, "sepconv_portable", shared)
    return Kernel(function, grid, shared, rows, values, portable.piece_bytes(problem, config.columns))


def _is_dense(x: Tensor, layout: str) -> bool:
    """Whether x is dense in this order of its axes; the stride of an axis of size 1 does not count."""
    dense = zip(x.shape, x.stride(), dense_strides(x.shape, layout), strict=True)
    return all(stride == step for size, stride, step in dense if size > 1)


def _laid_out(problem: Problem, operands: Operands) -> Operands:
    """The operands as the kernel reads them: weights dense, the pointwise ones on whole vectors, the residual as y.

    What is so already is not copied, and x never.
    """
    found = operands.with_dense_weights()._replace(residual=operands.residual_with_strides(problem.output_strides))
    weight = found.pointwise_weight
    return found._replace(pointwise_weight=weight.clone()) if weight.data_ptr() % WEIGHT_BYTES else found


_FAILURES: dict[nvrtc.Build, str] = {}
