"""What was measured, for machines (CSV, JSON) and for people (a table); raw rows, written at once or not at all."""

import csv
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

import sepconv
from sepconv.bench.roofline import Ceilings
from sepconv.device import describe

CALL, GRAPH = "call", "graph"


@dataclass(frozen=True)
class Row:
    """One provider on one problem.

    Times in milliseconds, None where the result was wrong. `count` is how often the model has this problem. `pages` says in
    what memory PyTorch's tensors lie on the CPU. `copy`, `arithmetic` and so on are the ceilings of the same rounds, `floor_ms`
    is what they set under the time, `efficiency` the floor over the time. `error` is the one that is closest to its budget, or
    furthest past it. `launch` says how the GPU got the work: by a CALL, or from a GRAPH. In our rows only:
    `ratio_to_best_peer`, our time over that of the fastest peer, and `rejected`, what the backends that were asked before the
    one in `plan` have against the problem.
    """

    workload: str
    problem: str
    count: int
    device: str
    dtype: str
    layout: str
    direction: str
    pages: str
    provider: str
    plan: str
    ms: float | None
    ms_p20: float | None
    ms_p80: float | None
    bytes: int
    flops: int
    copy: float
    arithmetic: float
    arithmetic_name: str
    products: bool
    floor_ms: float
    efficiency: float | None
    error: float
    error_budget: float
    versions: str
    ratio_to_best_peer: float | None = None
    precision: str = "ieee"
    launch: str = CALL
    rejected: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the result kept its budget."""
        return self.error <= self.error_budget

    @property
    def key(self) -> tuple[str, ...]:
        """What a row is about: two rows with one key are two measurements of one thing."""
        return (self.workload, self.problem, self.direction, self.device, self.pages, self.launch, self.provider)

    @property
    def kind(self) -> str:
        """Dtype, precision where it says something, and layout."""
        precise = [self.precision] * (self.products and self.dtype == "float32")
        return " ".join([self.dtype, *precise, self.layout])


FIELDS = tuple(field.name for field in fields(Row))
_LATER = ("precision", "launch", "rejected")  # the columns that older files lack
_INTEGERS = tuple(field.name for field in fields(Row) if field.type is int)
_WORDS = tuple(field.name for field in fields(Row) if field.type is str)
_FLAGS = tuple(field.name for field in fields(Row) if field.type is bool)


# --- for machines


def default_path(device: torch.device, folder: Path = Path("benchmarks/results")) -> Path:
    """Where the rows of this device belong: <folder>/<device>-torch<version>-sepconv<version>.csv."""
    name = re.sub(r"\((R|TM)\)", "", describe(device).name, flags=re.IGNORECASE)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or device.type
    return folder / f"{slug}-torch{torch.__version__}-sepconv{sepconv.__version__}.csv"


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """The rows as CSV with a line of names; a number that is not there is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_at_once(path, text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """The rows of a file that `write_csv` wrote."""
    with open(path, newline="", encoding="utf-8") as lines:
        return [_row(values) for values in csv.DictReader(lines)]


def write_json(rows: Iterable[Row], path: Path) -> None:
    """The rows as JSON; infinite errors, which JSON has no number for, are "inf"."""
    found = {"rows": [_finite(asdict(row)) for row in rows]}
    write_at_once(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> list[Row]:
    """The rows of a file that `write_json` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return [_row(values) for values in found["rows"]]


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """The new rows in the place of old rows with the same key, or behind the old rows."""
    return list({row.key: row for row in (*old, *new)}.values())


def write_at_once(path: Path, text: str) -> None:
    """The text in a file that a reader sees whole or not at all; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _row(values: dict[str, Any]) -> Row:
    return Row(**{name: _value(name, values[name]) for name in FIELDS if name in values or name not in _LATER})


def _value(name: str, value: Any) -> Any:
    if name in _WORDS:
        return value
    if value is None or value == "":
        return None
    if name in _FLAGS:
        return value in (True, "True")
    return int(value) if name in _INTEGERS else float(value)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


# --- for people


def problem_table(rows: Sequence[Row]) -> Group:
    """The rows of one problem as a table that 100 columns hold, below the problem and the ceilings in words."""
    first = rows[0]
    often = f" ({first.count} times in the model)" if first.count > 1 else ""
    ceilings = Ceilings(first.copy, first.arithmetic, first.arithmetic_name, first.products)
    launch = ", CUDA graphs" if first.launch == GRAPH else ""
    title = f"{first.workload}{often}, {first.direction}, {first.kind}{launch}, floor {first.floor_ms:.3g} ms\n"
    title += f"{first.problem}\n{ceilings}"
    table = _table()
    table.add_column("provider", overflow="fold")
    for name in ("ms", "p20", "p80", "efficiency", "ours/best", "error", "budget"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        name = f"{row.provider} [{row.plan}]" if row.plan else row.provider
        numbers = [_number(v, ".3f") for v in (row.ms, row.ms_p20, row.ms_p80)]
        if not row.is_right:
            numbers[0] = "WRONG"
        numbers += [_number(row.efficiency, ".2f"), _number(row.ratio_to_best_peer, ".2f")]
        numbers += [f"{row.error:.1e}", f"{row.error_budget:.1e}"]
        table.add_row(name.replace("[", r"\["), *numbers, style=None if row.is_right else "red")
    return Group(Text(title), table)


def total_table(rows: Sequence[Row]) -> Group | None:
    """All pairs of each model together, each as often as it occurs; None where no workload has two problems."""
    table = _table()
    for name in ("workload", "kind", "provider", "ms", "floor"):
        table.add_column(name, justify="right" if name in ("ms", "floor") else "left", no_wrap=True)
    for (workload, kind), of_workload in _by_kind(rows).items():
        problems = len({row.problem for row in of_workload})
        for provider in dict.fromkeys(row.provider for row in of_workload):
            total = _total(of_workload, provider)
            if problems > 1 and total is not None:
                floor = sum(row.count * row.floor_ms for row in of_workload if row.provider == provider)
                table.add_row(workload, kind, provider, f"{total:.3f}", f"{floor:.3f}")
    return Group(Text("All pairs of a model together"), table) if table.row_count else None


def overview(rows: Sequence[Row], ours: str) -> Group | None:
    """A line for each workload in each kind, models as a whole: our time beside its floor and the peers' times.

    None where there is one workload in one kind.
    """
    table = _table()
    for name in ("workload", "kind", "ms", "floor", "efficiency", "eager/ours", "best/ours", "error/budget"):
        table.add_column(name, justify="left" if name in ("workload", "kind") else "right", overflow="fold")
    for (workload, kind), found in _by_kind(rows).items():
        our_rows = [row for row in found if row.provider == ours]
        time, floor = _total(found, ours), sum(row.count * row.floor_ms for row in our_rows)
        peers = {p: _total(found, p) for p in dict.fromkeys(row.provider for row in found) if p != ours}
        best = min((total for total in peers.values() if total is not None), default=None)
        gains = (None if time is None or peer is None else peer / time for peer in (peers.get("eager"), best))
        table.add_row(
            workload,
            kind,
            "WRONG" if time is None else f"{time:.3f}",
            f"{floor:.3f}",
            _number(None if time is None else floor / time, ".2f"),
            *(_number(gain, ".2f") for gain in gains),
            f"{max(row.error / row.error_budget if row.error_budget else math.inf for row in our_rows):.2f}",
        )
    return Group(Text("All together"), table) if table.row_count > 1 else None


def _by_kind(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows by workload and kind, in their order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.workload, row.kind), []).append(row)
    return found


def _total(rows: Sequence[Row], provider: str) -> float | None:
    """Milliseconds of all pairs of a workload in one kind; None where a problem of it was not timed."""
    times = [(row.count, row.ms) for row in rows if row.provider == provider]
    if len(times) < len({row.problem for row in rows}) or any(ms is None for _, ms in times):
        return None
    return sum(count * (ms or 0.0) for count, ms in times)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
