"""Tables, goals and pictures on rows whose figures are known; and that README and docs are what the rows in the tree give."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rows import read_from
from scripts import ROOT, imported

from sepconv import settings
from sepconv.bench import report
from sepconv.bench.report import Row
from sepconv.bench.workloads import WORKLOADS, workload

PROBLEM = "2-D forward (1, 8, 4x4) -> 9, kernel 3x3, stride (2, 2), padding ((1, 1), (1, 1)); depthwise relu + residual"
ROW = Row(
    "A/16", PROBLEM, 1, "cpu x (avx2, 2 threads)", "float32", "channels_first", "forward", "huge", "sepconv", "cpu (default)",
    2.0, 1.9, 2.1, 10, 20, 1e9, 1e12, "FMA", False, 1.0, 0.5, 1e-7, 4e-7, "sepconv 0; torch 1",
)  # fmt: skip


@pytest.fixture
def scripts() -> Iterator[dict[str, ModuleType]]:
    with imported("benchmarks", "cpu_conditions", "cpu_forward", "cpu_tables", "parts", "tables") as found:
        yield found


def rows_of(name: str, ours: float, peers: dict[str, float], **fields: object) -> list[Row]:
    """The rows of one problem: our time, and those of peers."""
    own = replace(ROW, workload=name, ms=ours, efficiency=1.0 / ours, **fields)
    return [own, *(replace(own, provider=peer, plan="", ms=ms, efficiency=1.0 / ms) for peer, ms in peers.items())]


@pytest.fixture
def rows() -> list[Row]:
    """A/16 in four conditions, and a model of two problems, one of which it has three times; in two dtypes."""
    found = [
        *rows_of("A/16", 2.0, {"eager": 6.0, "onnxruntime": 3.0}),
        *rows_of("A/16", 3.0, {"eager": 30.0}, pages="small"),
        *rows_of("A/16", 1.25, {"eager": 5.0}, pages="huge, kept"),
        *rows_of("A/16", 2.5, {"eager": 5.0}, pages="huge; new results"),
    ]
    for dtype in ("float32", "bfloat16"):
        found += rows_of("xception", 1.0, {"eager": 2.0, "compile": 4.0}, dtype=dtype)
        found += rows_of("xception", 1.0, {"eager": 9.0, "compile": 8.0}, dtype=dtype, problem=f"{PROBLEM} 2", count=3)
    return found


CONDITIONS = """kind,workload,case,value,p20,p80,unit
threads,B/16,1 thread,3.8,3,4,ms
threads,B/16,2 threads,2.0,2,2,ms
alternation,layer14@1,fused,10,9,11,ms
alternation,layer14@1,eager,30,29,31,ms
alternation,layer14@1,in turn,22,21,23,ms
"alternation, one thread",layer14@1,fused,20,9,11,ms
"alternation, one thread",layer14@1,eager,60,29,31,ms
"alternation, one thread",layer14@1,in turn,41,21,23,ms
memory,A/16,result,1048576,1,1,bytes
memory,A/16,weights,1048576,1,1,bytes
memory,A/16,peak,5242880,1,1,bytes
"""


@pytest.fixture
def results(tmp_path: Path, rows: list[Row]) -> Path:
    report.write_csv(rows, tmp_path / "cpu-forward.csv")
    (tmp_path / "cpu-conditions.csv").write_text(CONDITIONS)
    return tmp_path


def test_goals_are_figures_of_the_rows(scripts: dict[str, ModuleType], results: Path) -> None:
    tables = scripts["cpu_tables"]
    measured = tables.load(results / "cpu-forward.csv")
    goals = {goal.what: goal for goal in tables.goals(measured, tables.read_conditions(results / "cpu-conditions.csv"))}
    found = {what: goal.found for what, goal in goals.items()}
    assert found["A/16: time / best peer"] == pytest.approx(2 / 3)
    assert found["models: time / best peer, geometric mean"] == pytest.approx(0.25)
    assert found["models: time / best peer, largest"] == 0.5
    assert found["A/16: efficiency"] == 0.5
    assert found["A/16, pages present: efficiency"] == 0.8
    assert found["A/16, default allocator: eager time / ours"] == 10
    assert found["A/16, results in new memory: time / best peer"] == 0.5
    assert found["A/16, results in new memory: efficiency"] == 0.4
    assert found["models in bfloat16: time / best PyTorch peer, geometric mean"] == pytest.approx(0.25)
    assert found["all rows: error / allowed, largest"] == pytest.approx(0.25)
    assert found["B/16: one thread's time / two threads'"] == pytest.approx(1.9)
    in_turn = "layer14@1: loss of fused and eager in turn, two threads' / one's"
    assert found[in_turn] == pytest.approx(1.1 / 1.025)
    assert found["memory of a call beyond result and weights, MiB, largest"] == 3
    assert found["models in float16: time / best PyTorch peer, geometric mean"] is None
    assert not goals[in_turn].is_reached
    assert goals["A/16: efficiency"].is_reached
    text = tables.goal_table(list(goals.values()))
    assert "| B/16: efficiency | at least 0.8 | not measured | - |" in text
    assert "| A/16: efficiency | at least 0.5 | 0.50 | yes |" in text


def test_a_model_is_summed_and_its_gain_a_geometric_mean(scripts: dict[str, ModuleType], results: Path) -> None:
    tables = scripts["cpu_tables"]
    lines = tables.workload_table(tables.load(results / "cpu-forward.csv"), "float32").splitlines()
    assert lines[0].count("|") == lines[1].count("|")
    assert lines[2] == "| A/16 | **2** | 6 | - | 3 | **1.50** | 0.50 |"
    assert lines[3] == "| xception | **4** | 29 | 28 | - | **4.00** | 1.00 |"


def test_every_row_is_in_the_page(scripts: dict[str, ModuleType], results: Path) -> None:
    tables = scripts["cpu_tables"]
    sections = tables.page_sections(tables.load(results / "cpu-forward.csv"), [])
    assert set(sections) == set(tables.SECTIONS) - {"conditions"}
    assert "| A/16 | (1, 8, 4x4) -> 9, 3x3, stride 2, residual | 2 | 1.9 to 2.1 | 6 |" in sections["rows"]
    assert "residual (3 times)" in sections["rows"]
    assert "PyTorch's tensors in small pages" in sections["rows"]
    assert "PyTorch's tensors in huge pages, sepconv's results in new memory" in sections["rows"]
    assert sections["environment"].startswith(
        "x (avx2, 2 threads); sepconv 0, torch 1, PyTorch's tensors in huge pages"
    )


def test_the_picture_is_svg_with_a_bar_for_each_provider(scripts: dict[str, ModuleType], results: Path) -> None:
    tables = scripts["cpu_tables"]
    picture = ElementTree.fromstring(tables.picture(tables.load(results / "cpu-forward.csv")))
    bars = picture.findall("{http://www.w3.org/2000/svg}rect")
    assert [bar.get("class") for bar in bars] == ["ours", "peer", "peer"] * 2
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[1] == max(widths)
    assert widths[0] == pytest.approx(widths[1] / 3, abs=0.1)


def test_what_is_not_measured_says_so_and_what_is_replaces_it(
    scripts: dict[str, ModuleType], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = scripts["tables"]
    read_from(results, tables, monkeypatch)
    wanted = tables.wanted_files()
    assert "| A/16 | **2** |" in wanted[tables.README]
    assert "(docs/pictures/cpu-forward.svg)" in wanted[tables.README]
    assert "4 MiB" not in wanted[tables.README]
    assert "peak: 5 MiB" in wanted[tables.PERFORMANCE]
    assert tables.PICTURES / "cpu-forward.svg" in wanted
    (results / "cpu-forward.csv").unlink()
    wanted = tables.wanted_files()
    assert tables.NOT_YET in wanted[tables.README]
    assert wanted[tables.PERFORMANCE].count(tables.NOT_YET) >= len(scripts["cpu_tables"].SECTIONS)
    assert tables.PICTURES / "cpu-forward.svg" not in wanted


def test_readme_and_docs_are_what_the_rows_in_the_tree_give() -> None:
    words = [sys.executable, "benchmarks/tables.py", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_every_setting() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"^\| `(SEPCONV_\w+)` \|", readme, re.MULTILINE) == [setting.name for setting in settings.ALL]


def test_the_parts_of_the_measurement(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = scripts["cpu_forward"]
    assert all(workload(name).entries for part in forward.PARTS for name in part.workloads)
    assert scripts["cpu_tables"].GRID == forward.GRID
    assert set(scripts["cpu_conditions"].THREADS) <= {*forward.SINGLE}
    assert [p.title for p in forward.wanted(["B/16"], 3)] == ["float32", "bfloat16", "float16"]
    assert {p.rounds for p in forward.wanted(["B/16"], 3)} == {3}
    assert {p.workloads for p in forward.wanted(["A/16", "B/16"], None)} == {("A/16", "B/16"), ("A/16",)}


def test_a_part_runs_and_its_rows_come_back(scripts: dict[str, ModuleType]) -> None:
    parts = scripts["parts"]
    code, rows = parts.run(parts.Part("tiny", ("tiny",), 1, ("--peers", "eager")))
    assert code == 0
    assert len(rows) == 2 * len(WORKLOADS["tiny"])


def test_conditions_are_measured_on_small_problems(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = scripts["cpu_conditions"]
    for name in ("THREADS", "ALTERNATION", "MEMORY"):
        monkeypatch.setattr(conditions, name, ("tiny",))
    timer = conditions.Timer(conditions.CPU)
    rows = [*conditions.threads(timer, 1), *conditions.alternation(timer, 1), *conditions.memory()]
    assert [row["case"] for row in rows][:5] == ["1 thread", "2 threads", "fused", "eager", "in turn"]
    values = {row["case"]: row["value"] for row in rows}
    assert values["result"] == 2 * 7 * 19 * 4
    assert all(value >= 0 for value in values.values())
    text = conditions.as_csv(rows)
    assert text.splitlines()[0].startswith("kind,workload,case,value")
