"""Which of the measured problems the kernel for Hopper is slower on than PyTorch: the table that dispatch looks into.

    SEPCONV_BACKEND=cuda python benchmarks/cuda_grid.py --peers eager --result benchmarks/results/cuda-grid-kernel.csv
    python benchmarks/hopper_table.py

The first command measures the kernel on all of the grid, also where dispatch would pick PyTorch; this one writes
src/sepconv/tuning/tables/hopper.csv from its rows. Rows in bfloat16 say the same as those in float16 and are left out.
"""

import sys
from pathlib import Path

from grid import items

from sepconv.bench import report
from sepconv.bench.baselines import OURS
from sepconv.problem import Problem
from sepconv.tuning import nearest
from sepconv.tuning.nearest import Measured

ROWS = Path(__file__).parent / "results" / "cuda-grid-kernel.csv"


def main() -> int:
    problems = {str(item.entry.problem): item.entry.problem for item in items()}
    found = table(report.read_csv(ROWS), problems)
    nearest.write(found, nearest.TABLE)
    print(f"{len(found)} problems, of which the kernel is slower on {sum(one.ratio > 1 for one in found)}")
    return 0


def table(rows: list[report.Row], problems: dict[str, Problem]) -> list[Measured]:
    """Each problem of which both times are known, once."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.ms is not None and row.problem in problems and row.dtype != "bfloat16":
            times.setdefault(row.problem, {})[row.provider] = row.ms * 1e3
    return [
        measured(problems[name], both[OURS.name], both["eager"])
        for name, both in times.items()
        if both.keys() >= {OURS.name, "eager"}
    ]


def measured(problem: Problem, kernel_us: float, eager_us: float) -> Measured:
    dtype = str(problem.dtype).removeprefix("torch.")
    times = round(kernel_us, 2), round(eager_us, 2)
    return Measured(problem.rank, problem.layout, dtype, nearest.sizes_of(problem), *times)


if __name__ == "__main__":
    sys.exit(main())
