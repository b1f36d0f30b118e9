"""What the arithmetic units of this CPU can do: the ceiling that the kernels are held against."""

import ctypes
from collections.abc import Callable
from functools import lru_cache

from sepconv.backends.cpu import COMMON_FLAGS, FLAGS, SOURCES
from sepconv.backends.threads import Threads, threads
from sepconv.jit import cxx


def multiply_add_rate(isa: str, rounds: int) -> float:
    """FLOP/s of float32 multiply-adds in registers, `rounds` times twelve vectors on each thread that a kernel would run on.

    Raises CompilerError or StoreError where the probe cannot be compiled.
    """
    return _probe(isa)(ctypes.byref(threads()), rounds)


@lru_cache(maxsize=len(FLAGS))
def _probe(isa: str) -> Callable[[object, int], float]:
    library = cxx.library(cxx.Build("probe", SOURCES / "probe.cpp", COMMON_FLAGS + FLAGS[isa], (), isa))
    function = library.sepconv_probe
    function.argtypes = (ctypes.POINTER(Threads), ctypes.c_long)
    function.restype = ctypes.c_double
    return function
