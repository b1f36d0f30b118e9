"""Write the tables and pictures of README and docs from the rows in benchmarks/results/; running it twice changes nothing.

python benchmarks/tables.py            # write
python benchmarks/tables.py --check    # exit code 1 where something would change
"""

import csv
import re
import sys
from pathlib import Path

import cpu_tables
import cuda_tables
import grid_tables
from pictures import Bar, bars
from table_parts import Goal, goal_table, markdown, number

from sepconv import settings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
PERFORMANCE, KERNELS = (ROOT / "docs" / f"{name}.md" for name in ("performance", "kernels"))
PICTURES = ROOT / "docs" / "pictures"
NOT_YET = "Not measured yet."
FIRST_CALL_GOALS = {"empty": 1500.0, "filled": 50.0}  # milliseconds on a GPU, by what the store holds


def main(words: list[str]) -> int:
    wanted = wanted_files()
    stale = [path for path, new in wanted.items() if not path.exists() or path.read_text() != new]
    if "--check" in words:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what benchmarks/results gives; run `python benchmarks/tables.py`")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    return 0


def wanted_files() -> dict[Path, str]:
    """Every file that is written, or has written parts, as it should be."""
    parts = {"fused-models": models_table(), "call-overhead": overhead_sentence(), "settings": settings_table()}
    wanted = {PICTURES / "backward-memory.svg": memory_picture()}
    page_parts = dict.fromkeys((*cpu_tables.SECTIONS, *cuda_tables.SECTIONS, *grid_tables.SECTIONS), NOT_YET)
    forward, conditions = (RESULTS / f"{name}.csv" for name in ("cpu-forward", "cpu-conditions"))
    if forward.exists():
        measured = cpu_tables.load(forward)
        others = cpu_tables.read_conditions(conditions) if conditions.exists() else []
        page_parts |= cpu_tables.page_sections(measured, others)
        wanted[PICTURES / "cpu-forward.svg"] = cpu_tables.picture(measured)
        parts["cpu-gain"] = cpu_tables.readme_section(measured)
    if (RESULTS / "cuda-forward.csv").exists():
        on_a_gpu = cuda_tables.load(RESULTS / "cuda-forward.csv")
        page_parts |= cuda_tables.page_sections(on_a_gpu)
        wanted[PICTURES / "cuda-roofline.svg"] = cuda_tables.picture(on_a_gpu)
        parts["cuda-gain"] = cuda_tables.readme_section(on_a_gpu)
    if (RESULTS / "cuda-grid.csv").exists():
        page_parts |= grid_tables.page_sections(grid_tables.load(RESULTS / "cuda-grid.csv"))
    page_parts["first-call"] = first_call_section() if (RESULTS / "first-call.csv").exists() else NOT_YET
    for page, sections in (
        (README, {"cpu-gain": NOT_YET, "cuda-gain": ""} | parts),
        (PERFORMANCE, page_parts),
        (KERNELS, {"cuda-kernels": kernels_table() if (RESULTS / "cuda-kernels.csv").exists() else NOT_YET}),
    ):
        text = page.read_text()
        for name, new in sections.items():
            text = between(text, name, new)
        wanted[page] = text
    return wanted


def rows_of(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def between(text: str, name: str, new: str) -> str:
    """The text with all between the two marks of this name replaced."""
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)"
    replaced, count = re.subn(pattern, lambda m: f"{m[1]}{new}\n{m[2]}", text, flags=re.DOTALL)
    assert count == 1, f"there are {count} places named {name}"
    return replaced


def models_table() -> str:
    lines = ["| model | pairs | fused | left alone, and why | error, fused / original |", "|---|--:|--:|---|--:|"]
    for row in rows_of("fused-models"):
        ratio = row["error_ratio"] or "nothing fused"
        lines.append(f"| {row['model']} | {row['pairs']} | {row['fused']} | {row['left_alone'] or '-'} | {ratio} |")
    return "\n".join(lines)


def overhead_sentence() -> str:
    (row,) = rows_of("call-overhead")
    return (
        f"Importing takes {row['import_ms']} ms above `import torch`. A call costs {row['added_us']} us above the two "
        f"calls that a user writes ({row['device'].removeprefix('cpu ')}, torch {row['torch']})."
    )


def first_call_section() -> str:
    """A row for each problem: with an empty store, with a filled one, and the call after; then the goals for GPUs."""
    found: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows_of("first-call"):
        key = tuple(row[name] for name in ("device", "workload", "dtype", "precision", "backend", "torch"))
        found.setdefault(key, {})[row["store"]] = row
    rows = []
    for (device, workload, dtype, precision, backend, torch), stores in found.items():
        kind = f"{dtype} {precision}" if device.startswith("cuda") and dtype == "float32" else dtype
        times = [number(float(stores[store]["ms"])) for store in FIRST_CALL_GOALS]
        rows.append([device, torch, workload, kind, backend, *times, number(float(stores["filled"]["ms_again"]))])
    head = ["device", "torch", "workload", "", "backend", "first, compiled", "first, from disk", "the next"]
    on_gpus = [row for row in rows_of("first-call") if row["kind"] == "cuda"]
    goals = [
        Goal(f"GPU: first call, store {store}: ms, largest", most_of(on_gpus, store), limit, at_most=True)
        for store, limit in FIRST_CALL_GOALS.items()
    ]
    return f"{markdown(head, rows, left=5)}\n\n{goal_table(goals)}"


def most_of(rows: list[dict[str, str]], store: str) -> float | None:
    return max((float(row["ms"]) for row in rows if row["store"] == store), default=None)


def kernels_table() -> str:
    """What the kernels for Hopper take of an SM: a row for each kind of the reference problems."""
    head = ["", "", "layout", "how", "registers", "shared memory, KiB", "blocks on an SM", "occupancy", "spilled"]
    rows = []
    for row in rows_of("cuda-kernels"):
        kind = f"{row['dtype']} {row['precision']}" if row["dtype"] == "float32" else row["dtype"]
        shared, share = int(row["shared_bytes"]) / 1024, float(row["occupancy"])
        how = [row["workload"], kind, cuda_tables.LAYOUTS[row["layout"]], row["configuration"]]
        rows.append([*how, row["registers"], f"{shared:.0f}", row["blocks"], f"{share:.0%}", row["spilled_bytes"]])
    return markdown(head, rows, left=4)


def settings_table() -> str:
    lines = ["| variable | what it says |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{setting.name}` | {setting.meaning} |" for setting in settings.ALL)])


def memory_picture() -> str:
    """Two bars a workload: bytes kept for backward by the plain pair and by sepconv, each workload on its own scale."""
    groups = {}
    for row in rows_of("backward-memory"):
        pair, ours = int(row["pair_bytes"]), int(row["sepconv_bytes"])
        less = f"sepconv, {size(ours)} ({pair / ours:.1f} times less)"
        groups[row["workload"]] = [Bar(pair, f"two convolutions, {size(pair)}"), Bar(ours, less, ours=True)]
    return bars("Memory kept between forward and backward", groups)


def size(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
