"""Where the kernel for Hopper is slower than PyTorch's own: the table that dispatch looks into, from measured rows.

    export SEPCONV_BACKEND=cuda; python benchmarks/cuda_grid.py --peers eager --result benchmarks/results/cuda-grid-kernel.csv
    export SEPCONV_BACKEND=eager; python benchmarks/cuda_grid.py --peers eager --result benchmarks/results/cuda-grid-eager.csv
    python benchmarks/hopper_table.py

The first two measure each of both on the grid, whichever dispatch would pick; this one writes
src/sepconv/tuning/tables/hopper.csv. The eager backend computes float32 in full, where PyTorch by itself may use TF32: where
its rows are missing PyTorch's time stands for it. Rows in bfloat16 say the same as those in float16 and are left out.
"""

import sys
from pathlib import Path

from grid import items

from sepconv.bench import report
from sepconv.bench.baselines import OURS
from sepconv.problem import Problem
from sepconv.tuning import nearest
from sepconv.tuning.nearest import Measured

RESULTS = Path(__file__).parent / "results"
KERNEL, EAGER = RESULTS / "cuda-grid-kernel.csv", RESULTS / "cuda-grid-eager.csv"


def main() -> int:
    problems = {str(item.entry.problem): item.entry.problem for item in items()}
    kernel, eager = (times(report.read_csv(file), OURS.name) for file in (KERNEL, EAGER))
    peer = times(report.read_csv(KERNEL), "eager")
    found = [
        measured(problems[name], kernel[name], eager.get(name, peer[name]))
        for name in kernel
        if name in problems and name in peer
    ]
    nearest.write(found, nearest.TABLE)
    print(f"{len(found)} problems, of which the kernel is slower on {sum(one.ratio > 1 for one in found)}")
    return 0


def times(rows: list[report.Row], provider: str) -> dict[str, float]:
    """The microseconds of a provider, by problem."""
    return {
        row.problem: row.ms * 1e3
        for row in rows
        if row.provider == provider and row.ms is not None and row.dtype != "bfloat16"
    }


def measured(problem: Problem, kernel_us: float, eager_us: float) -> Measured:
    dtype = str(problem.dtype).removeprefix("torch.")
    times = round(kernel_us, 2), round(eager_us, 2)
    return Measured(problem.rank, problem.layout, dtype, nearest.sizes_of(problem), *times)


if __name__ == "__main__":
    sys.exit(main())
