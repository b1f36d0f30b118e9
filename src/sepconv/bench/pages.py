"""The memory that PyTorch gives its large tensors on the CPU: which pages, told by what is seen and not by what was asked for."""

import os
import re
import sys
from pathlib import Path

import torch

from sepconv import settings

SWITCH = "THP_MEM_ALLOC_ENABLE"  # PyTorch's own; read at its first allocation, and never again
HUGE, SMALL, KEPT = "huge", "small", "kept"
NEW_RESULTS = "; new results"  # behind the pages, where sepconv keeps no memory of results
_BYTES = 64 << 20
_MOST_FAULTS = 16  # a fresh block of so many bytes has twice as many even in huge pages


def ask_for(pages: str) -> None:
    """Set PyTorch's switch in this process, for HUGE or SMALL pages. Without effect after PyTorch's first allocation."""
    os.environ[SWITCH] = "1" if pages == HUGE else "0"


def described() -> str:
    """`found`, with NEW_RESULTS where that is so."""
    return found() + ("" if settings.KEEP_RESULTS.read() else NEW_RESULTS)


def in_words(text: str) -> str:
    """What `described` said, to be read."""
    pages, new, _ = text.partition(NEW_RESULTS)
    parts = [f"PyTorch's tensors in {pages} pages"] * bool(pages) + ["sepconv's results in new memory"] * bool(new)
    return ", ".join(parts)


def found() -> str:
    """HUGE or SMALL, with KEPT behind a comma where a freed block comes back with its pages; empty where no one can tell."""
    if sys.platform != "linux":
        return ""
    before = _huge_bytes()
    block = torch.ones(_BYTES, dtype=torch.int8)
    pages = HUGE if _huge_bytes() - before >= _BYTES // 2 else SMALL
    del block
    # The first blocks may still grow the heap from which the later ones come.
    return f"{pages}, {KEPT}" if min(_faults_of_a_block() for _ in range(4)) < _MOST_FAULTS else pages


def _huge_bytes() -> int:
    """The bytes of this process in anonymous huge pages; 0 where the system does not count them."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return 0
    size = re.search(r"AnonHugePages:\s+(\d+) kB", text)
    return int(size[1]) << 10 if size else 0


def _faults_of_a_block() -> int:
    """Page faults while a block is allocated and filled."""
    import resource  # not on every system

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(_BYTES, dtype=torch.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
