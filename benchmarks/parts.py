"""The parts of a long measurement: each is one `sepconv bench` in a process of its own."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sepconv.bench import report


@dataclass(frozen=True)
class Part:
    """One process: what is measured on which device, with which words of `sepconv bench` and in which environment."""

    title: str
    workloads: tuple[str, ...]
    rounds: int
    words: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"


def run_all(parts: Sequence[Part], result: Path, *, keep: bool) -> int:
    """Measure one part after the other, with the rows in the file after each; the worst exit code.

    `keep` says whether the file's old rows stay where no new ones are about the same.
    """
    rows = report.read_csv(result) if keep and result.exists() else []
    start, worst = time.monotonic(), 0
    for number, part in enumerate(parts, 1):
        say(f"{number}/{len(parts)} {part.title}, {time.monotonic() - start:.0f} s so far")
        code, found = run(part)
        worst = max(worst, code)
        rows = report.merged(rows, found)
        report.write_csv(rows, result)
    return worst


def run(part: Part) -> tuple[int, list[report.Row]]:
    """The exit code of a part, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        rounds = ["--rounds", str(part.rounds), "--csv", str(file)]
        words = ["bench", *part.workloads, "--device", part.device, *part.words, *rounds]
        code = subprocess.run([sys.executable, "-m", "sepconv", *words], env=os.environ | part.environment).returncode
        return code, report.read_csv(file) if file.exists() else []


def say(text: str) -> None:
    print(f"--- {text}", file=sys.stderr, flush=True)
