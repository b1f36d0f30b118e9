"""What the tables of both kinds of device are made of: rows by problem, Markdown, numbers, and goals with what was found."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sepconv.bench.report import Row

NAMES = {
    "sepconv": "sepconv",
    "eager": "eager",
    "eager_channels_last": "eager, channels_last",
    "eager_channels_first": "eager, channels_first",
    "compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
OURS = "sepconv"
Table = list[list[str]]


@dataclass(frozen=True)
class Problem:
    """One distinct problem of a workload with the rows of all providers, ours first."""

    rows: tuple[Row, ...]

    @property
    def ours(self) -> Row:
        return next(row for row in self.rows if row.provider == OURS)

    @property
    def peers(self) -> dict[str, float]:
        return {row.provider: row.ms for row in self.rows if row.provider != OURS and row.ms is not None}

    @property
    def ratio(self) -> float:
        """Our time over that of the fastest peer."""
        return (self.ours.ms or float("inf")) / min(self.peers.values())


def markdown(head: Sequence[str], rows: Table, left: int = 1) -> str:
    """A table in Markdown, the first `left` columns to the left and the others to the right."""
    lines = [head, [*["---"] * left, *["--:"] * (len(head) - left)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_short(row: Row) -> str:
    """The problem of a row in a few words."""
    found = re.search(r"forward (\(.*?\) -> \d+), kernel (\S+), stride \((\d+)", row.problem)
    assert found, row.problem
    shape, kernel, stride = found.groups()
    parts = [shape, kernel] + [f"stride {stride}"] * (stride != "1") + ["residual"] * ("residual" in row.problem)
    return ", ".join(parts) + (f" ({row.count} times)" if row.count > 1 else "")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


@dataclass(frozen=True)
class Goal:
    """One figure that was to be reached: what, the figure that was found (None: not measured), its limit, and which side."""

    what: str
    found: float | None
    limit: float
    at_most: bool

    @property
    def is_reached(self) -> bool:
        return self.found is not None and (self.found <= self.limit if self.at_most else self.found >= self.limit)


def of_all(problems: Sequence[Problem], figure: Callable[[Sequence[Problem]], float]) -> float | None:
    return figure(problems) if problems else None


def goal_table(found: Sequence[Goal]) -> str:
    rows = []
    for goal in found:
        limit = f"{'at most' if goal.at_most else 'at least'} {goal.limit:g}"
        verdict = "yes" if goal.is_reached else "**no**"
        result = ["not measured", "-"] if goal.found is None else [f"{goal.found:.2f}", verdict]
        rows.append([goal.what, limit, *result])
    return markdown(["what", "goal", "found", "reached"], rows)
