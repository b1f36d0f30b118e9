"""The peak memory of one call over what was in use before it, by device."""

import ctypes
import gc
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sepconv.backends import results

_REPETITIONS = 3
CUDA_METHOD = "torch.cuda.max_memory_allocated during one forward pass, less what was allocated before it"
CPU_METHOD = "peak resident memory of the process (VmHWM) during one forward pass, less the resident memory before it"


@dataclass(frozen=True)
class Peak:
    """The median peak growth of a few calls in bytes (None: not measured), and how it was measured or why not."""

    bytes: int | None
    method: str


def peak_growth(call: Callable[[], object], device: torch.device) -> Peak:
    """The memory that one call needs beyond what lives before it: its intermediates and its result, not the weights.

    The call should have run before, so that what is kept from a first call does not count. On a CPU it is the process's
    own peak, which Linux alone lets us reset; it includes what libraries allocate by themselves.
    """
    if device.type == "cuda":
        return Peak(_median(lambda: _cuda_growth(call, device)), CUDA_METHOD)
    if device.type != "cpu":
        return Peak(None, f"no method for {device.type}")
    try:
        return Peak(_median(lambda: _cpu_growth(call)), CPU_METHOD)
    except OSError as error:
        return Peak(None, f"not measured: /proc/self/clear_refs, with which Linux resets a peak, failed ({error})")


def _median(growth: Callable[[], int]) -> int:
    return int(statistics.median(growth() for _ in range(_REPETITIONS)))


def _cuda_growth(call: Callable[[], object], device: torch.device) -> int:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_growth(call: Callable[[], object]) -> int:
    gc.collect()
    _give_back_free_memory()
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS (proc(5))
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _give_back_free_memory() -> None:
    """Hand freed memory back to the system, so that a call cannot hide in what an earlier one left behind."""
    results.forget()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def _status(field: str) -> int:
    """One field of /proc/self/status in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no {field}")
    return int(found[1]) * 1024
