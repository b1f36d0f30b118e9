"""The forward pass on the CPU beside every installed peer: all that docs/performance.md shows, in about 20 minutes.

    python benchmarks/cpu_forward.py [--only A/16 B/16] [--rounds 5]

Each part is one `sepconv bench` in a process of its own, in which all providers take turns:

- float32, bfloat16 and float16 on the reference problems, single layers, and the pairs of four models;
- A/16 as most users have it, with the pages that PyTorch's default allocator gives;
- A/16 where sepconv keeps no memory of earlier results, so that every page of every result is new;
- A/16 where the C library keeps freed memory, so that a result finds its pages present.

Then benchmarks/cpu_conditions.py, unless only some workloads are asked for. Rows go to results/cpu-forward.csv after each part;
`--only` and `--rounds` put theirs in the place of old ones. Leave the machine alone meanwhile. Exit code 1: a result is wrong.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from parts import Part, run_all, say

HERE = Path(__file__).parent
RESULT = HERE / "results" / "cpu-forward.csv"
SINGLE = ("A/16", "B/16", "layer56", "layer14", "layer14@1")
GRID = ("mobilenet_v1", "mobilenet_v1@8", "xception", "quartznet5x5")
TORCH_PEERS = "eager,eager_channels_last,compile"
# glibc's: nothing is mapped for one block alone, and nothing is given back (mallopt(3)).
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


PARTS = (
    # As often as there are providers, or a multiple: each is the first of as many rounds as the others.
    Part("float32", SINGLE + GRID, 18),
    Part("bfloat16", SINGLE + GRID, 8, ("--dtype", "bfloat16", "--peers", TORCH_PEERS)),
    Part("float16", SINGLE + GRID, 8, ("--dtype", "float16", "--peers", TORCH_PEERS)),
    Part("default allocator", ("A/16",), 18, ("--default-allocator",)),
    Part("new results", ("A/16",), 18, (), {"SEPCONV_KEEP_RESULTS": "0"}),
    Part("pages present", ("A/16",), 18, (), KEEPING),
)


def main(words: Sequence[str]) -> int:
    asked = parsed(words)
    start = time.monotonic()
    worst = run_all(list(wanted(asked.only, asked.rounds)), RESULT, keep=bool(asked.only or asked.rounds))
    if not asked.only:
        say(f"other conditions, {time.monotonic() - start:.0f} s so far")
        rounds = [str(asked.rounds)] if asked.rounds else []
        worst = max(worst, subprocess.run([sys.executable, HERE / "cpu_conditions.py", *rounds]).returncode)
    say(f"done in {time.monotonic() - start:.0f} s; now `python benchmarks/tables.py`")
    return worst


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", choices=SINGLE + GRID, help="of the workloads above")
    parser.add_argument("--rounds", type=int, help="of each problem, instead of the usual number")
    return parser.parse_args(words)


def wanted(only: Sequence[str] | None, rounds: int | None) -> Iterator[Part]:
    """The parts with what of them is asked for; those that keep nothing are left out."""
    for part in PARTS:
        names = tuple(name for name in part.workloads if not only or name in only)
        if names:
            yield Part(part.title, names, rounds or part.rounds, part.words, part.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
