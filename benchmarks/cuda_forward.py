"""The forward pass on an NVIDIA GPU beside every peer: all that docs/performance.md shows of it, in about 6 minutes.

    python benchmarks/cuda_forward.py [--only A B] [--rounds 5]

The two reference problems in every dtype, precision and layout, each by one `sepconv bench` in a process of its own, in which
all providers take turns. Rows go to results/cuda-forward.csv after each part; `--only` and `--rounds` put theirs in the place
of old ones. Leave the machine alone meanwhile. Exit code 1: a result is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from parts import Part, run_all, say

RESULT = Path(__file__).parent / "results" / "cuda-forward.csv"
WORKLOADS = ("A", "B")
ROUNDS = 24  # a multiple of 2, 3 and 4 providers: each is the first of as many rounds as the others


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", choices=WORKLOADS, help="of the workloads above")
    parser.add_argument("--rounds", type=int, help="of each problem, instead of the usual number")
    asked = parser.parse_args(words)
    parts = [Part(name, (name,), asked.rounds or ROUNDS, device="cuda") for name in asked.only or WORKLOADS]
    worst = run_all(parts, RESULT, keep=bool(asked.only or asked.rounds))
    say("done; now `python benchmarks/tables.py`")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
