"""A row of a benchmark, and where rows lie, for tests of what is done with rows."""

from pathlib import Path
from types import ModuleType

import pytest

from sepconv.bench.report import Row

ROW = Row(
    "A", "2-D, (1, 2) -> 3; x", 1, "cpu x", "float32", "channels_first", "forward", "huge", "sepconv", "eager (default)",
    1.25, 1.0, 1.5, 10, 20, 1e9, 1e12, "FMA", False, 0.1, 0.08, 1e-7, 2e-7, "sepconv 0; torch 1", 0.5,
)  # fmt: skip


def read_from(folder: Path, tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks/tables.py find a test's own rows in a folder, and beside them the repository's of what it always shows."""
    for name in ("backward-memory", "call-overhead", "fused-models"):
        (folder / f"{name}.csv").write_text((tables.RESULTS / f"{name}.csv").read_text())
    monkeypatch.setattr(tables, "RESULTS", folder)
