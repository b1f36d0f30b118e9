"""The CUDA driver, as far as fused kernels need it: loading them, and tensor maps. Through ctypes: a call of it takes a
microsecond, and the bindings' several.
"""

import ctypes
import itertools
import operator
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sepconv.problem import Operands

ROW_BYTES = 16  # rows of tensors that the copy engine takes begin on multiples of so many
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SWIZZLE_128 = 3  # CU_TENSOR_MAP_SWIZZLE_128B
_PROMOTE = {128: 2, 256: 3}  # CUtensorMapL2promotion: so many bytes come into L2 together
_TENSOR_TYPES = {torch.float32: 7, torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


_empty_strided_cuda: Any = getattr(
    torch._C._dynamo.guards,
    "_empty_strided_cuda",
    lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"),
)


class TensorMap(ctypes.Structure):
    """A tensor for the copy engine, as the driver encodes it; has to lie on a multiple of 64 bytes."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


def aligned(size: int) -> tuple[Any, int]:
    """Memory for a tensor map, and the address in it that is a multiple of 64."""
    memory = ctypes.create_string_buffer(size + 64)
    return memory, -(-ctypes.addressof(memory) // 64) * 64


@lru_cache(maxsize=1)
def driver() -> Any:
    """The driver's library."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    library.cuTensorMapReplaceAddress.argtypes = [ctypes.c_void_p] * 2
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    return library


def check(status: int, what: str) -> None:
    """Raise RuntimeError with the driver's words where it refused something of a kernel."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(
            f"CUDA refused {what} of a fused kernel: {(text.value or b'unknown').decode()} (error {status})"
        )


def load(code: bytes, name: str, shared: int) -> ctypes.c_void_p:
    """A kernel from its machine code, on the current device, with so much shared memory for each block."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(module), code), "loading")
    check(driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "loading")
    check(driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), "the shared memory")
    return function


def encode(
    tensor_map: TensorMap,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int = 0,
    promote: int = 128,
) -> None:
    """A dense tensor in boxes, the innermost axis first; the address comes with each call.

    L2 reads it in pieces of `promote` bytes: 128 or 256.
    """
    rank = len(sizes)
    strides = list(itertools.accumulate(sizes[:-1], operator.mul, initial=dtype.itemsize))[1:]
    _memory, address = aligned(ctypes.sizeof(TensorMap))
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
        _TENSOR_TYPES[dtype],
        rank,
        ctypes.c_void_p(ROW_BYTES * 64),  # any address that is aligned
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * len(strides))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        swizzle,
        _PROMOTE[promote],
        0,
    )
    check(status, "a tensor map")
    ctypes.memmove(ctypes.addressof(tensor_map), address, ctypes.sizeof(TensorMap))


def replace_address(tensor_map: int, tensor: int | None) -> None:
    """Have the tensor map at this address describe another tensor of the same kind."""
    check(driver().cuTensorMapReplaceAddress(tensor_map, tensor), "a tensor map")


def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A fresh tensor on the current device, as PyTorch's compiled code makes it: not by way of the dispatcher."""
    y: Tensor = _empty_strided_cuda(shape, strides, dtype)
    return y


class _Attribute(ctypes.Structure):
    _fields_ = (("name", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """How a kernel runs; mirrors `CUlaunchConfig`."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def most_clusters(function: ctypes.c_void_p, cluster: int, threads: int, shared: int, device: int) -> int:
    """How many clusters run at once: more would wait for the first to end, and each block goes through its work by itself."""
    if cluster == 1:
        return torch.cuda.get_device_properties(device).multi_processor_count
    attribute = _Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(cluster, 1, 1))
    launch = LaunchConfig(cluster, 1, 1, threads, 1, 1, shared, None, ctypes.addressof(attribute), 1)
    count = ctypes.c_int()
    check(driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), function, ctypes.byref(launch)), "its occupancy")
    return count.value


class Launch:
    """A kernel on a grid of blocks, ready to run with its one parameter, which lies at `address`.

    For one thread at a time: the driver copies the parameter when it launches, so that it is used again. `addresses` are those of
    its last operands and result.
    """

    def __init__(self, function: Any, grid: tuple[int, int], threads: int, shared: int, parameter: bytes) -> None:
        self._memory, self.address = aligned(len(parameter))
        ctypes.memmove(self.address, parameter, len(parameter))
        self._parameters = (ctypes.c_void_p * 1)(self.address)
        self._config = LaunchConfig(*grid, 1, threads, 1, 1, shared, None, None, 0)
        config, parameters = (ctypes.c_void_p(ctypes.addressof(part)) for part in (self._config, self._parameters))
        self._arguments = (config, function, parameters, None)
        self._launch, self._current_stream = driver().cuLaunchKernelEx, torch._C._cuda_getCurrentRawStream
        self._stream: int | None = None
        self.addresses: tuple[int, ...] = (0,) * (len(Operands._fields) + 1)

    def fill(self, addresses: tuple[int, ...]) -> bool:
        """Put in the addresses of operands and result (0: there is none). False where the kernel cannot compute these."""
        raise NotImplementedError

    def run(self, device: int) -> None:
        """On PyTorch's current stream of the device, which has to be the current one."""
        stream = self._current_stream(device)
        if stream != self._stream:
            self._config.stream = self._stream = stream
        status = self._launch(*self._arguments)
        if status:
            check(status, "the launch")


class _OfThread(threading.local):
    def __init__(self, make: Callable[[], Launch]) -> None:
        self.launch = make()


def call_of(
    make: Callable[[], Launch], device: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Callable[[Operands], Tensor | None]:
    """A loaded kernel as a function of operands that lie as it reads them: y in a fresh tensor, on PyTorch's current stream.

    None for operands that `fill` refuses. Behind cold caches each thing that is looked up counts, so all of them are at hand.
    """
    of_thread, current_device = _OfThread(make), torch._C._cuda_getDevice

    def call(operands: Operands) -> Tensor | None:
        if current_device() != device:
            with torch.cuda.device(device):
                return call(operands)
        y, launch = empty(shape, strides, dtype), of_thread.launch
        addresses = (*operands.addresses(), y.data_ptr())
        if addresses != launch.addresses:
            if not launch.fill(addresses):
                return None
            launch.addresses = addresses
        launch.run(device)
        return y

    return call
