"""What the kernels for Hopper take of an SM on the reference problems: registers, shared memory, occupancy. Needs no GPU.

    python benchmarks/cuda_kernels.py

Compiles the kernel of each dtype, precision and layout of A and B, and reads the compiler's report. Rows go to
results/cuda-kernels.csv; then `python benchmarks/tables.py`. Exit code 1: a kernel spills registers or uses local memory.
"""

import csv
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from sepconv.backends import cuda
from sepconv.bench import report
from sepconv.bench.workloads import workload
from sepconv.jit import nvrtc
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Problem
from sepconv.tuning import hopper, hopper_candidates

RESULT = Path(__file__).parent / "results" / "cuda-kernels.csv"
KINDS = ((torch.float32, "high"), (torch.float32, "ieee"), (torch.float16, "ieee"), (torch.bfloat16, "ieee"))
LAYOUTS = {"A": (CHANNELS_FIRST, CHANNELS_LAST), "B": (CHANNELS_FIRST,)}
# Of an SM of compute capability 9.0, and what the system takes of its shared memory for each block.
REGISTERS, SHARED_BYTES, THREADS, RESERVED_BYTES = 1 << 16, 228 << 10, 2048, 1 << 10
UNITS = 132  # SMs of an H200
Row = dict[str, object]


def main() -> int:
    rows = list(kernels())
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    report.write_at_once(RESULT, text.getvalue())
    print(text.getvalue(), end="")
    return int(any(row["spilled_bytes"] or row["stack_bytes"] for row in rows))


def kernels() -> Iterator[Row]:
    for name, layouts in LAYOUTS.items():
        for layout in layouts:
            for dtype, precision in KINDS:
                problem = replace(workload(name).entries[0].problem, dtype=dtype, precision=precision, layout=layout)
                kind = {"dtype": str(dtype).removeprefix("torch."), "precision": precision, "layout": layout}
                yield {"workload": name, **kind, **taken(problem)}


def taken(problem: Problem) -> Row:
    """What one kernel takes, and how many blocks of it an SM has room for."""
    config = hopper_candidates.configuration(problem, UNITS)
    assert config is not None
    build = cuda.build(problem, config)
    with tempfile.TemporaryDirectory() as folder:
        wanted = nvrtc.artifact(build)
        _, log = nvrtc.compiled(wanted, Path(folder))
    shared, registers = hopper.shared_bytes(problem, config), most(r"Used (\d+) registers", log)
    blocks = min(
        REGISTERS // (registers * cuda.THREADS),
        SHARED_BYTES // (shared + RESERVED_BYTES),
        THREADS // cuda.THREADS,
    )
    return {
        "configuration": str(config),
        "registers": registers,
        "shared_bytes": shared,
        "threads": cuda.THREADS,
        "blocks": blocks,
        "occupancy": round(blocks * cuda.THREADS / THREADS, 3),
        "spilled_bytes": most(r"(\d+) bytes spill", log),
        "stack_bytes": most(r"(\d+) bytes stack frame", log),
        "compiler": wanted.compiler,
    }


def most(pattern: str, log: str) -> int:
    return max(int(n) for n in re.findall(pattern, log))


if __name__ == "__main__":
    sys.exit(main())
