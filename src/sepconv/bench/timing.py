"""How a call is timed: all in turn in one loop, caches flushed before every call, the raw milliseconds of each kept."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}  # above the last-level caches of a share of a server, of an H200
WARM_UPS = 2


@dataclass(frozen=True)
class Times:
    """Milliseconds of the calls of one function: the median and the 20th and 80th percentile."""

    median: float
    p20: float
    p80: float


def summary(milliseconds: list[float]) -> Times:
    """The times of at least one call as one record."""
    if len(milliseconds) == 1:
        return Times(*milliseconds * 3)
    fifths = statistics.quantiles(milliseconds, n=5, method="inclusive")
    return Times(statistics.median(milliseconds), fifths[0], fifths[-1])


class Timer:
    """Times calls on one device; holds the buffer that is written before every call to flush the caches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(FLUSH_BYTES[device.type], dtype=torch.int8, device=device)

    def once(self, function: Callable[[], Any]) -> float:
        """Milliseconds of one call, what it returns still alive when the clock stops."""
        self._write_buffer()
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = function()
            end.record()
            end.synchronize()
            del result
            return float(start.elapsed_time(end))
        begin = time.perf_counter()
        result = function()
        elapsed = time.perf_counter() - begin
        del result
        return elapsed * 1e3

    def _write_buffer(self) -> None:
        """Flush the caches; on the CPU by one thread.

        The threads of whoever ran before stop spinning meanwhile, and PyTorch's own are not left spinning beside those
        of a library with a pool of its own: every provider starts with idle threads.
        """
        if self._device.type == "cuda":
            self._flush.zero_()
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._flush.zero_()
        torch.set_num_threads(threads)

    def in_turn(
        self,
        functions: Mapping[str, Callable[[], Any]],
        rounds: int,
        after_round: Callable[[], None] = lambda: None,
    ) -> dict[str, Times]:
        """The times of every function, each called once a round; all are warmed up before."""
        found: dict[str, list[float]] = {name: [] for name in functions}
        for function in functions.values():
            for _ in range(WARM_UPS):
                function()
        for _ in range(rounds):
            for name, function in functions.items():
                found[name].append(self.once(function))
            after_round()
        return {name: summary(times) for name, times in found.items()}
