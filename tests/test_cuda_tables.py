"""Tables, goals and the roofline of the forward pass on a GPU, on rows whose figures are known."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rows import ROW, read_from
from scripts import imported

from sepconv.bench import report
from sepconv.bench.report import Row
from sepconv.jit import nvrtc
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

SVG = "{http://www.w3.org/2000/svg}"
SIZES = {
    "A": ("2-D forward (16, 64, 512x512) -> 128, kernel 3x3, stride (1, 1)", 3.22e9, 73.6e9),
    "B": ("1-D forward (32, 256, 4096) -> 512, kernel 9, stride (1,)", 0.403e9, 35.0e9),
}


@pytest.fixture
def scripts() -> Iterator[dict[str, ModuleType]]:
    with imported("benchmarks", "cuda_forward", "cuda_kernels", "cuda_tables", "parts", "pictures", "tables") as found:
        yield found


def rows_of(workload: str, dtype: str, precision: str, layout: str, ours: float, peers: dict[str, float]) -> list[Row]:
    problem, traffic, flops = SIZES[workload]
    own = replace(
        ROW, workload=workload, problem=f"{problem}, {dtype} {layout} {precision}", device="cuda:0 NVIDIA H200 (9.0, 132 SMs)",
        dtype=dtype, layout=layout, precision=precision, ms=ours, ms_p20=ours, ms_p80=ours, bytes=int(traffic),
        flops=int(flops), copy=4.2e12, arithmetic=780e12, arithmetic_name="bfloat16 matrix product", products=True,
        floor_ms=0.75, efficiency=0.75 / ours, error=1e-6, error_budget=1e-5, pages="", ratio_to_best_peer=None,
    )  # fmt: skip
    return [own, *(replace(own, provider=name, plan="", ms=ms) for name, ms in peers.items())]


@pytest.fixture
def rows() -> list[Row]:
    return [
        *rows_of("A", "float32", "high", CHANNELS_FIRST, 1.0, {"eager": 3.5, "eager_channels_last": 1.6}),
        *rows_of("A", "float16", "ieee", CHANNELS_LAST, 0.5, {"eager": 1.0, "compile": 0.8}),
        *rows_of("B", "float32", "ieee", CHANNELS_FIRST, 0.4, {"eager": 1.4}),
    ]


@pytest.fixture
def file(tmp_path: Path, rows: list[Row]) -> Path:
    report.write_csv(rows, tmp_path / "cuda-forward.csv")
    return tmp_path / "cuda-forward.csv"


def test_goals_are_figures_of_the_rows(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["cuda_tables"]
    goals = {goal.what: goal for goal in tables.goals(tables.load(file))}
    assert goals["A float32 high, channels first: efficiency"].found == 0.75
    assert not goals["A float32 high, channels first: efficiency"].is_reached
    assert goals["A float32 high, channels first: time of eager / ours"].found == 3.5
    assert goals["A float16, channels last: time of the best peer / ours"].found == pytest.approx(1.6)
    assert goals["B float32 high, channels first: efficiency"].found is None
    assert goals["all rows: error / allowed, largest"].found == pytest.approx(0.1)


def test_every_row_is_in_the_page(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["cuda_tables"]
    sections = tables.page_sections(tables.load(file))
    assert tuple(sections) == tables.SECTIONS
    lines = sections["cuda-rows"].splitlines()
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1
    start = "| A | (16, 64, 512x512) -> 128, 3x3 | float32 high | channels first | **1** | 1 to 1 | 3.5 | 1.6 | - |"
    assert lines[2] == f"{start} 3.5 | 1.6 | 0.75 | **0.75** | 1.0e-06 | 0.10 |"
    assert "copy 4200 GB/s, bfloat16 matrix product 780 TFLOP/s" in sections["cuda-environment"]
    assert sections["cuda-environment"].startswith("NVIDIA H200 (9.0, 132 SMs); sepconv 0, torch 1.")


def test_a_row_without_a_time_is_still_shown(scripts: dict[str, ModuleType], file: Path, rows: list[Row]) -> None:
    tables = scripts["cuda_tables"]
    wrong = replace(rows[0], ms=None, ms_p20=None, ms_p80=None, efficiency=None, error=1.0)
    measured = tables.Measured([wrong, *rows[1:]])
    assert "| **-** | - to - | 3.5 | 1.6 | - | - | - | 0.75 | **0.00** |" in tables.problem_table(measured)
    assert "**-**" in tables.readme_section(measured)
    goals = {goal.what: goal for goal in tables.goals(measured)}
    assert goals["A float32 high, channels first: efficiency"].found == 0.0
    ElementTree.fromstring(tables.picture(measured))


def test_the_roofline_has_the_ceilings_and_two_points_a_problem(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["cuda_tables"]
    picture = ElementTree.fromstring(tables.picture(tables.load(file)))
    points = [p for p in picture.findall(f"{SVG}circle") if p.find(f"{SVG}title") is not None]
    assert [p.get("class") for p in points] == ["peer"] * 3 + ["ours"] * 3, "ours lie above the others"
    (line,) = picture.findall(f"{SVG}polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in str(line.get("points")).split()]
    assert corners[0][1] > corners[1][1] == corners[2][1], "a slope, then a level"
    for point in points:
        assert float(str(point.get("cy"))) > corners[1][1]
    by_name = {p.findtext(f"{SVG}title"): p for p in points if p.get("class") == "ours"}
    assert set(by_name) == {"A float32 high", "A float16", "B float32 ieee"}
    assert float(str(by_name["B float32 ieee"].get("cx"))) > corners[1][0], "six products: bound by arithmetic"
    assert float(str(by_name["A float32 high"].get("cx"))) < corners[1][0], "bound by memory"


def test_a_point_on_a_ceiling_lies_on_its_line(scripts: dict[str, ModuleType]) -> None:
    pictures = scripts["pictures"]
    on_both = [pictures.Point("slope", 10.0, 40e12, True), pictures.Point("level", 1000.0, 800e12, True)]
    picture = ElementTree.fromstring(pictures.roofline("x", 4e12, 800e12, on_both))
    corners = [tuple(map(float, c.split(","))) for c in str(picture.find(f"{SVG}polyline").get("points")).split()]
    circles = {c.findtext(f"{SVG}title"): c for c in picture.findall(f"{SVG}circle")}
    level, slope = circles["level"], circles["slope"]
    assert float(level.get("cy")) == pytest.approx(corners[2][1], abs=0.1)
    (x0, y0), (x1, y1) = corners[:2]
    x = float(slope.get("cx"))
    assert float(slope.get("cy")) == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=0.2)


def test_nothing_is_said_of_a_gpu_before_it_was_measured(
    scripts: dict[str, ModuleType], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = scripts["tables"]
    read_from(file.parent, tables, monkeypatch)
    wanted = tables.wanted_files()
    assert "## What you gain on a GPU" in wanted[tables.README]
    assert (
        "| A | float32 high | channels first | **1** | 3.5 | 1.6 (eager, channels_last) | **1.60** | 0.75 |"
        in (wanted[tables.README])
    )
    assert (
        "| A float32 high, channels first: efficiency | at least 0.77 | 0.75 | **no** |" in wanted[tables.PERFORMANCE]
    )
    assert tables.PICTURES / "cuda-roofline.svg" in wanted
    file.unlink()
    wanted = tables.wanted_files()
    assert "## What you gain on a GPU" not in wanted[tables.README]
    assert wanted[tables.PERFORMANCE].count(tables.NOT_YET) > len(scripts["cuda_tables"].SECTIONS)
    assert tables.PICTURES / "cuda-roofline.svg" not in wanted


def test_the_parts_are_measured_one_after_the_other(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forward, parts = scripts["cuda_forward"], scripts["parts"]
    asked = []

    def run(part):
        asked.append((part.workloads, part.rounds, part.device))
        return len(asked) - 1, [replace(ROW, workload=part.workloads[0])]

    monkeypatch.setattr(parts, "run", run)
    monkeypatch.setattr(forward, "RESULT", tmp_path / "rows.csv")
    assert forward.main([]) == 1, "the worst exit code"
    assert asked == [(("A",), forward.ROUNDS, "cuda"), (("B",), forward.ROUNDS, "cuda")]
    assert forward.main(["--only", "B", "--rounds", "3"]) == 2
    assert [row.workload for row in report.read_csv(tmp_path / "rows.csv")] == ["A", "B"]


@pytest.mark.skipif(nvrtc.missing() is not None, reason="cuda.core is not installed")
def test_the_rows_of_the_kernels_are_what_they_take_now(scripts: dict[str, ModuleType]) -> None:
    """Of every kernel but the compiler, which may be another one than when the rows were written."""
    written = scripts["tables"].rows_of("cuda-kernels")
    found = [{name: str(value) for name, value in row.items()} for row in scripts["cuda_kernels"].kernels()]
    for row in [*written, *found]:
        row.pop("compiler")
    assert written == found
    assert all(row["spilled_bytes"] == row["stack_bytes"] == "0" for row in found)
