"""The fused kernel on the CPU in other conditions: one thread and two, in turn with eager layers, and the memory of a call.

    python benchmarks/cpu_conditions.py [ROUNDS]

Float32. Times are medians of interleaved rounds, caches flushed before each; every result is checked against float64 first.

- threads: the same call on one thread and on two.
- alternation: many small layers in one go, all fused, all eager, and fused and eager in turn, with the same weights in the
  same order; on two threads and on one. In turn takes longer than the mean of the others, since neither finds its code and data
  in the caches. Where the pools of threads fought, it would lose more on two threads than on one.
- memory: the growth of the resident memory in the first call of a new thread, scratch memory included, beside the bytes of
  the result and of the weights.
"""

import csv
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import sepconv
from sepconv.bench import baselines, data, measure, pages, report
from sepconv.bench.budget import errors
from sepconv.bench.data import Case
from sepconv.bench.memory import peak_growth
from sepconv.bench.timing import Timer, Times
from sepconv.bench.workloads import weights, workload
from sepconv.device import describe

CPU = torch.device("cpu")
RESULT = Path(__file__).parent / "results" / "cpu-conditions.csv"
THREADS = ("B/16", "layer14@1")
ALTERNATION = ("layer14@1",)
MEMORY = ("A/16", "B/16", "layer56", "layer14@1")
PAIRS = 20  # layers of each kind in one timed go
ROUNDS = 41
Call = Callable[[], Any]
Row = dict[str, object]


def main(words: list[str]) -> None:
    pages.ask_for(pages.HUGE)
    with torch.inference_mode():
        if words == ["memory"]:
            print(as_csv(list(memory())), end="")
            return
        rounds, timer = int(words[0]) if words else ROUNDS, Timer(CPU)
        rows = [*threads(timer, rounds), *alternation(timer, rounds), *memory_elsewhere()]
    report.write_at_once(RESULT, as_csv(rows))
    print(RESULT.read_text(), end="")


def memory_elsewhere() -> Iterator[Row]:
    """The rows of `memory` in a process where every large block is fresh from the system and goes back to it."""
    fresh = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
        "SEPCONV_KEEP_RESULTS": "0",
    }  # the first is glibc's; see mallopt(3)
    mapped = os.environ | fresh
    words = [sys.executable, __file__, "memory"]
    yield from csv.DictReader(subprocess.check_output(words, env=mapped, text=True).splitlines())


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def threads(timer: Timer, rounds: int) -> Iterator[Row]:
    for name in THREADS:
        call = checked(baselines.OURS, make(name))
        counts = {"1 thread": 1, "2 threads": 2}
        times = timer.in_turn({case: on_threads(count, call) for case, count in counts.items()}, rounds)
        yield from (row("threads", name, case, time, "ms") for case, time in times.items())


def alternation(timer: Timer, rounds: int) -> Iterator[Row]:
    for name in ALTERNATION:
        cases = [make(name, seed) for seed in (0, 1)]
        fused, eager = ([checked(p, case) for case in cases] for p in (baselines.OURS, baselines.PEERS["eager"]))
        goes = {"fused": fused, "eager": eager, "in turn": [fused[0], eager[1]]}
        for kind, count in (("alternation", 2), ("alternation, one thread", 1)):
            calls = {case: on_threads(count, many(calls)) for case, calls in goes.items()}
            times = timer.in_turn(calls, rounds)
            yield from (row(kind, name, case, time, "ms") for case, time in times.items())


def memory() -> Iterator[Row]:
    for name in MEMORY:
        problem = make(name).problem
        call = checked(baselines.OURS, make(name))
        peak = peak_growth(lambda call=call: in_new_thread(call), CPU)
        size = problem.dtype.itemsize
        output = size * torch.Size(problem.output_shape).numel()
        found = {"result": output, "weights": size * weights(problem), "peak": peak.bytes}
        for case, value in found.items():
            if value is not None:
                yield row("memory", name, case, Times(value, value, value), "bytes")


def row(kind: str, name: str, case: str, times: Times, unit: str) -> Row:
    device, versions = str(describe(CPU)), f"sepconv {sepconv.__version__}; torch {torch.__version__}"
    value, p20, p80 = times.median, times.p20, times.p80
    words = {"kind": kind, "workload": name, "case": case, "value": value, "p20": p20, "p80": p80, "unit": unit}
    return words | {"device": device, "versions": versions}


def make(name: str, seed: int = 0) -> Case:
    return data.make(workload(name).entries[0].problem, CPU, seed=seed)


def checked(provider: baselines.Provider, case: Case) -> Call:
    """The provider's call, after it has given a right result."""
    call, right = provider.prepare(case), data.right(case)
    peer = [errors(result, expected) for result, expected in zip(baselines.yardstick(case), right, strict=True)]
    found = measure.check(case, call(), right, peer, "ieee")
    if not found.is_right:
        raise SystemExit(f"{provider.name} is WRONG on {case.problem}: error {found.error:.2g} in the {found.place}")
    return call


def on_threads(count: int, call: Call) -> Call:
    def run() -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return run


def many(calls: list[Call]) -> Call:
    def run() -> None:
        for _ in range(PAIRS):
            for call in calls:
                call()

    return run


def in_new_thread(call: Call) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
