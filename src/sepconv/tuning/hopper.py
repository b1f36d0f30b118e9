"""How the kernel for Hopper runs a problem: one configuration, by the shared memory that its parts take."""

import math
from dataclasses import dataclass

import torch

from sepconv.problem import Problem

SHARED_BYTES = 227 << 10  # what a block may have
TILE, CHUNK, BLOCK_OUTPUTS = 128, 16, 128  # as in kernels/cuda/problem.cuh
MOST_KEPT = 8  # chunks of a block's own, times rows that are kept in registers

_TERMS = {"ieee": 3, "high": 2, "tf32": 2}


@dataclass(frozen=True)
class CudaConfig:
    """How the kernel runs a problem.

    `cluster` blocks share the depthwise step, each with 128 output channels of its own. `stages` chunks of input and `slots`
    chunks of the product's operand are under way; `staged` boxes of results of 128 bytes by 64 channels are written by way of
    shared memory at a time, by each half of a block (0: results are written from registers).
    """

    cluster: int
    stages: int
    slots: int
    staged: int

    def __str__(self) -> str:
        blocks = f"clusters of {self.cluster} blocks" if self.cluster > 1 else "single blocks"
        return f"{blocks}, {self.stages} stages, {self.slots} slots, {self.staged} boxes staged"


def terms(problem: Problem) -> int:
    """Of how many 16-bit terms an operand of the product is a sum."""
    return _TERMS[problem.precision] if problem.dtype is torch.float32 else 1


def longest_sum(problem: Problem) -> int:
    """Over how many channels the kernel adds up: more, and what the matrix units cut off is too much of the error budget."""
    return 64 if terms(problem) == 3 else 256


def shared_bytes(problem: Problem, config: CudaConfig) -> int:
    """The shared memory of a block; mirrors kSharedBytes in kernels/cuda/problem.cuh."""
    kernel_h, kernel_w = (1, *problem.kernel_size)[-2:]
    own = own_chunks(problem, config.cluster)
    weights = terms(problem) * _up(own * config.cluster, 4) // 4 * BLOCK_OUTPUTS * 128
    taps = own * CHUNK * kernel_h * (kernel_w // 4 * 4 + 4) * 4
    rings = config.slots * _slot_bytes(problem) + config.stages * _stage_bytes(problem)
    return weights + rings + 2 * config.staged * 64 * 128 + taps + 16 * (config.stages + config.slots) + 1024


def own_chunks(problem: Problem, cluster: int) -> int:
    """How many chunks of channels each block of a cluster computes."""
    return math.ceil(math.ceil(problem.in_channels / CHUNK) / cluster)


def configuration(problem: Problem) -> CudaConfig | None:
    """The configuration for a problem; None where shared memory has no room for it.

    Wanted are many slots, then that all boxes are staged at once, then six stages.
    """
    cluster = next((size for size in (1, 2, 4) if problem.out_channels <= size * BLOCK_OUTPUTS), 0)
    if not cluster:
        return None
    boxes = TILE * problem.dtype.itemsize // 128
    for staged, slots, stages in _wishes(boxes, cluster):
        config = CudaConfig(cluster, stages, slots, staged)
        if shared_bytes(problem, config) <= SHARED_BYTES:
            return _with_more_stages(problem, config)
    return None


def _wishes(boxes: int, cluster: int) -> list[tuple[int, int, int]]:
    """Boxes staged, slots and stages, the best first."""
    half = max(1, boxes // 2)
    of_one = [(boxes, 8, 6), (half, 8, 5), (boxes, 4, 6), (boxes, 4, 4), (half, 4, 4), (0, 4, 3)]
    if cluster == 1:
        return of_one
    return [(boxes, 4 * cluster, 6), (half, 4 * cluster, 4), (0, 2 * cluster, 3)]


def _with_more_stages(problem: Problem, config: CudaConfig) -> CudaConfig:
    """As many stages as there is room for, twelve at most."""
    room = SHARED_BYTES - shared_bytes(problem, config)
    more = min(12 - config.stages, room // (_stage_bytes(problem) + 16))
    return CudaConfig(config.cluster, config.stages + max(0, more), config.slots, config.staged)


def _stage_bytes(problem: Problem) -> int:
    size = problem.dtype.itemsize
    return _up(CHUNK * (TILE + 2 * lead(problem)) * size, 128)


def _slot_bytes(problem: Problem) -> int:
    return terms(problem) * CHUNK * TILE * 2


def lead(problem: Problem) -> int:
    """The columns that are loaded before and behind a tile."""
    return 32 // problem.dtype.itemsize


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
