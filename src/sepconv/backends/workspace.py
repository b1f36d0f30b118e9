"""Scratch memory for kernels on the CPU: one buffer for each Python thread, which grows and is used again."""

import ctypes
import mmap
import sys
import threading

_KEPT = 64 << 20  # bytes; a larger buffer is given back after the call that needed it
# Private: Python's default is memory that a forked child shares, and both would compute in it at the same time.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}


class Workspace:
    """A buffer of at least so many bytes at `address`, which lives as long as this object.

    It comes from the system and not from PyTorch, whose modes (fake tensors, deterministic filling) mean other memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, max(size, 1), **_PRIVATE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


class _Kept(threading.local):
    workspace: Workspace | None = None


_kept = _Kept()


def workspace(size: int) -> Workspace:
    """A buffer of at least `size` bytes; its content is undefined. It may be the one that this thread had before."""
    found = _kept.workspace
    if found is None or found.size < size:
        found = Workspace(size)
        if size <= _KEPT:
            _kept.workspace = found
    return found
