"""The threads that the CPU's kernels run on: those of the OpenMP runtime that PyTorch has loaded."""

import ctypes
import os
from functools import lru_cache
from pathlib import Path

import torch

_RUNTIMES = ("libgomp", "libomp", "libiomp5")


class Threads(ctypes.Structure):
    """How many threads, and whose; mirrors `Threads` in kernels/cpu/team.h. Null pointers: threads of the kernel's own."""

    _fields_ = (
        ("count", ctypes.c_long),
        ("parallel", ctypes.c_void_p),
        ("number_here", ctypes.c_void_p),
        ("count_here", ctypes.c_void_p),
    )


def threads() -> Threads:
    """As many threads as PyTorch uses now, from its own pool: a second pool would fight it for the cores.

    In a forked child the pool's threads do not exist and OpenMP waits for them for ever: there the kernel starts threads of
    its own for each call.
    """
    pointers = (None, None, None) if _forked else _openmp()
    return Threads(torch.get_num_threads(), *pointers)


@lru_cache(maxsize=1)
def _openmp() -> tuple[int | None, int | None, int | None]:
    """The addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads; three times None where there are none."""
    for path in _loaded_runtimes():
        try:
            runtime = ctypes.CDLL(path)
            names = (runtime.GOMP_parallel, runtime.omp_get_thread_num, runtime.omp_get_num_threads)
        except (OSError, AttributeError):
            continue
        parallel, number, count = (ctypes.cast(name, ctypes.c_void_p).value for name in names)
        return parallel, number, count
    return None, None, None


def _loaded_runtimes() -> list[str]:
    """The OpenMP runtimes that are loaded in this process, PyTorch's own first."""
    try:
        with open("/proc/self/maps") as lines:
            files = {fields[-1] for fields in map(str.split, lines) if len(fields) > 5}
    except OSError:
        return []
    runtimes = [file for file in sorted(files) if Path(file).name.startswith(_RUNTIMES)]
    home = str(Path(torch.__file__).parent)
    return sorted(runtimes, key=lambda file: not file.startswith(home))


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
