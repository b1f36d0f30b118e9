"""Scratch memory for kernels on the CPU: one buffer for each Python thread, which grows and is used again."""

import contextlib
import ctypes
import mmap
import sys
import threading

_HUGE_PAGE = 2 << 20
_KEPT = 64 << 20  # bytes; a larger buffer is given back after the call that needed it
# Private: Python's default is memory that a forked child shares, and both would compute in it at the same time.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}


class Workspace:
    """A buffer of at least so many bytes at `address`, which lives as long as this object.

    It comes from the system and not from PyTorch, whose modes (fake tensors, deterministic filling) mean other memory. From
    half a huge page on it lies in huge pages, where the system has them: the kernel walks through all of it again and again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        huge = size >= _HUGE_PAGE // 2
        length = -(-size // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE if huge else max(size, 1)
        self._memory = mmap.mmap(-1, length, **_PRIVATE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if huge:
            self.address = -(-self.address // _HUGE_PAGE) * _HUGE_PAGE
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a system without them
                    self._memory.madvise(mmap.MADV_HUGEPAGE)


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
