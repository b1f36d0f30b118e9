"""The CUDA backend: the fused kernel for Hopper, compiled for the problem at hand."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepconv import kernels
from sepconv.backends import cuda_driver
from sepconv.backends.cuda_driver import ROW_BYTES, SWIZZLE_128, TensorMap
from sepconv.backends.eager import EagerBackend
from sepconv.device import Device
from sepconv.errors import CompilerError, StoreError
from sepconv.jit import nvrtc
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Operands, Options, Problem
from sepconv.tuning import hopper, hopper_candidates, nearest, patches
from sepconv.tuning.hopper import CudaConfig

SOURCES = Path(kernels.__file__).parent / "cuda"
ELEMENTS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
HOPPER = (9, 0)
THREADS = 640  # of a block
LEAST_OF_TILE = 3  # a row of output pixels fills a third of a tile or more


class CudaBackend:
    """The fused kernel for GPUs. Gradients are PyTorch's own, with the intermediate recomputed."""

    name = "cuda"
    kind: str | None = "cuda"

    def unavailable(self, device: Device) -> list[str]:
        if device.kind != "cuda":
            return [f"runs on CUDA devices, not on {device.kind}"]
        missing = nvrtc.missing() if device.capability == HOPPER else None  # elsewhere it would be of no use
        return [missing] if missing else []

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        if device.capability != HOPPER:
            return ["runs on Hopper (compute capability 9.0) only"]
        if found := [reason for holds, reason in _limits(problem) if not holds]:
            return found
        config = hopper_candidates.configuration(problem, device.units)
        if config is None:
            sizes = f"{problem.in_channels} -> {problem.out_channels} channels"
            return [f"{sizes} with this window do not fit in shared memory and registers"]
        failure = _FAILURES.get(build(problem, config))
        return [failure] if failure else []

    def slower(self, problem: Problem, device: Device) -> list[str]:
        known = nearest.nearest(problem)
        if known is not None:
            if known.ratio <= 1:
                return []
            return [
                f"takes {known.ratio:.2f} times as long as PyTorch's kernels on the nearest measured problem: {known.sizes}"
            ]
        config = self.configure(problem, device)[0]
        tiles = math.prod(hopper.tiles(problem, config))
        if tiles < device.units:
            # In float32, 256 to 2048 channels of 19 to 128 tokens took half of the time of PyTorch's kernels (H200, 2026-12-01).
            in_float32 = problem.dtype is torch.float32 and problem.layout == CHANNELS_FIRST
            few = f"{tiles} tiles of {config.tile} pixels are too few for {device.units} SMs"
            return [] if in_float32 else [few]
        if problem.out_size[-1] * LEAST_OF_TILE < config.tile:
            return [f"rows of {problem.out_size[-1]} pixels fill less than a third of tiles of {config.tile}"]
        if hopper.has_patches(problem, config) or problem.epilogue.residual:
            return ["nothing like it has been measured beside PyTorch's kernels yet"]
        return []

    def is_ready(self, problem: Problem, device: Device) -> bool:
        return nvrtc.is_built(build(problem, self.configure(problem, device)[0]))

    def configure(self, problem: Problem, device: Device) -> tuple[CudaConfig, str]:
        config = hopper_candidates.configuration(problem, device.units)
        assert config is not None
        return config, "model"

    def forget(self) -> None:
        _kernel.cache_clear()
        _FAILURES.clear()

    def forward(self, problem: Problem, config: object, operands: Operands, options: Options, device: Device) -> Tensor:
        assert isinstance(config, CudaConfig)
        if not math.prod(problem.output_shape):
            return operands.x.new_empty_strided(problem.output_shape, problem.output_strides)
        return _kernel(problem, config, operands.x.device.index).compute(operands)

    def direct_call(
        self, problem: Problem, config: object, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        assert isinstance(config, CudaConfig)
        assert device.index is not None
        if not math.prod(problem.output_shape) or build(problem, config) in _FAILURES:
            return None
        x, *others, residual = like
        dense = x.is_contiguous(memory_format=_memory_format(problem.layout))
        dense = dense and (residual is None or residual.stride() == problem.output_strides)
        if not (dense and all(t is None or t.is_contiguous() for t in others)):
            return None
        return _kernel(problem, config, device.index).compute_dense

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        return EagerBackend().gradients(problem, grad, operands, options, wanted)


def _limits(problem: Problem) -> list[tuple[bool, str]]:
    """What the kernel asks of a problem: whether it holds, and the reason where it does not."""
    gathers, most_read = hopper.can_gather(problem), hopper.most_read(problem)
    return [
        (problem.direction == "forward", "computes the forward pass only"),
        (problem.rank <= 2, f"computes 1-D and 2-D, not {problem.rank}-D"),
        (
            problem.dtype in ELEMENTS,
            f"computes float32, float16 and bfloat16, not {str(problem.dtype).removeprefix('torch.')}",
        ),
        (problem.layout == CHANNELS_FIRST or problem.rank == 2, "computes channels_last in 2-D only"),
        (problem.depth_multiplier == 1, "computes no depth multiplier yet"),
        (
            gathers or hopper.columns_read(problem) <= most_read,
            f"reaches {most_read} columns in all for four pixels",
        ),
        *(
            (gathers or size % ROW_BYTES == 0, f"{name} of {size} bytes are no multiple of {ROW_BYTES}")
            for name, size in hopper.runs(problem).items()
        ),
        (problem.batch * math.prod(problem.out_size) < 2**31, "counts rows and pixels in 32 bits"),
    ]


def build(problem: Problem, config: CudaConfig) -> nvrtc.Build:
    """What is compiled for a problem; the batch is known at run time only."""
    how = {
        "CLUSTER": config.cluster,
        "BLOCK_OUTPUTS": config.outputs,
        "ROLLS": int(config.rolls),
        "STAGES": config.stages,
        "SLOTS": config.slots,
        "STAGED": config.staged,
        "WEIGHT_STAGES": config.weight_stages,
        "BESIDE": int(config.beside),
        "TILE": config.tile,
        "PATCH_ROWS": config.patch[0],
        "PATCH_COLUMNS": config.patch[1],
        "GATHERS": int(config.gathers),
    }
    return nvrtc.Build("forward", SOURCES / "forward.cu", macros(problem, how), "sm_90a")


def macros(problem: Problem, how: dict[str, int]) -> tuple[tuple[str, str | int], ...]:
    """What the sources of any kernel for GPUs ask of a problem, and how the kernel is to run it."""
    per_axis = {
        "KERNEL": problem.kernel_size,
        "STRIDE": problem.stride,
        "DILATION": problem.dilation,
        "PADDING": tuple(before for before, _ in problem.padding),
        "IN": problem.in_size,
        "OUT": problem.out_size,
    }
    # In 1-D there is one row, which is not padded.
    both = {name: (0 if name == "PADDING" else 1, *axes)[-2:] for name, axes in per_axis.items()}
    epilogue = problem.epilogue
    found: dict[str, str | int] = {
        "ELEMENT": ELEMENTS[problem.dtype],
        "ELEMENT_BYTES": problem.dtype.itemsize,
        "CHANNELS_LAST": int(problem.layout == CHANNELS_LAST),
        "TERMS": hopper.terms(problem),
        "CHANNELS": problem.in_channels,
        "MULTIPLIER": problem.depth_multiplier,
        "OUTPUTS": problem.out_channels,
        **{f"{name}_{axis}": n for name, axes in both.items() for axis, n in zip("HW", axes, strict=True)},
        "DEPTHWISE_ACTIVATION": epilogue.depthwise_activation.name,
        "POINTWISE_ACTIVATION": epilogue.pointwise_activation.name,
        "DEPTHWISE_BIAS": int(epilogue.depthwise_bias),
        "POINTWISE_BIAS": int(epilogue.pointwise_bias),
        "RESIDUAL": int(epilogue.residual),
        **how,
    }
    return tuple((f"SEPCONV_{name}", value) for name, value in found.items())


_ADDRESSES = (*Operands._fields, "y")  # of tensors, in a call


class Call(ctypes.Structure):
    """The parameter of the kernel; mirrors `Call` in kernels/cuda/problem.cuh."""

    _fields_ = (
        *((name, TensorMap) for name in ("x_map", "y_map", "weight_map", "residual_map")),
        *((name, ctypes.c_void_p) for name in _ADDRESSES),
        *((name, ctypes.c_int) for name in ("parts", "rows_of_part", "longer_parts", "stays", "images")),
        *((name, ctypes.c_float) for name in ("depthwise_value", "pointwise_value")),
        ("up_to_64_bytes", ctypes.c_byte * 44),  # of which the kernel's is a multiple
    )


class _Launch(cuda_driver.Launch):
    """The kernel with the addresses of its last call.

    `maps`: tensor maps, by the tensor that they describe; `copied`: the tensors that lie on multiples of 16 bytes.
    """

    def __init__(
        self, function: Any, grid: int, shared: int, call: Call, maps: dict[str, Any], copied: frozenset[str]
    ) -> None:
        super().__init__(function, (grid, 1), THREADS, shared, bytes(call))
        self._places = (ctypes.c_uint64 * len(_ADDRESSES)).from_address(self.address + Call.x.offset)
        self._copied = [_ADDRESSES.index(name) for name in copied]
        self._maps = {_ADDRESSES.index(name): self.address + tensor_map.offset for name, tensor_map in maps.items()}

    def fill(self, addresses: tuple[int, ...]) -> bool:
        if any([addresses[place] % ROW_BYTES for place in self._copied]):
            return False
        for place, tensor_map in self._maps.items():
            if addresses[place] != self.addresses[place]:
                cuda_driver.replace_address(tensor_map, addresses[place])
        self._places[:] = list(addresses)
        return True


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel: `launch` makes what a thread launches it with. `compute_dense` takes dense operands, and gives None
    where one of the `copied`, which the copy engine loads, does not lie on a multiple of 16 bytes."""

    launch: Callable[[], _Launch]
    compute_dense: Callable[[Operands], Tensor | None]
    problem: Problem
    copied: frozenset[str]

    def compute(self, operands: Operands) -> Tensor:
        """y in a fresh tensor, on PyTorch's current stream."""
        weights, residual = operands.with_dense_weights(), operands.residual_with_strides(self.problem.output_strides)
        x = operands.x.contiguous(memory_format=_memory_format(self.problem.layout))
        dense = weights._replace(x=x, residual=residual)
        named: dict[str, Any] = {name: getattr(dense, name) for name in self.copied}
        y = self.compute_dense(dense._replace(**{n: _aligned_16(t) for n, t in named.items() if t is not None}))
        assert y is not None
        return y


@lru_cache(maxsize=4096)
def _kernel(problem: Problem, config: CudaConfig, device: int) -> Kernel:
    """The kernel for a problem on a device, compiled where it was not before. Raises CompilerError or StoreError."""
    wanted = build(problem, config)
    try:
        code = nvrtc.cubin(wanted)
    except (CompilerError, StoreError) as error:
        _FAILURES[wanted] = str(error)
        raise
    shared = hopper.shared_bytes(problem, config)
    with torch.cuda.device(device):
        function = cuda_driver.load(code, "sepconv_forward", shared)
        clusters = cuda_driver.most_clusters(function, config.cluster, THREADS, shared, device)
    strips, rows = hopper.tiles(problem, config)
    epilogue = problem.epilogue
    values = epilogue.depthwise_activation.value, epilogue.pointwise_activation.value
    call = Call(images=problem.batch, depthwise_value=values[0], pointwise_value=values[1])
    # Where rows are kept, a part begins with the rows above its first one: few long parts load less, but each block needs one.
    call.parts = min(rows, max(problem.batch, clusters // strips)) if config.rolls else rows
    call.rows_of_part, call.longer_parts = divmod(rows, call.parts)
    maps = _encode_maps(call, problem, config)
    walkers = _walkers(strips * call.parts * hopper.output_sets(problem, config), clusters)
    call.stays = _rows_that_stay(problem, config, walkers, torch.cuda.get_device_properties(device).L2_cache_size)
    copied = frozenset({"pointwise_weight", *maps} - {"y"})
    if hopper.has_diagonals(problem):
        copied |= {"depthwise_weight", "depthwise_bias"}
    launch = partial(_Launch, function, config.cluster * walkers, shared, call, maps, copied)
    dense = cuda_driver.call_of(launch, device, problem.output_shape, problem.output_strides, problem.dtype)
    return Kernel(launch, dense, problem, copied)


def _encode_maps(call: Call, problem: Problem, config: CudaConfig) -> dict[str, Any]:
    """The tensor maps of a call, put into it: their fields, by the tensor that each describes."""
    maps: dict[str, Any] = {}
    if not config.gathers:
        maps = {"x": Call.x_map, "y": Call.y_map} | (
            {"residual": Call.residual_map} if problem.epilogue.residual else {}
        )
        x_box = (hopper.part(problem), *hopper.input_box(problem, config))
        swizzle = SWIZZLE_128 if hopper.has_diagonals(problem) else 0
        _encode_images(call.x_map, problem, problem.in_channels, problem.in_size, x_box, swizzle)
        y_box = (patches.GROUP_ROWS, 1, 128 // problem.dtype.itemsize)
        if problem.layout == CHANNELS_LAST:
            y_box = (128 // problem.dtype.itemsize, *config.patch)
        for of_result in (call.y_map, call.residual_map)[: 1 + problem.epilogue.residual]:
            _encode_images(of_result, problem, problem.out_channels, problem.out_size, y_box, SWIZZLE_128)
    if config.weight_stages:
        maps["pointwise_weight"] = Call.weight_map
        weight_box = (hopper.weight_part(problem, config), hopper.stream_rows(config))
        channels = (problem.in_channels, problem.out_channels)
        cuda_driver.encode(call.weight_map, problem.dtype, channels, weight_box, SWIZZLE_128)
    return maps


def _walkers(items: int, most: int) -> int:
    """How many blocks (or clusters) share so many items: a few less where they end as soon, of whom each has as many.

    Then all share the memory's time alike to the end: B takes 71.2 us with 128 blocks of eight tiles each, and 72.1 with
    132 in float16, 180.6 and 182.7 as "high" (H200, 2026-12-01).
    """
    most = min(items, most)
    alike = math.ceil(items / math.ceil(items / most))
    return alike if alike >= 0.9 * most else most


def _rows_that_stay(problem: Problem, config: CudaConfig, walkers: int, cache: int) -> int:
    """How many rows of its tiles each of the blocks (or clusters) may find in L2 when it ends; 0 where x is loaded as usual.

    Where y is larger than L2, nothing of it could stay there for the next kernel. L2 then evicts x after everything else: the
    same bytes move, and the memory takes them in an order that suits it better. A takes 0.859 ms instead of 0.886 with channels
    last, 0.932 instead of 0.952 without, both as "high"; B, whose rows are not kept, gains nothing (H200, 2026-11-30).
    """
    if not config.rolls or math.prod(problem.output_shape) * problem.dtype.itemsize <= cache:
        return 0
    row = config.tile * problem.in_channels * problem.dtype.itemsize
    return math.ceil(cache / (walkers * row))


def _encode_images(
    tensor_map: TensorMap,
    problem: Problem,
    channels: int,
    size: tuple[int, ...],
    box: tuple[int, int, int],
    swizzle: int = 0,
) -> None:
    """A dense x or y in boxes of so many (channels, rows, columns)."""
    rows, columns = (1, *size)[-2:]
    sizes, boxes, promote = (columns, rows, channels), (box[2], box[1], box[0]), 128
    if problem.layout == CHANNELS_LAST:
        # Two boxes of 128 bytes lie side by side in memory: A as "high" takes 0.897 ms, and 0.944 with 128 (H200, 2026-11-30).
        sizes, boxes, promote = (channels, columns, rows), (box[0], box[2], box[1]), 256
    cuda_driver.encode(tensor_map, problem.dtype, (*sizes, problem.batch), (*boxes, 1), swizzle, promote)


def _memory_format(layout: str) -> torch.memory_format:
    return torch.channels_last if layout == CHANNELS_LAST else torch.contiguous_format


def _aligned_16(tensor: Tensor) -> Tensor:
    return tensor if tensor.data_ptr() % ROW_BYTES == 0 else tensor.clone()


_FAILURES: dict[nvrtc.Build, str] = {}
