"""How a call is timed: all in turn in one loop, the raw milliseconds of each kept.

On CUDA the caches are flushed before every call. On the CPU the same call goes before it, untimed, for some milliseconds: threads
of others stop spinning meanwhile, and its own are awake and find their code, as between the layers of a network. Once is not
enough for a small layer: (1, 512, 14, 14) -> 512 took 0.44 ms after one call of its own, 0.34 after two and 0.30 after four,
ONNX Runtime 0.69, 0.44 and 0.38. Flushed caches and sleeping threads were tried: waking up on a shared machine cost more than
small layers take, and differed from run to run (2 cores of a Xeon, 2026-11-30).
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

FLUSH_BYTES = 256 * 2**20  # above the last-level cache of an H200
FLUSHES = 4  # 60 us each there, where the host takes 140 us for a call after a wait (2026-11-30)
WARM_UPS = 2
SECONDS_BEFORE = 3e-3  # of untimed calls before a timed one on the CPU


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
    """Times calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device) if device.type == "cuda" else None

    def once(self, function: Callable[[], Any]) -> float:
        """Milliseconds of one call after untimed ones, what it returns still alive when the clock stops."""
        if self._flush is not None:
            return _on_cuda(function, self._flush)
        begin = time.perf_counter()
        function()
        while time.perf_counter() - begin < SECONDS_BEFORE:
            function()
        begin = time.perf_counter()
        result = function()
        elapsed = time.perf_counter() - begin
        del result
        return elapsed * 1e3

    def in_turn(
        self,
        functions: Mapping[str, Callable[[], Any]],
        rounds: int,
        after_round: Callable[[], None] = lambda: None,
    ) -> dict[str, Times]:
        """The times of every function, each called once a round; all are warmed up before.

        Every round begins with another one: what comes before a call (the measuring of ceilings, the threads of another
        library that still spin) is to meet all of them alike.
        """
        found: dict[str, list[float]] = {name: [] for name in functions}
        for function in functions.values():
            for _ in range(WARM_UPS):
                function()
        names = list(functions)
        for turn in range(rounds):
            first = turn % len(names) if names else 0
            for name in names[first:] + names[:first]:
                found[name].append(self.once(functions[name]))
            after_round()
        return {name: summary(times) for name, times in found.items()}


def _on_cuda(function: Callable[[], Any], flush: torch.Tensor) -> float:
    """Milliseconds of one call on CUDA, with caches that hold nothing of it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(FLUSHES):  # busy for longer than the host needs to launch what follows
        flush.zero_()
    start.record()
    result = function()
    end.record()
    end.synchronize()
    del result
    return float(start.elapsed_time(end))
