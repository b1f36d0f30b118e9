"""Write the tables and pictures of README and docs from the rows in benchmarks/results/; running it twice changes nothing.

python benchmarks/tables.py            # write
python benchmarks/tables.py --check    # exit code 1 where something would change
"""

import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "backward-memory.svg"
WIDTH, ROW, LEFT = 720, 44, 170


def main(words: list[str]) -> int:
    text = README.read_text()
    for name, table in (("fused-models", models_table()), ("call-overhead", overhead_sentence())):
        text = between(text, name, table)
    wanted = {README: text, PICTURE: memory_picture()}
    stale = [path for path, new in wanted.items() if not path.exists() or path.read_text() != new]
    if "--check" in words:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what benchmarks/results gives; run `python benchmarks/tables.py`")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    return 0


def rows_of(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def between(text: str, name: str, new: str) -> str:
    """The text with all between the two marks of this name replaced."""
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)"
    replaced, count = re.subn(pattern, lambda m: f"{m[1]}{new}\n{m[2]}", text, flags=re.DOTALL)
    assert count == 1, f"README.md has {count} places named {name}"
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


def memory_picture() -> str:
    """Two bars a workload: bytes kept for backward by the plain pair and by sepconv, each workload on its own scale."""
    rows = rows_of("backward-memory")
    height = 46 + ROW * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Memory kept between forward and backward</title>",
        "<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.pair{fill:#afb8c1}.ours{fill:#0969da}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.pair{fill:#6e7681}.ours{fill:#4493f8}}</style>",
        f'<rect class="pair" x="{LEFT}" y="12" width="12" height="12"/><text x="{LEFT + 18}" y="23">two convolutions</text>',
        f'<rect class="ours" x="{LEFT + 150}" y="12" width="12" height="12"/><text x="{LEFT + 168}" y="23">sepconv</text>',
    ]
    for i, row in enumerate(rows):
        y, pair, ours = 40 + i * ROW, int(row["pair_bytes"]), int(row["sepconv_bytes"])
        scale = (WIDTH - LEFT - 160) / pair
        out += [
            f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{row["workload"]}</text>',
            f'<rect class="pair" x="{LEFT}" y="{y}" width="{pair * scale:.1f}" height="14"/>',
            f'<text x="{LEFT + pair * scale + 8:.1f}" y="{y + 12}">{size(pair)}</text>',
            f'<rect class="ours" x="{LEFT}" y="{y + 16}" width="{ours * scale:.1f}" height="14"/>',
            f'<text x="{LEFT + ours * scale + 8:.1f}" y="{y + 28}">{size(ours)} ({pair / ours:.1f} times less)</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def size(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
