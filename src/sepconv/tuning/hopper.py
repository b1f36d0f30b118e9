"""How the kernel for Hopper runs a problem: one configuration, by the shared memory that its parts take."""

from dataclasses import dataclass, replace

import torch

from sepconv.problem import CHANNELS_LAST, Problem

SHARED_BYTES = 227 << 10  # what a block may have
TILE = 128  # as in kernels/cuda/problem.cuh
MOST_KEPT = 128  # channels, times rows that are kept in registers

_TERMS = {"ieee": 3, "high": 2, "tf32": 2}


@dataclass(frozen=True)
class CudaConfig:
    """How the kernel runs a problem.

    `cluster` blocks of `outputs` output channels each share the depthwise step. With `rolls` each input row is loaded once, and
    what it adds to output rows further down is kept in registers. `stages` parts of input and `slots` chunks of the product's
    operand are under way; `staged` boxes of results of 128 bytes by 64 rows are written by way of shared memory at a time, by
    each half of a block (0: results are written from registers).
    """

    cluster: int
    outputs: int
    rolls: bool
    stages: int
    slots: int
    staged: int

    def __str__(self) -> str:
        blocks = f"clusters of {self.cluster} blocks" if self.cluster > 1 else "single blocks"
        return (
            f"{blocks} of {self.outputs} output channels, {'rolling rows' if self.rolls else 'whole windows'}, "
            f"{self.stages} stages, {self.slots} slots, {self.staged} boxes staged"
        )


def terms(problem: Problem) -> int:
    """Of how many 16-bit terms an operand of the product is a sum."""
    return _TERMS[problem.precision] if problem.dtype is torch.float32 else 1


def longest_sum(problem: Problem, rolls: bool) -> int:
    """Over how many channels the kernel adds up.

    Of three terms 64 at most in the matrix units: of more, what these cut off is too much of the error budget. Longer sums are
    added up in registers, which are free only where the depthwise step keeps no rows (kernels/cuda/product.cuh).
    """
    return 64 if terms(problem) == 3 and (rolls or _channels_last(problem)) else 256


def shared_bytes(problem: Problem, config: CudaConfig) -> int:
    """The shared memory of a block; mirrors kSharedBytes in kernels/cuda/problem.cuh."""
    kernel_h, kernel_w = window_rows(problem), problem.kernel_size[-1]
    own = own_channels(problem, config.cluster)
    if terms(problem) == 3 and not config.rolls and not _channels_last(problem):  # as float32
        weights = own * config.cluster * config.outputs * 4
    else:
        weights = terms(problem) * _up(own * config.cluster, 64) // 64 * config.outputs * 128
    taps = own * kernel_h * (kernel_w + 1 if _channels_last(problem) else kernel_w // 4 * 4 + 4) * 4
    rings = config.slots * _slot_bytes(problem) + config.stages * _stage_bytes(problem, config.rolls)
    barriers = 16 * (config.stages + config.slots)
    return weights + rings + 2 * config.staged * 64 * 128 + taps + config.outputs * 4 + barriers + 1024


def chunk(problem: Problem) -> int:
    """How many channels are handed over to the product at a time."""
    return 64 if _channels_last(problem) else 16


def part(problem: Problem) -> int:
    """How many channels are loaded at a time: with channels last, 128 bytes of each pixel."""
    return 128 // problem.dtype.itemsize if _channels_last(problem) else chunk(problem)


def own_channels(problem: Problem, cluster: int) -> int:
    """Of how many channels each block of a cluster computes the depthwise step: whole chunks."""
    return _up(problem.in_channels, chunk(problem) * cluster) // cluster


def configuration(problem: Problem) -> CudaConfig | None:
    """The configuration for a problem; None where shared memory or registers have no room for it.

    Wanted are rows that are loaded once, many slots, then that all boxes are staged at once, then stages.
    """
    for rolls in (True, False):
        for outputs in _block_outputs(problem, rolls):
            cluster = next((size for size in (1, 2, 4) if problem.out_channels <= size * outputs), 0)
            if not cluster or problem.in_channels > longest_sum(problem, rolls):
                continue
            if rolls and not _can_roll(problem, cluster):
                continue
            for staged, slots, stages in _wishes(problem, cluster):
                config = CudaConfig(cluster, outputs, rolls, stages, slots, staged)
                if shared_bytes(problem, config) <= SHARED_BYTES:
                    return _with_more_stages(problem, config)
    return None


def _can_roll(problem: Problem, cluster: int) -> bool:
    kept = window_rows(problem) - 1
    return kept > 0 and kept * own_channels(problem, cluster) <= MOST_KEPT


def _block_outputs(problem: Problem, rolls: bool) -> tuple[int, ...]:
    """The output channels of a block, the best first: more take registers that rows or another channel would need."""
    if problem.dtype.itemsize == 2 and problem.out_channels > 128 and not rolls and not _channels_last(problem):
        return (256, 128)
    return (128,)


def _wishes(problem: Problem, cluster: int) -> list[tuple[int, int, int]]:
    """Boxes staged, slots and stages, the best first. With channels last a slot is four times as large."""
    boxes = TILE * problem.dtype.itemsize // 128
    half = max(1, boxes // 2)
    if _channels_last(problem):
        found = [(boxes, 2, 4), (half, 2, 4), (half, 2, 3), (0, 2, 2), (half, 1, 3), (0, 1, 2)]
        return [(staged, slots * cluster, stages) for staged, slots, stages in found]
    if cluster == 1:
        return [(boxes, 8, 6), (half, 8, 4), (boxes, 4, 6), (boxes, 4, 4), (half, 4, 4), (0, 4, 3), (0, 2, 2)]
    two, four = 2 * cluster, 4 * cluster
    return [(boxes, four, 4), (half, four, 4), (half, two, 4), (0, two, 3), (0, two, 2), (0, cluster, 2)]


def _with_more_stages(problem: Problem, config: CudaConfig) -> CudaConfig:
    """As many stages as there is room for, twelve at most; the even number below, for two teams (kernels/cuda/problem.cuh)."""
    room = SHARED_BYTES - shared_bytes(problem, config)
    stages = min(12, config.stages + room // (_stage_bytes(problem, config.rolls) + 16))
    if not _channels_last(problem) and stages > 3:
        stages -= stages % 2
    return replace(config, stages=max(stages, config.stages))


def _stage_bytes(problem: Problem, rolls: bool) -> int:
    return _up(part(problem) * box_rows(problem, rolls) * box_columns(problem) * problem.dtype.itemsize, 128)


def _slot_bytes(problem: Problem) -> int:
    return terms(problem) * chunk(problem) * TILE * 2


def window_rows(problem: Problem) -> int:
    """The rows of the window; in 1-D there is one."""
    return (1, *problem.kernel_size)[-2]


def box_rows(problem: Problem, rolls: bool) -> int:
    """The rows that are loaded at a time."""
    return 1 if rolls else window_rows(problem)


def box_columns(problem: Problem) -> int:
    """The columns that are loaded for a tile, with those before and behind it."""
    return TILE + (problem.kernel_size[-1] - 1 if _channels_last(problem) else 2 * lead(problem))


def lead(problem: Problem) -> int:
    """The columns that are loaded before and behind a tile where the pixels of a row lie together."""
    return 32 // problem.dtype.itemsize


def _channels_last(problem: Problem) -> bool:
    return problem.layout == CHANNELS_LAST


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
