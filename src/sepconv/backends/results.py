"""Memory for large results on the CPU, kept and used again.

PyTorch's CPU allocator gives a large block back to the system when its tensor dies, so that every large result begins with
pages that the system has to fill with zeros: (1, 64, 512, 512) -> 128 takes twice as long with them (a Xeon with 2 cores,
2026-11-30; docs/performance.md has both figures). Its CUDA allocator keeps such blocks, and so does this module, up to a
limit. A block is a storage of PyTorch's own. It is handed out again only when nobody else can reach it: see `Block`.
"""

import os
import sys
import threading
import weakref
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sepconv import settings

# Bytes: a huge page, from which on PyTorch asks for them (`THP_MEM_ALLOC_ENABLE=1`). Such a block is aligned, and the heap may
# give it back: (1, 32, 112, 112) -> 64, 3 MiB, took 0.3 to 1.0 ms without this module and 0.3 with it. In small pages the C
# library's heap keeps what is smaller: 8 MiB took the same time, 16 MiB 1.0 to 1.4 times as long without (the same machine).
SMALLEST = 2 << 20


class Block:
    """A storage, and how it looks while nobody but this object holds it."""

    def __init__(self, size: int) -> None:
        self.storage = torch.UntypedStorage(size, device="cpu")
        self.size = size
        self._alone = self._state()

    def is_free(self) -> bool:
        """Whether it is as it was when it was fresh: no tensor, view, array, capsule or storage object shares it, no weak
        reference points to it, and it was neither resized nor moved to shared memory."""
        return self._state() == self._alone

    def _state(self) -> tuple[int, ...]:
        holders = torch._C._storage_Use_Count(self.storage._cdata), sys.getrefcount(self.storage)
        return *holders, weakref.getweakrefcount(self.storage), self.storage.nbytes(), self.storage.data_ptr()

    def tensor(self, like: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        """All of it as a new tensor of the dtype of `like`."""
        return like.new_empty(0).set_(self.storage, 0, shape, strides)


class Results:
    """Blocks of `limit` bytes in all, in use or free; the ones that were handed out last are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._blocks: list[Block] = []  # the one that was handed out last stands last
        self._lock = threading.Lock()

    def empty(self, like: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        """A tensor like `like.new_empty_strided(shape, strides)`, dense and at most as large as the limit, in a block of this
        size that is free, or else in a new one."""
        size = like.element_size() * torch.Size(shape).numel()
        with self._lock:
            block = next((found for found in reversed(self._blocks) if found.size == size and found.is_free()), None)
            if block is None:
                block = Block(size)
            else:
                self._blocks.remove(block)
            self._blocks.append(block)
            while sum(kept.size for kept in self._blocks) > self._limit:
                del self._blocks[0]
            return block.tensor(like, shape, strides)


def empty(like: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """An uninitialised dense tensor for a result on the CPU; a large one may lie where an earlier result was."""
    size = like.element_size() * torch.Size(shape).numel()
    if size < SMALLEST or size > _limit() or not _tells_who_holds():
        return like.new_empty_strided(shape, strides)
    return _results().empty(like, shape, strides)


def forget() -> None:
    """Keep no block any longer, and read the limit again."""
    _limit.cache_clear()
    _results.cache_clear()


@lru_cache(maxsize=1)
def _limit() -> int:
    return settings.KEEP_RESULTS.read() << 20


@lru_cache(maxsize=1)
def _results() -> Results:
    return Results(_limit())


@lru_cache(maxsize=1)
def _tells_who_holds() -> bool:
    """Whether this Python and this PyTorch count those who hold a storage in the way that `Block` relies on. Their counts are
    not part of a public interface: where they are missing, or miss one of these holders, no memory is kept."""
    if not hasattr(torch._C, "_storage_Use_Count") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    block, like = Block(64), torch.zeros(0, device="cpu")

    def seen(holder: Any) -> bool:
        return holder is not None and not block.is_free()

    holder: Any = block.tensor(like, (16,), (1,))
    found = [seen(holder), seen(holder := holder[:1]), seen(holder := holder.untyped_storage())]
    del holder
    return all(found) and block.is_free()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # another thread may have held the lock
