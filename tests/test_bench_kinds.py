"""In which dtypes, precisions and layouts `sepconv bench` measures, and how its tables tell them apart."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rows import ROW

from sepconv.bench import command, report, roofline, timing
from sepconv.bench.command import Kind, kinds_of
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FIRST, LAST = CHANNELS_FIRST, CHANNELS_LAST
OF_A_GPU = [
    (torch.float32, "high"),
    (torch.float32, "tf32"),
    (torch.float32, "ieee"),
    (torch.float16, "ieee"),
    (torch.bfloat16, "ieee"),
]


def printed(thing: object) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(thing)
    return console.file.getvalue()


def test_on_a_gpu_every_form_is_measured_unless_some_are_named() -> None:
    wanted = [Kind(dtype, layout, precision) for layout in (FIRST, LAST) for dtype, precision in OF_A_GPU]
    assert list(kinds_of("cuda", None, None, None)) == wanted
    assert kinds_of("cuda", "float32", FIRST, "ieee") == (Kind(torch.float32, FIRST, "ieee"),)
    assert kinds_of("cuda", "float32,float64", LAST, "tf32, high") == (
        Kind(torch.float32, LAST, "tf32"),
        Kind(torch.float32, LAST, "high"),
        Kind(torch.float64, LAST, "ieee"),
    )


def test_on_the_cpu_one_form_is_measured_unless_more_are_named() -> None:
    assert kinds_of("cpu", None, None, None) == (Kind(torch.float32, FIRST, "ieee"),)
    assert [kind.dtype for kind in kinds_of("cpu", "all", None, "high")] == [
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
    assert {kind.precision for kind in kinds_of("cpu", "all", "all", "all")} == {"ieee"}


def test_in_every_layout_a_problem_in_one_dimension_has_one() -> None:
    kinds = [Kind(torch.float32, layout, "ieee") for layout in (FIRST, LAST)]
    found = command._workloads(["A", "B", "A"], kinds, every_layout=True)
    assert [(w.name, w.entries[0].problem.layout) for w in found] == [("A", FIRST), ("A", LAST), ("B", FIRST)]
    found = command._workloads(["B"], kinds[1:], every_layout=False)
    assert [w.entries[0].problem.layout for w in found] == [LAST], "named alone, it is measured"


def test_one_gauge_serves_all_that_is_products_of_bfloat16() -> None:
    assert {roofline.unit_of(GPU, dtype) for dtype, _ in OF_A_GPU} == {torch.bfloat16}
    assert roofline.unit_of(GPU, torch.float64) == roofline.unit_of(CPU, torch.float64) == torch.float64
    assert roofline.unit_of(CPU, torch.float16) == torch.float16


@pytest.mark.parametrize("later", [",precision,launch,rejected", ",launch,rejected"])
def test_a_file_from_before_there_were_some_columns_can_be_read(later: str, tmp_path: Path) -> None:
    report.write_csv([ROW], tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0].endswith(later)
    old = [line.rsplit(",", later.count(","))[0] for line in lines]
    (tmp_path / "rows.csv").write_text("\n".join(old) + "\n")
    assert report.read_csv(tmp_path / "rows.csv") == [ROW]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (ROW, "float32 channels_first"),
        (replace(ROW, products=True, precision="high"), "float32 high channels_first"),
        (replace(ROW, products=True, dtype="float16", layout=LAST), "float16 channels_last"),
    ],
)
def test_a_kind_names_the_precision_where_it_says_something(row: report.Row, kind: str) -> None:
    assert row.kind == kind


def test_each_table_says_what_the_ceilings_of_its_rounds_were() -> None:
    text = printed(report.problem_table([replace(ROW, copy=4.26e12, arithmetic=779e12)]))
    assert "float32 channels_first, floor 0.1 ms" in text
    assert "copy: 4260.0 GB/s; arithmetic: FMA, 779.0 TFLOP/s" in text


def test_the_overview_has_a_line_for_each_kind() -> None:
    half = replace(ROW, dtype="float16", problem="half", ms=None, error=3e-7)
    peers = [replace(ROW, provider="eager", ms=5.0), replace(ROW, provider="compile", ms=2.5)]
    lines = printed(report.overview([ROW, *peers, half], "sepconv")).splitlines()
    (single,) = (line.split() for line in lines if "float32" in line)
    (wrong,) = (line.split() for line in lines if "float16" in line)
    assert single == ["A", "float32", FIRST, "1.250", "0.100", "0.08", "4.00", "2.00", "0.50"]
    assert wrong == ["A", "float16", FIRST, "WRONG", "0.100", "1.50"]
    assert report.overview([ROW, *peers], "sepconv") is None


def test_models_in_two_kinds_are_summed_apart() -> None:
    model = [replace(ROW, count=3, ms=2.0), replace(ROW, problem="other", count=1, ms=5.0)]
    rows = [*model, *(replace(row, dtype="float16", ms=1.0) for row in model)]
    table = report.total_table(rows)
    assert table is not None
    assert list(table.renderables[1].columns[3].cells) == ["11.000", "4.000"]


def test_on_a_gpu_a_call_is_timed_between_two_events_behind_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """With events that only tell what is asked of them: the host does nothing between the flush and the call."""
    told: list[str] = []

    class Event:
        made = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            Event.made += 1
            self.name = f"event {Event.made}"
            told.append(f"{self.name} made")

        def record(self) -> None:
            told.append(f"{self.name} recorded")

        def synchronize(self) -> None:
            told.append(f"{self.name} waited for")

        def elapsed_time(self, end: "Event") -> float:
            return float(f"{self.name[-1]}.{end.name[-1]}")

    class Flush:
        def zero_(self) -> None:
            told.append("flush")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(timing.torch, "empty", lambda *_, **__: Flush())
    assert timing.Timer(GPU).once(lambda: told.append("call")) == 1.2
    assert told == [
        *("event 1 made", "event 2 made"),
        *("flush",) * timing.FLUSHES,
        *("event 1 recorded", "call", "event 2 recorded", "event 2 waited for"),
    ]
