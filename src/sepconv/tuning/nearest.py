"""What the kernel for Hopper took beside the eager backend on problems that were measured, and which is nearest to another.

The table is made from measured rows by `python benchmarks/hopper_table.py`; looking something up in it measures nothing.
"""

import csv
import math
from dataclasses import asdict, astuple, dataclass, fields
from functools import lru_cache
from pathlib import Path

from sepconv.problem import DTYPE_NAMES, Problem
from sepconv.tuning.patches import of_2d

TABLE = Path(__file__).parent / "tables" / "hopper.csv"
FARTHEST = 8.0  # doublings of sizes, all together: beyond, a measured problem says nothing


@dataclass(frozen=True)
class Sizes:
    """What the time of a problem hangs on most."""

    batch: int
    in_channels: int
    out_channels: int
    pixels: int  # of an image of y
    taps: int
    stride: int
    residual: int

    def distance(self, other: "Sizes") -> float:
        """How many times a size would have to be doubled or halved, all sizes together."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return sum(abs(math.log2((one + 1) / (another + 1))) for one, another in pairs)


@dataclass(frozen=True)
class Measured:
    """A problem that was measured: its kind, its sizes, and the microseconds of the kernel and of the eager backend."""

    rank: int
    layout: str
    dtype: str
    sizes: Sizes
    kernel_us: float
    eager_us: float

    @property
    def ratio(self) -> float:
        """How many times as long as the eager backend the kernel takes."""
        return self.kernel_us / self.eager_us


def sizes_of(problem: Problem) -> Sizes:
    """The sizes of a problem."""
    return Sizes(
        problem.batch,
        problem.in_channels,
        problem.out_channels,
        math.prod(problem.out_size),
        math.prod(problem.kernel_size),
        math.prod(of_2d(problem.stride)),
        int(problem.epilogue.residual),
    )


def nearest(problem: Problem) -> Measured | None:
    """The nearest measured problem of the same rank, layout and size of elements; None where none is near."""
    wanted = sizes_of(problem)
    kind = problem.rank, problem.layout, problem.dtype.itemsize
    there = [
        (one.sizes.distance(wanted), one)
        for one in measured(TABLE)
        if (one.rank, one.layout, DTYPE_NAMES[one.dtype].itemsize) == kind
    ]
    distance, found = min(there, key=lambda pair: pair[0], default=(math.inf, None))
    return found if distance <= FARTHEST else None


@lru_cache(maxsize=1)
def measured(table: Path) -> tuple[Measured, ...]:
    """All rows of the table; none where there is no table."""
    if not table.exists():
        return ()
    with table.open(newline="") as file:
        return tuple(_row(words) for words in csv.DictReader(file))


def write(rows: list[Measured], table: Path) -> None:
    """The table, in the order of its rows."""
    with table.open("w", newline="") as file:
        flat = [{**{k: v for k, v in asdict(row).items() if k != "sizes"}, **asdict(row.sizes)} for row in rows]
        writer = csv.DictWriter(file, list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _row(words: dict[str, str]) -> Measured:
    sizes = Sizes(**{field.name: int(words[field.name]) for field in fields(Sizes)})
    times = float(words["kernel_us"]), float(words["eager_us"])
    return Measured(int(words["rank"]), words["layout"], words["dtype"], sizes, *times)
