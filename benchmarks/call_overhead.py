"""What a call through sepconv costs above the two calls that a user writes, and what the import costs.

    python benchmarks/call_overhead.py

CPU, no grad, float32 (1, 4, 8, 8): the convolutions are small, so that the host's time shows. Microseconds: the least of many
interleaved rounds. The import: milliseconds above `import torch`, the least of seven processes.
"""

import csv
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import sepconv
from sepconv.device import describe

RESULT = Path(__file__).parent / "results" / "call-overhead.csv"
ROUNDS, CALLS = 300, 300
IMPORT = "import time, torch; t = time.perf_counter(); import sepconv; print(time.perf_counter() - t)"


def main() -> None:
    torch.set_num_threads(1)
    two, ours = call_times()
    imported = min(float(subprocess.check_output([sys.executable, "-c", IMPORT])) * 1e3 for _ in range(7))
    row = {
        "device": str(describe(torch.device("cpu"))),
        "two_calls_us": f"{two:.2f}",
        "sepconv_us": f"{ours:.2f}",
        "added_us": f"{ours - two:.2f}",
        "import_ms": f"{imported:.1f}",
        "torch": torch.__version__,
        "sepconv": sepconv.__version__,
    }
    RESULT.parent.mkdir(exist_ok=True)
    with RESULT.open("w", newline="") as file:
        rows = csv.DictWriter(file, list(row))
        rows.writeheader()
        rows.writerow(row)
    print(RESULT.read_text(), end="")


def call_times() -> tuple[float, float]:
    """Microseconds of the two calls, and of ours."""
    x, depthwise, pointwise = torch.randn(1, 4, 8, 8), torch.randn(4, 1, 3, 3), torch.randn(4, 4, 1, 1)
    calls = (
        lambda: F.conv2d(F.conv2d(x, depthwise, padding=1, groups=4), pointwise),
        lambda: sepconv.separable_conv2d(x, depthwise, pointwise, padding=1),
    )
    best = [float("inf")] * len(calls)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for i, call in enumerate(calls):
                call()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                best[i] = min(best[i], (time.perf_counter() - start) / CALLS * 1e6)
    return best[0], best[1]


if __name__ == "__main__":
    main()
