"""The grid on an NVIDIA GPU: the distinct pairs of seven models at two batches, in which forms, and beside which peers.

All of them in float32 with channels first (in the precision that PyTorch's own switch stands for, "high") and in float16
with channels last; a fixed quarter in bfloat16 too. In 1-D, where PyTorch has one layout, channels are first. Every problem
meets eager PyTorch in both layouts; a fixed 40 of those with the larger batch meet torch.compile.
"""

from dataclasses import dataclass
from functools import cache

import torch

from sepconv.bench.workloads import Entry, workload
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

# Models, each with a small and a large batch.
BATCHES = {
    "mobilenet_v1": (1, 64),
    "mobilenet_v2": (1, 64),
    "mobilenet_v4": (1, 64),
    "xception41": (1, 64),
    "xception": (1, 64),
    "quartznet15x5": (1, 32),
    "conformer": (1, 32),
}
NAMES = tuple(f"{model}@{batch}" for model, batches in BATCHES.items() for batch in batches)
BFLOAT16_EVERY = 4  # of the problems in float16
COMPILED = 40


@dataclass(frozen=True)
class Item:
    """One problem of a workload, whose name has the batch, and the names of the peers beside it."""

    workload: str
    entry: Entry
    peers: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others, as a row has it: `workload` and `problem`."""
        return self.workload, str(self.entry.problem)


@cache
def items() -> tuple[Item, ...]:
    """All of the grid, one workload after the other."""
    found: list[tuple[str, Entry]] = []
    halves = 0
    for name in NAMES:
        layout = CHANNELS_LAST if workload(name).entries[0].problem.rank > 1 else CHANNELS_FIRST
        half, other = (workload(name, dtype, layout).entries for dtype in (torch.float16, torch.bfloat16))
        quarter = [entry for place, entry in enumerate(other, halves) if place % BFLOAT16_EVERY == 0]
        halves += len(half)
        entries = (*workload(name, torch.float32, CHANNELS_FIRST, "high").entries, *half, *quarter)
        found += [(name, entry) for entry in entries]
    compiled = _compiled(found)
    return tuple(
        Item(name, entry, (*_eager(entry), *["compile"] * (place in compiled)))
        for place, (name, entry) in enumerate(found)
    )


def _eager(entry: Entry) -> tuple[str, ...]:
    """Eager PyTorch in the problem's own layout and, where there is one, in the other."""
    if entry.problem.rank == 1:
        return ("eager",)
    other = CHANNELS_FIRST if entry.problem.layout == CHANNELS_LAST else CHANNELS_LAST
    return ("eager", f"eager_{other}")


def _compiled(found: list[tuple[str, Entry]]) -> set[int]:
    """The places of those that meet torch.compile: spread evenly over all in float32 and float16 with the larger batch."""
    large = [
        place
        for place, (_, entry) in enumerate(found)
        if entry.problem.batch > 1 and entry.problem.dtype is not torch.bfloat16
    ]
    return {large[turn * len(large) // COMPILED] for turn in range(COMPILED)}
