"""The table that dispatch looks into: from rows whose times are known."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rows import ROW
from scripts import imported

from sepconv.bench import report
from sepconv.tuning import nearest

KERNEL_MS, PEER_MS, EAGER_MS = 0.02, 0.01, 0.04


def test_the_eager_backend_counts_where_it_was_measured_and_pytorch_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with imported("benchmarks", "grid", "hopper_table") as scripts:
        table = scripts["hopper_table"]
        entries = [item.entry for item in scripts["grid"].items()]
    singles = [entry.problem for entry in entries if entry.problem.dtype is torch.float32][:2]
    bfloat16 = next(entry.problem for entry in entries if entry.problem.dtype is torch.bfloat16)

    def row(problem: object, provider: str, ms: float) -> report.Row:
        dtype = str(problem.dtype).removeprefix("torch.")
        return replace(ROW, problem=str(problem), provider=provider, ms=ms, dtype=dtype)

    known = [*singles, bfloat16]
    kernel = [r for p in known for r in (row(p, "sepconv", KERNEL_MS), row(p, "eager", PEER_MS))]
    for name, rows in (("KERNEL", kernel), ("EAGER", [row(singles[0], "sepconv", EAGER_MS)])):
        report.write_csv(rows, tmp_path / f"{name}.csv")
        monkeypatch.setattr(table, name, tmp_path / f"{name}.csv")
    monkeypatch.setattr(nearest, "TABLE", tmp_path / "table.csv")
    assert table.main() == 0
    assert "2 problems, of which the kernel is slower on 1" in capsys.readouterr().out
    found = nearest.measured(tmp_path / "table.csv")
    assert [one.ratio for one in found] == [KERNEL_MS / EAGER_MS, KERNEL_MS / PEER_MS]
    assert [one.sizes for one in found] == [nearest.sizes_of(problem) for problem in singles]
    nearest.measured.cache_clear()
