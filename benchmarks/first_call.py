"""What the first call of a process takes: with an empty store, where a kernel is compiled, and with one that has it on disk.

    python benchmarks/first_call.py [--device cpu] [--processes 3]

Each process makes its tensors first, so that PyTorch and, on a GPU, CUDA's context are there; then it times its first call and
the one after. All that sepconv does for a first call counts: what it imports then, the look into the store, compiling, loading.
Its modules have their bytecode, as an installation has it. Milliseconds, the median of the processes, each pair of which has a
store of its own. Rows go to results/first-call.csv in the place of those of the same kind of device.
"""

import argparse
import compileall
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import sepconv
from sepconv import settings
from sepconv.bench import baselines, data, report
from sepconv.bench.workloads import workload
from sepconv.device import describe, usable
from sepconv.dispatch import plan
from sepconv.problem import DTYPE_NAMES

RESULT = Path(__file__).parent / "results" / "first-call.csv"
# Workload, dtype, precision.
ASKED = {
    "cpu": (("A/16", "float32", "ieee"), ("layer14@1", "float32", "ieee"), ("B/16", "bfloat16", "ieee")),
    "cuda": (("A", "float32", "high"), ("A", "float32", "ieee"), ("A", "float16", "ieee"), ("B", "float32", "high")),
}
EMPTY, FILLED = "empty", "filled"
Row = dict[str, object]


def main(words: Sequence[str]) -> None:
    if words[:1] == ["child"]:
        print(json.dumps(times_of_this_process(*words[1:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=ASKED, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=3, help="with an empty store, and as many with a filled one")
    asked = parser.parse_args(words)
    usable(asked.device)
    compileall.compile_dir(Path(sepconv.__file__).parent, quiet=1)
    old = [row for row in rows_of(RESULT) if row["kind"] != asked.device] if RESULT.exists() else []
    report.write_at_once(RESULT, as_csv([*old, *measured(asked.device, asked.processes)]))
    print(RESULT.read_text(), end="")


def measured(kind: str, processes: int) -> Iterator[Row]:
    """Two rows for each problem: with an empty store, and with a filled one."""
    for words in ASKED[kind]:
        found: dict[str, list[dict[str, float]]] = {EMPTY: [], FILLED: []}
        for _ in range(processes):
            with tempfile.TemporaryDirectory() as folder:
                for store in found:
                    found[store].append(times_of_a_process(folder, kind, *words))
        for store, times in found.items():
            yield row_of(kind, words, store, times)


def times_of_a_process(folder: str, *words: str) -> dict[str, float]:
    command = [sys.executable, __file__, "child", *words]
    environment = os.environ | {settings.CACHE_DIR.name: folder}
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(printed)
    return found


def times_of_this_process(kind: str, name: str, dtype: str, precision: str) -> dict[str, object]:
    """Milliseconds of the first call and of the one after it, and what ran them."""
    device = torch.device(kind)
    problem = workload(name, DTYPE_NAMES[dtype], precision=precision).entries[0].problem
    with torch.inference_mode():
        call = baselines.OURS.prepare(data.make(problem, device))
        first, again = (milliseconds(call, kind) for _ in range(2))
    return {"first": first, "again": again, "backend": plan(problem, describe(device)).backend.name}


def milliseconds(call: baselines.Call, kind: str) -> float:
    finish = torch.cuda.synchronize if kind == "cuda" else lambda: None
    finish()
    start = time.perf_counter()
    call()
    finish()
    return (time.perf_counter() - start) * 1e3


def row_of(kind: str, words: Sequence[str], store: str, times: Sequence[dict[str, float]]) -> Row:
    firsts = [found["first"] for found in times]
    return {
        "kind": kind,
        "device": str(describe(torch.device(kind))),
        **dict(zip(("workload", "dtype", "precision"), words, strict=True)),
        "backend": times[0]["backend"],
        "store": store,
        "ms": statistics.median(firsts),
        "ms_least": min(firsts),
        "ms_most": max(firsts),
        "ms_again": statistics.median(found["again"] for found in times),
        "processes": len(times),
        "torch": torch.__version__,
        "sepconv": sepconv.__version__,
    }


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def as_csv(rows: Sequence[Row | dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
