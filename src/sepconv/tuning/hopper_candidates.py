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
    has_diagonals,
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

MOST_ABOVE_LEAST = (
    1.05,
    1.25,
    2.0,
)  # times the least cost: among such patches others do not matter, and then among such
FEW_CHANNELS = 192  # whose weights may stay
MANY_TAPS = 25  # of a window, that blocks of a cluster had better share
MOST_SHAPES = 100  # of clusters and patches, where hardly one of the first does not fit
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
        yield from _gathered(problem, units)
        return
    yield from _resident(problem, rolls=True)
    if problem.layout == CHANNELS_LAST:
        yield from _patched(problem, units)
        return
    if not _fills_tiles(problem, TILE // 2):
        yield from _gathered(problem, units)
    yield from _in_rows(problem, units)
    yield from _gathered(problem, units)


def _in_rows(problem: Problem, units: int) -> Iterator[CudaConfig]:
    """Whole windows of tiles that are parts of rows, with channels first.

    Where there are no more tiles than SMs, weights that pass by spread each over its output channels: 512 -> 512 channels of 800
    frames with 75 taps take 45 us instead of 78, 32 times as many 471 instead of 227. Of many taps clusters share the window's
    step, also those that have more blocks than there are outputs for: 256 -> 256 channels of 400 frames with 31 taps and a
    residual take 13.6 us in clusters of four and 16.1 in clusters of two. Where two blocks hold all weights, they
    write results by way of shared memory and load the residual so: 256 -> 256 channels, 33 taps, 64 us instead of 83
    (float32 as "high", H200, 2026-11-30).
    """
    row_tiles = math.ceil(problem.out_size[-1] / (TILE // 2)) * problem.batch * math.prod(problem.out_size[:-1])
    passing = list(_passing_by(problem, (1,))) if _can_stream(problem) else []
    blocks = math.ceil(problem.out_channels / PASS)
    if row_tiles * blocks <= units:
        shares = passing and math.prod(problem.kernel_size) >= MANY_TAPS
        shared = _passing_by(problem, (4, 2, 1)) if shares else passing
        yield from (config for config in shared if config.tile == TILE // 2)
    resident = [config for config in _resident(problem, rolls=False) if config.outputs == PASS]
    yield from (config for config in resident if config.cluster == 1)
    if problem.epilogue.residual or (terms(problem) == 2 and has_many_taps(problem)):
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
    """Whether rows can be kept, and are worth it.

    Where matrix units slide the window patches are faster: A takes 449 us, and with rows that are kept 456 (float16, H200,
    2026-12-01).
    """
    if has_diagonals(problem):
        return False
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


def _patched(problem: Problem, units: int) -> Iterator[CudaConfig]:
    """Whole windows with channels last: the clusters and patches come first that may be the fastest."""
    fitting = patches.costs(problem, GROUP_ROWS)
    resident = [config for config in _resident(problem, rolls=False) if config.staged]  # the copy engine writes patches
    if has_diagonals(problem):
        yield from _passing_patches(
            problem, units, list(fitting), [config for config in resident if config.cluster == 1]
        )
    least = min(fitting.values(), default=0.0)
    for above, most in itertools.pairwise((0.0, *MOST_ABOVE_LEAST)):
        sizes = [patch for patch, cost in fitting.items() if above * least < cost <= most * least]
        for config in resident:
            yield from (replace(config, patch=patch) for patch in sizes)


def _passing_patches(
    problem: Problem, units: int, fitting: list[tuple[int, int]], staying: list[CudaConfig]
) -> Iterator[CudaConfig]:
    """Patches in 16 bits: weights pass by, or stay in each block.

    They stay where they are few and each block has several tiles: 64 images of 147x147, 64 -> 128, take 170 us instead
    of 174, but 64 of 14x14, 384 -> 96, 22.4 instead of 16.4 (H200, 2026-12-01).
    """
    shapes = sorted(
        (_time_of_patches(problem, units, cluster, patch), cluster, patch)
        for cluster, patch in itertools.product((1, 2, 3), fitting)
    )
    few = problem.in_channels <= FEW_CHANNELS
    for _, cluster, patch in shapes[:MOST_SHAPES]:
        stay = staying if cluster == 1 else []
        pass_by = list(_streaming_beside(problem, cluster))
        ordered = (*stay, *pass_by) if few and patches.pairs(problem, patch) >= 2 * units else (*pass_by, *stay)
        yield from (replace(config, patch=patch) for config in ordered)


def _gathered(problem: Problem, units: int) -> Iterator[CudaConfig]:
    """Input that each warp gathers by itself, in patches: the clusters and patches come first that may be the fastest."""
    if not can_gather(problem):
        return
    shapes = [
        (_time_of_gathering(problem, units, cluster, tile, patch), cluster, tile, patch)
        for cluster, tile in itertools.product((1, 2, 3, 4), (TILE, TILE // 2))
        for patch in patches.for_gathering(problem, tile)
    ]
    for _, cluster, tile, patch in sorted(shapes)[:MOST_SHAPES]:
        resident = _gathered_resident(problem) if cluster == 1 else ()
        for config in (*resident, *_gathered_streaming(problem, cluster)):
            yield replace(config, tile=tile, patch=patch)


def _time_of_gathering(problem: Problem, units: int, cluster: int, tile: int, patch: tuple[int, int]) -> float:
    """How long clusters of so many blocks may take for all tiles, in ns.

    A chunk of channels takes the product and the weights, and each block's share of the window's step; a tile takes what it waits
    for its first chunk and for the last results. The numbers fit those of 57 problems, each in eight ways, within 32 per cent,
    and what is the fastest by them takes 0.8 per cent longer than what was (geometric mean, float32 as "high", H200,
    2026-12-01). Without a part for the clusters that are at work, single images fell to the smallest patches, each of which loads
    all weights.
    """
    of_chunk = 1.35 * tile + 71 + patches.time_to_gather(problem, patch, tile) / cluster
    rounds = _rounds(problem, problem.batch * patches.gathered_count(problem, patch, tile), units, cluster)
    return (0.7 * math.ceil(rounds) + 0.3 * rounds) * (_chunks(problem, cluster) * of_chunk + 2600)


def _gathered_resident(problem: Problem) -> Iterator[CudaConfig]:
    if problem.out_channels > PASS or problem.in_channels > most_channels(problem, rolls=False):
        return
    for staged, slots, stages in ((2, 8, 3), (2, 4, 3), (1, 4, 2), (1, 2, 2)):
        yield CudaConfig(1, PASS, False, stages, slots, staged, gathers=True)


def _gathered_streaming(problem: Problem, cluster: int) -> Iterator[CudaConfig]:
    if not _can_stream(problem):
        return
    for staged, slots, stages, weight_stages in (
        (2, 6, 4, 4),
        (2, 6, 3, 3),
        (2, 4, 3, 3),
        (2, 3, 3, 3),
        (2, 2, 3, 3),
        (1, 2, 3, 3),
        (1, 1, 2, 2),
    ):
        slots = up(max(slots * cluster, 4), cluster)
        yield CudaConfig(cluster, PASS, False, stages, slots, staged, weight_stages, True, gathers=True)


def _passing_by(problem: Problem, clusters: tuple[int, ...]) -> Iterator[CudaConfig]:
    """Channels first, weights that pass by: any number of channels fits.

    Products of one term take the chunks of a part at a time. Blocks of a cluster share the window's step.
    """
    for cluster, tile in itertools.product(clusters, _tiles(problem)):
        boxes = tile * problem.dtype.itemsize // 128
        for staged, slots, stages, weight_stages in (
            (boxes, 4, 4, 4),
            (max(1, boxes // 2), 4, 4, 4),
            (1, 2, 4, 3),
            (1, 2, 2, 2),
        ):
            slots *= chunks_together(problem) * cluster
            yield CudaConfig(cluster, PASS, False, stages, slots, staged, weight_stages, True, tile)


def _streaming_beside(problem: Problem, cluster: int) -> Iterator[CudaConfig]:
    """Weights of one term that stream beside the chunks of the operand, with channels last."""
    if not _can_stream(problem):
        return
    for staged, slots, stages, weight_stages in (
        (2, 2 * cluster, 3, 4),
        (2, 2 * cluster, 2, 4),
        (2, 2 * cluster, 2, 3),
        (1, 2 * cluster, 2, 3),
        (1, 2 * cluster, 2, 2),
        (1, max(2, cluster), 2, 2),
    ):
        yield CudaConfig(cluster, PASS, False, stages, slots, staged, weight_stages, beside=True)


def _time_of_patches(problem: Problem, units: int, cluster: int, patch: tuple[int, int]) -> float:
    """How long clusters of so many blocks may take for all tiles of two such patches, in ns.

    They share the window's step, but there are fewer of them, and they wait for one another, at each chunk and at each tile. The
    numbers fit those of 92 problems, each in 13 to 25 ways; what is the fastest by them takes 0.5 per cent longer than what
    was (geometric mean, float16, batches of 1 and 64, H200, 2026-12-01). Single images take smaller patches than many, so
    that they fill the GPU: 1536 -> 2048 channels of 10x10 take 21 us instead of 26.
    """
    others = math.log2(cluster)
    of_chunk = 60 + 180 * others + patches.time_by_diagonals(problem, patch) / cluster
    rounds = _rounds(problem, patches.pairs(problem, patch), units, cluster)
    return (0.83 * math.ceil(rounds) + 0.17 * rounds) * (_chunks(problem, cluster) * of_chunk + 650 + 580 * others)


def _rounds(problem: Problem, tiles: int, units: int, cluster: int) -> float:
    """How often all clusters of so many blocks, each with 128 output channels, go through a tile.

    So many run at once on so many SMs: the larger ones leave some out, as on an H200.
    """
    at_once = max(1, int((1.0, 1.0, 0.85, 0.92)[cluster - 1] * units) // cluster)
    return tiles * math.ceil(problem.out_channels / (cluster * PASS)) / at_once


def _chunks(problem: Problem, cluster: int) -> int:
    """The chunks of channels of a tile, as many for each block of a cluster."""
    return up(math.ceil(problem.in_channels / chunk(problem)), cluster)


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
