"""The layers of seven networks on an NVIDIA GPU beside PyTorch, as CUDA graphs: what docs/performance.md shows of the grid.

    python benchmarks/cuda_grid.py [--missing] [--only mobilenet_v1@64 xception@1] [--seconds 500] [--rounds 12] [--peers eager]
        [--result FILE]

Kernels that are not on disk yet are compiled first, in as many processes as there are cores. Then each problem of grid.py is
checked against float64 and measured, all providers in turn. Rows go to results/cuda-grid.csv after each problem, in the place
of old ones. After `--seconds` no other problem is begun, and what is left is said: the same with `--missing` goes on from
there. Leave the machine alone meanwhile. What SEPCONV_BACKEND makes of the grid belongs in a file of its own (`--result`).
Exit code 1: a result is wrong; 2: a wrong call.
"""

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from grid import NAMES, Item, items
from parts import say

from sepconv import dispatch
from sepconv.backends import cuda, portable
from sepconv.bench import baselines, measure, report, roofline
from sepconv.bench.rig import label
from sepconv.bench.timing import Timer
from sepconv.bench.workloads import Workload
from sepconv.device import Device, describe, usable
from sepconv.errors import ArgumentValueError, CompilerError, StoreError, UnsupportedError
from sepconv.jit import nvrtc
from sepconv.problem import Problem
from sepconv.tuning.hopper import CudaConfig
from sepconv.tuning.portable import PortableConfig

RESULT = Path(__file__).parent / "results" / "cuda-grid.csv"
ROUNDS = 12  # a multiple of 2, 3 and 4 providers: each is the first of as many rounds as the others
OURS = baselines.OURS.name


def main(words: Sequence[str]) -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD@BATCH", choices=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--missing", action="store_true", help="only problems without a row")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other problem is begun")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each problem")
    parser.add_argument("--peers", choices=("all", "eager"), default="all", help="eager: without torch.compile")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the rows go instead")
    asked = parser.parse_args(words)
    try:
        device = usable(f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cuda")
    except ArgumentValueError as error:
        parser.error(str(error))
    rows = rows_of_the_grid(asked.result)
    wanted = [item for item in items() if not asked.only or item.workload in asked.only]
    if asked.peers == "eager":
        wanted = [replace(item, peers=tuple(name for name in item.peers if name != "compile")) for item in wanted]
    if asked.missing:
        there = {(row.workload, row.problem) for row in rows if row.provider == OURS}
        wanted = [item for item in wanted if item.key not in there]
    compile_kernels(builds(wanted, describe(device)))
    grid = Grid(device, asked.rounds, asked.result, lambda: time.monotonic() - start < asked.seconds)
    return grid.run(wanted, rows)


def rows_of_the_grid(file: Path) -> list[report.Row]:
    """The rows that the file has of problems that are in the grid now."""
    known = {item.key for item in items()}
    rows = report.read_csv(file) if file.exists() else []
    return [row for row in rows if (row.workload, row.problem) in known]


# --- kernels


def builds(wanted: Sequence[Item], device: Device) -> list[nvrtc.Build]:
    """What these problems need compiled and is not on disk, each once."""
    found = dict.fromkeys(build_of(item.entry.problem, device) for item in wanted)
    return [build for build in found if build is not None and not nvrtc.is_built(build)]


def build_of(problem: Problem, device: Device) -> nvrtc.Build | None:
    """What sepconv would compile for a problem; None where PyTorch's own kernels run it, or nothing can."""
    try:
        plan = dispatch.plan(problem, device)
    except UnsupportedError:  # by the backend that SEPCONV_BACKEND names; the measurement tells
        return None
    if isinstance(plan.config, CudaConfig):
        return cuda.build(plan.problem, plan.config)
    if isinstance(plan.config, PortableConfig):
        return portable.build(plan.problem, plan.config, plan.device)
    return None


def compile_kernels(wanted: Sequence[nvrtc.Build]) -> None:
    """Compile all of these into the store, in parallel: NVRTC takes about a second for each, on one core.

    A kernel that does not compile is told; its problem then goes to PyTorch.
    """
    if not wanted:
        return
    start, count = time.monotonic(), min(len(wanted), os.cpu_count() or 1)
    say(f"compiling {len(wanted)} kernels in {count} processes")
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        for failure in filter(None, pool.map(failure_of, wanted)):
            say(failure)
    say(f"compiled in {time.monotonic() - start:.0f} s")


def failure_of(build: nvrtc.Build) -> str:
    """Compile into the store; what went wrong, in words."""
    try:
        nvrtc.cubin(build)
    except (CompilerError, StoreError) as error:
        return str(error)
    return ""


# --- the measurement


@dataclass
class Grid:
    """A measurement of many problems: where, how often, into which file, and for how long.

    The ceilings are measured once: a sample takes 2.4 ms at the rates in cuda-forward.csv, longer than most of the layers.
    """

    device: torch.device
    rounds: int
    result: Path
    has_time: Callable[[], bool]

    def run(self, wanted: Sequence[Item], rows: list[report.Row]) -> int:
        """Measure one after the other while there is time, with all rows in the file after each; 1 where a result is wrong."""
        unit = roofline.unit_of(self.device, torch.float32)
        gauge = roofline.Steady(roofline.Gauge(self.device, unit, Timer(self.device)))
        say(f"{describe(self.device)}, torch {torch.__version__}; {gauge.sample()}")
        worst, done = 0, 0
        while done < len(wanted) and self.has_time():
            item, before = wanted[done], time.monotonic()
            found = self.measured(item, gauge)
            rows = report.merged(rows, found.rows)
            report.write_csv(rows, self.result)
            done += 1
            took = f"{done}/{len(wanted)}, {time.monotonic() - before:.1f} s"
            for text in (f"{took}: {in_short(item, found.rows)}", *found.skipped, *found.wrong):
                say(text)
            worst = max(worst, int(bool(found.wrong)))
        say(left(wanted[done:]))
        return worst

    def measured(self, item: Item, gauge: roofline.Steady) -> measure.Measured:
        """The rows of one problem, as CUDA graphs."""
        workload = Workload(item.workload, (item.entry,))
        peers = tuple(baselines.PEERS[name] for name in item.peers)
        asked = measure.Request(
            (workload,), self.device, False, baselines.OURS, peers, self.rounds, 0, launch=report.GRAPH
        )
        return measure.measure(asked, workload, item.entry, gauge, lambda: None)


def in_short(item: Item, rows: Sequence[report.Row]) -> str:
    """A line on what was found."""
    ours = next(row for row in rows if row.provider == OURS)
    times = ", ".join(f"{row.provider} {'WRONG' if row.ms is None else f'{row.ms:.4f} ms'}" for row in rows)
    return f"{item.workload} {label(item.entry.problem)}, {ours.dtype}: {times} [{ours.plan}]"


def left(rest: Sequence[Item]) -> str:
    """What was not begun, by workload."""
    if not rest:
        return "done; now `python benchmarks/tables.py`"
    counts = Counter(item.workload for item in rest)
    return f"left: {', '.join(f'{count} of {name}' for name, count in counts.items())}; `--missing` goes on from there"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
