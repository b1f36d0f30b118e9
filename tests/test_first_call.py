"""The measurement of first calls: a process that compiles, then one that finds the kernel on disk."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from scripts import imported


@pytest.fixture
def scripts() -> Iterator[dict[str, ModuleType]]:
    with imported("benchmarks", "first_call", "tables") as found:
        yield found


@pytest.fixture
def measured(scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file after one measurement on the CPU; before it there were rows of a CPU and of a GPU."""
    script, file = scripts["first_call"], tmp_path / "first-call.csv"
    monkeypatch.setattr(script, "RESULT", file)
    monkeypatch.setitem(script.ASKED, "cpu", (("layer14@1", "float32", "ieee"),))
    times = [{"first": 40.0, "again": 1.0, "backend": "cuda"}] * 3
    row = script.row_of("cpu", ("A", "float32", "high"), "filled", times)
    other = row | {"kind": "cuda", "device": "cuda:0 NVIDIA H200", "store": "filled"}
    file.write_text(script.as_csv([row, other, other | {"store": "empty", "ms": 1600.0}]))
    script.main(["--device", "cpu", "--processes", "1"])
    return file


def test_the_second_process_finds_what_the_first_compiled(
    scripts: dict[str, ModuleType], measured: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = scripts["first_call"].rows_of(measured)
    assert [(row["kind"], row["store"]) for row in rows[:2]] == [("cuda", "filled"), ("cuda", "empty")]
    empty, filled = rows[2:]
    assert (empty["store"], filled["store"]) == ("empty", "filled")
    assert empty["backend"] == filled["backend"] == "cpu"
    assert float(empty["ms"]) > 2 * float(filled["ms"]) > 0, "one of them compiled"


def test_the_table_and_the_goals(
    scripts: dict[str, ModuleType], measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = scripts["tables"]
    monkeypatch.setattr(tables, "RESULTS", measured.parent)
    lines = tables.first_call_section().splitlines()
    assert lines[2].startswith("| cuda:0 NVIDIA H200 |")
    assert lines[2].endswith("| A | float32 high | cuda | 1600 | 40 | 1 |")
    assert "| layer14@1 | float32 | cpu |" in lines[3]
    assert "| GPU: first call, store empty: ms, largest | at most 1500 | 1600.00 | **no** |" in lines
    assert "| GPU: first call, store filled: ms, largest | at most 50 | 40.00 | yes |" in lines


def test_a_device_that_is_not_here_is_refused(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    script = scripts["first_call"]
    if script.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(script.sepconv.SepconvError, match="`device` is 'cuda', which cannot be used here"):
        script.main(["--device", "cuda"])
