"""Which configurations of the kernel for Hopper suit a problem, the best first, and the one that is taken."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from sepconv.problem import CHANNELS_LAST, Problem
from sepconv.tuning import patches
from sepconv.tuning.hopper import (
    PASS,
    TILE,
    CudaConfig,
    can_gather,
    chunk,
    chunks_together,
    columns_read,
    copied_in_rows,
    has_many_taps,
    legal,
    most_channels,
    most_read,
    shared_bytes,
    stage_bytes,
    terms,
    up,
    window_rows,
)
from sepconv.tuning.patches import GROUP_ROWS, SHARED_BYTES

MOST_ABOVE_LEAST = (1.25, 2.0)  # times the least cost: among such patches others do not matter, and then among such
WEIGHTS = 64  # pixels, whose products cost as much as the weights that a gathered tile takes
MOST_KEPT = 128  # channels, times rows that are kept in registers


def configuration(problem: Problem, units: int) -> CudaConfig | None:
    """The configuration for a problem on a GPU of so many SMs: the best that the kernel can run, or None."""
    for config in candidates(problem, units):
        if legal(problem, config):
            return with_more_stages(problem, config)
    return None


def candidates(problem: Problem, units: int) -> Iterator[CudaConfig]:
    """Configurations for a problem, the best first; not all of them are legal."""
    if not copied_in_rows(problem) or columns_read(problem) > most_read(problem):
        yield from _gathered(problem)
        return
    yield from _resident(problem, rolls=True)
    if problem.layout == CHANNELS_LAST:
        yield from _patched(problem)
        return
    if not _fills_tiles(problem, TILE // 2) and max(problem.stride) == 1:
        yield from _gathered(problem)
    yield from _in_rows(problem, units)
    yield from _gathered(problem)


def _in_rows(problem: Problem, units: int) -> Iterator[CudaConfig]:
    """Whole windows of tiles that are parts of rows, with channels first.

    Where there are no more tiles than SMs, weights that pass by spread each over its output channels: 512 -> 512 channels of 800
    frames with 75 taps take 45 us instead of 78, 32 times as many 471 instead of 227. Where two blocks hold all weights, they
    write results by way of shared memory and load the residual so: 256 -> 256 channels, 33 taps, 64 us instead of 83
    (float32 as "high", H200, 2026-11-30).
    """
    row_tiles = math.ceil(problem.out_size[-1] / (TILE // 2)) * problem.batch * math.prod(problem.out_size[:-1])
    passing = [config for config in _passing_by(problem) if _can_stream(problem)]
    if row_tiles * math.ceil(problem.out_channels / PASS) <= units:
        yield from (config for config in passing if config.tile == TILE // 2)
    resident = [config for config in _resident(problem, rolls=False) if config.outputs == PASS]
    yield from (config for config in resident if config.cluster == 1)
    if problem.epilogue.residual or terms(problem) == 2:
        tile = TILE // 2 if terms(problem) == 2 else TILE
        yield from (config for config in resident if config.cluster == 2 and config.tile == tile)
    if _can_stream(problem):
        yield from _streaming(problem)
    yield from _resident(problem, rolls=False)
    yield from passing


def _resident(problem: Problem, rolls: bool) -> Iterator[CudaConfig]:
    """The weights stay in one block, or in those of a cluster."""
    if problem.in_channels > most_channels(problem, rolls):
        return
    for outputs in _block_outputs(problem, rolls):
        cluster = next((size for size in (1, 2, 4) if problem.out_channels <= size * outputs), 0)
        if not cluster or (rolls and not _can_roll(problem, cluster)):
            continue
        for tile in (TILE,) if rolls else _tiles(problem):
            for staged, slots, stages in _wishes(problem, cluster, outputs, tile):
                yield CudaConfig(cluster, outputs, rolls, stages, slots, staged, tile=tile)


def _streaming(problem: Problem) -> Iterator[CudaConfig]:
    """The weights stream through single blocks; the operand of a whole tile stays for all output channels."""
    chunks = math.ceil(problem.in_channels / chunk(problem))
    sizes = _tiles(problem) if terms(problem) < 3 else (TILE // 2,)  # a whole tile of three terms has no registers
    for tile in sizes:
        for tiles, weight_stages, stages in _stream_wishes(problem):
            slots = max(chunks, int(tiles * chunks) // 4 * 4)  # whole batches of the product (kernels/cuda/product.cuh)
            yield CudaConfig(1, PASS, False, stages, slots, 0, weight_stages, tile=tile)


def _stream_wishes(problem: Problem) -> list[tuple[float, int, int]]:
    """Tiles whose operand is under way, parts of weights in each stream and stages, the best first.

    B in float16 takes 0.075 ms with a tile and a quarter and 8 parts of weights, 0.076 with one and three quarters and 7, 0.079
    with two and 5 (H200, 2026-11-30). As "ieee" it takes 0.385 with one and a half and 0.400 with one.
    """
    if terms(problem) == 1:
        return [(1.25, 8, 8), (1, 8, 8), (1, 6, 4), (1, 4, 4), (1, 2, 2)]
    return [(2, 3, 4), (1.5, 3, 4), (1, 3, 4), (1, 2, 4), (1, 2, 2)]


def _tiles(problem: Problem) -> tuple[int, ...]:
    """Sizes of tiles, the best first: half of one where a row fills no more, and where shared memory has room for no more."""
    if problem.layout == CHANNELS_LAST:
        return (TILE,)
    return (TILE, TILE // 2) if problem.out_size[-1] > TILE // 2 else (TILE // 2, TILE)


def _can_stream(problem: Problem) -> bool:
    row = problem.in_channels * problem.dtype.itemsize  # which the copy engine takes in whole 16 bytes
    return row % 16 == 0


def _can_roll(problem: Problem, cluster: int) -> bool:
    kept = window_rows(problem) - 1
    if max(problem.stride + problem.dilation) > 1 or has_many_taps(problem):
        return False
    narrow = not _fills_tiles(problem, TILE)  # patches have less work then
    if narrow and (problem.layout == CHANNELS_LAST or can_gather(problem)):
        return False
    own = up(problem.in_channels, chunk(problem) * cluster) // cluster
    return kept > 0 and kept * own <= MOST_KEPT


def _fills_tiles(problem: Problem, tile: int) -> bool:
    """Whether rows of y are long enough for tiles that are parts of rows."""
    columns = problem.out_size[-1]
    return columns >= 0.75 * up(columns, tile)


def _patched(problem: Problem) -> Iterator[CudaConfig]:
    """Whole windows with channels last: patches that cost little come first, then weights that stay in one block.

    Weights that pass by come before those that stay in a cluster: 80 -> 480 channels of 32x32 take 48 us instead of 89
    (H200, 2026-11-30).
    """
    costs = patches.costs(problem, GROUP_ROWS)
    least = min(costs.values(), default=0.0)
    resident = list(_resident(problem, rolls=False))
    single = [config for config in resident if config.cluster == 1]
    for above, most in itertools.pairwise((0.0, *MOST_ABOVE_LEAST)):
        sizes = [patch for patch, cost in costs.items() if above * least < cost <= most * least]
        for config in (*single, *_streaming_beside(problem), *resident):
            if config.staged:  # the copy engine writes patches
                yield from (replace(config, patch=patch) for patch in sizes)


def _gathered(problem: Problem) -> Iterator[CudaConfig]:
    """Input that each warp gathers by itself, in patches: those that cost little come first, then weights that stay."""
    if not can_gather(problem):
        return
    costs = [
        (cost, tile, patch)
        for tile in (TILE, TILE // 2)
        for patch, cost in patches.costs(problem, tile, WEIGHTS).items()
    ]
    least = min(costs, default=(0.0,))[0]
    for above, most in itertools.pairwise((0.0, *MOST_ABOVE_LEAST)):
        near = [(tile, patch) for cost, tile, patch in sorted(costs) if above * least < cost <= most * least]
        for config in (*_gathered_resident(problem), *_gathered_streaming(problem)):
            yield from (replace(config, tile=tile, patch=patch) for tile, patch in near)


def _gathered_resident(problem: Problem) -> Iterator[CudaConfig]:
    if problem.out_channels > PASS or problem.in_channels > most_channels(problem, rolls=False):
        return
    for staged, slots, stages in ((2, 8, 3), (2, 4, 3), (1, 4, 2), (1, 2, 2)):
        yield CudaConfig(1, PASS, False, stages, slots, staged, gathers=True)


def _gathered_streaming(problem: Problem) -> Iterator[CudaConfig]:
    if not _can_stream(problem):
        return
    for cluster in _sharing(problem):
        for staged, slots, stages, weight_stages in ((2, 2, 3, 4), (2, 2, 3, 3), (1, 2, 3, 3), (1, 1, 2, 2)):
            yield CudaConfig(
                cluster, PASS, False, stages, max(slots * cluster, 4), staged, weight_stages, True, gathers=True
            )


def _sharing(problem: Problem) -> list[int]:
    """Sizes of clusters that share the window's step, the best first: blocks without output channels are of no use."""
    blocks = math.ceil(problem.out_channels / PASS)
    return sorted((1, 2, 3, 4), key=lambda size: (up(blocks, size), -size))


def _passing_by(problem: Problem) -> Iterator[CudaConfig]:
    """Channels first, weights that pass by: any number of channels fits.

    Products of one term take the chunks of a part at a time.
    """
    for tile in _tiles(problem):
        boxes = tile * problem.dtype.itemsize // 128
        for staged, slots, stages, weight_stages in (
            (boxes, 4, 4, 4),
            (max(1, boxes // 2), 4, 4, 4),
            (1, 2, 4, 3),
            (1, 2, 2, 2),
        ):
            yield CudaConfig(
                1, PASS, False, stages, slots * chunks_together(problem), staged, weight_stages, True, tile
            )


def _streaming_beside(problem: Problem) -> Iterator[CudaConfig]:
    """Weights of one term that stream beside the chunks of the operand, with channels last.

    The blocks of a cluster share the window's step, which takes as long as the product of 128 to 256 output channels, and the
    taps, of which more blocks have room for more.
    """
    if terms(problem) > 1 or not _can_stream(problem):
        return
    several = problem.out_channels > PASS and problem.in_channels > chunk(problem)
    for cluster in (2, 1, 4) if several else (1, 2, 4):
        least = max(2, cluster)
        for staged, slots, stages, weight_stages in (
            (2, 2 * cluster, 3, 4),
            (2, 2 * cluster, 2, 4),
            (2, 2 * cluster, 2, 3),
            (1, 2 * cluster, 2, 3),
            (1, least, 2, 2),
        ):
            yield CudaConfig(cluster, PASS, False, stages, slots, staged, weight_stages, beside=True)


def _block_outputs(problem: Problem, rolls: bool) -> tuple[int, ...]:
    """The output channels of a block, the best first: 256 take two passes over the operand of a tile, which stays for both."""
    if problem.dtype.itemsize == 2 and problem.out_channels > PASS and not rolls and problem.layout != CHANNELS_LAST:
        return (2 * PASS, PASS)
    return (PASS,)


def _wishes(problem: Problem, cluster: int, outputs: int, tile: int) -> list[tuple[int, int, int]]:
    """Boxes staged, slots and stages, the best first. With channels last a slot is four times as large."""
    boxes = tile * problem.dtype.itemsize // 128
    half = max(1, boxes // 2)
    if outputs > PASS:
        slots = up(problem.in_channels, chunk(problem) * cluster) // chunk(problem)
        return [(0, slots, 4), (0, slots, 2)]
    if problem.layout == CHANNELS_LAST:
        found = [(boxes, 2, 4), (half, 2, 4), (half, 2, 3), (0, 2, 2), (half, 2, 2), (half, 1, 3), (0, 1, 2), (1, 1, 2)]
        return [(staged, slots * cluster, stages) for staged, slots, stages in found]
    if cluster == 1:
        return [(boxes, 8, 6), (half, 8, 4), (boxes, 4, 6), (boxes, 4, 4), (half, 4, 4), (0, 4, 3), (0, 2, 2)]
    two, four = 2 * cluster, 4 * cluster
    return [(boxes, four, 4), (half, four, 4), (half, two, 4), (0, two, 3), (0, two, 2), (0, cluster, 2)]


def with_more_stages(problem: Problem, config: CudaConfig) -> CudaConfig:
    """As many stages as there is room for, twelve at most; the even number below, for two teams (kernels/cuda/problem.cuh)."""
    room = SHARED_BYTES - shared_bytes(problem, config)
    stages = min(12, config.stages + room // (stage_bytes(problem, config) + 16))
    if problem.layout != CHANNELS_LAST and stages > 3:
        stages -= stages % 2
    return replace(config, stages=max(stages, config.stages))
