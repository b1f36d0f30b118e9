"""A CPU in the place of a GPU: CUDA kernels are built for it, and their threads run as fibers (emulated/run.cpp)."""

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sepconv.backends import cuda, cuda_driver, portable
from sepconv.jit import nvrtc

EMULATED = Path(__file__).parent / "emulated"
MULTIPROCESSORS = 4
CALLS: dict[str, type[ctypes.Structure]] = {"forward": cuda.Call, "portable": portable.Call}
THREADS = {"forward": cuda.THREADS, "portable": portable.THREADS}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, whose _Float16 the emulation takes")


class Map(ctypes.Structure):
    """What the emulated copy engine knows of a tensor; mirrors TensorMap in emulated/ptx.cuh."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("element_bytes", "rank", "swizzle")),
        *((name, ctypes.c_uint64 * 4) for name in ("sizes", "steps", "box")),
    )


class Emulator:
    """Stands for the compiler and for the driver: kernels are built for the CPU, and run where they are launched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parameter = folder, b""
        shutil.copytree(portable.SOURCES, folder, dirs_exist_ok=True)
        shutil.copytree(EMULATED, folder, dirs_exist_ok=True)  # these in the place of those

    def build(self, wanted: nvrtc.Build) -> ctypes.CDLL:
        key = hashlib.sha256(repr((wanted.name, wanted.defines)).encode()).hexdigest()
        library = self.folder / f"{key}.so"
        if not library.exists():
            defines = [f"-D{name}={value}" for name, value in wanted.defines]
            main = [f'-DSEPCONV_MAIN="{wanted.main.name}"', f"-DSEPCONV_KERNEL=sepconv_{wanted.name}"]
            # Kernels that are loaded at a time share nothing.
            flags = ["-std=c++17", "-O1", "-w", "-Wno-psabi", "-shared", "-fPIC", "-fno-gnu-unique"]
            flags.append(f"-DSEPCONV_THREADS={THREADS[wanted.name]}")
            subprocess.run(["g++", *flags, *defines, *main, self.folder / "run.cpp", "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
        assert loaded.size_of_call() == ctypes.sizeof(CALLS[wanted.name])
        loaded.threads = THREADS[wanted.name]
        return loaded

    def cuLaunchKernelEx(self, config: Any, kernel: ctypes.CDLL, parameters: Any, _: None) -> int:  # noqa: N802
        how = cuda_driver.LaunchConfig.from_address(config.value)
        assert (how.block_x, how.shared) == (kernel.threads, kernel.size_of_shared_memory())
        parameter = ctypes.c_void_p.from_address(parameters.value)
        assert parameter.value is not None
        self.parameter = ctypes.string_at(parameter.value, kernel.size_of_call())
        kernel.run(parameter, how.grid_x, how.grid_y)
        return 0

    def cuTensorMapEncodeTiled(  # noqa: N802
        self, to: Any, kind: int, rank: int, address: Any, sizes: Any, steps: Any, box: Any, *rest: Any
    ) -> int:
        item = next(dtype.itemsize for dtype, number in cuda_driver._TENSOR_TYPES.items() if number == kind)
        ones = [1] * (4 - rank)
        found = Map(address.value, item, rank, rest[2])
        found.sizes[:], found.box[:] = [*sizes, *ones], [*box, *ones]
        found.steps[:] = [item, *steps, *[0] * (4 - rank)]
        ctypes.memmove(to.value, ctypes.addressof(found), ctypes.sizeof(found))
        return 0

    def cuOccupancyMaxActiveClusters(self, count: Any, kernel: ctypes.CDLL, launch: Any) -> int:  # noqa: N802
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = MULTIPROCESSORS // 2
        return 0

    def cuTensorMapReplaceAddress(self, tensor_map: int, address: int) -> int:  # noqa: N802
        Map.from_address(tensor_map).address = address
        return 0


class Results:
    """Fresh results, each between two guards that nobody is to write to."""

    GUARD = 1024  # elements, so that a result lies on whole 16 bytes

    def __init__(self) -> None:
        self.whole: list[torch.Tensor] = []

    def empty(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        whole = torch.full((count + 2 * self.GUARD,), torch.nan, dtype=dtype)
        self.whole.append(whole)
        return whole[self.GUARD : self.GUARD + count].as_strided(size, stride)

    def check(self) -> None:
        for whole in self.whole:
            assert whole[: self.GUARD].isnan().all(), "something was written before the result"
            assert whole[-self.GUARD :].isnan().all(), "something was written behind the result"


@contextmanager
def in_place_of_a_gpu(emulator: Emulator) -> Iterator[None]:
    results = Results()
    facts = SimpleNamespace(multi_processor_count=MULTIPROCESSORS, L2_cache_size=1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "cubin", emulator.build)
        patch.setattr(cuda_driver, "load", lambda code, name, shared: code)
        patch.setattr(cuda_driver, "driver", lambda: emulator)
        patch.setattr(cuda_driver, "empty", results.empty)
        patch.setattr(torch.cuda, "device", lambda _: nullcontext())
        patch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
        patch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
        for backend in (cuda, portable):
            backend._kernel.cache_clear()
        yield
        results.check()
    for backend in (cuda, portable):
        backend._kernel.cache_clear()
