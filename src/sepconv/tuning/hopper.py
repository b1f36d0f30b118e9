"""How the kernel for Hopper runs a problem: one configuration, by the shared memory that its parts take."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sepconv.problem import CHANNELS_LAST, Problem
from sepconv.tuning import patches
from sepconv.tuning.patches import GROUP_ROWS, MOST_BOX, SHARED_BYTES

TILE, PASS = 128, 128  # pixels of a tile, output channels that are computed together: kernels/cuda/problem.cuh
MOST_ABOVE_LEAST = (1.25, 2.0)  # times the least cost: among such patches others do not matter, and then among such
PATCH = (1, GROUP_ROWS)  # rows and columns of output pixels; where there are no others: half of a tile
WINDOW_WARPS = 8  # of a block
MOST_READ = 24, 32  # columns of x that a thread reads for four pixels of a row, of two channels or of one
MOST_KEPT = 128  # channels, times rows that are kept in registers
ANY = 1 << 30

_TERMS = {"ieee": 3, "high": 2, "tf32": 2}


@dataclass(frozen=True)
class CudaConfig:
    """How the kernel runs a problem.

    `cluster` blocks of `outputs` output channels each share the depthwise step. With `rolls` each input row is loaded once, and
    what it adds to output rows further down is kept in registers. `stages` parts of input and `slots` chunks of the product's
    operand are under way; `staged` boxes of results of 128 bytes by 64 rows are written by way of shared memory at a time, by
    each half of a block (0: results are written from registers). With `weight_stages` the pointwise weights stream through a
    block for each tile, so many parts at a time in each stream (0: they stay): a block computes all output channels or, with
    channels last, a cluster computes the tile again for the next of its output channels. A `tile` is so many pixels of a row
    or, with channels last and whole windows, two patches of so many rows and columns.
    """

    cluster: int
    outputs: int
    rolls: bool
    stages: int
    slots: int
    staged: int
    weight_stages: int = 0
    tile: int = TILE
    patch: tuple[int, int] = PATCH

    def __str__(self) -> str:
        blocks = f"clusters of {self.cluster} blocks" if self.cluster > 1 else "single blocks"
        share = f"{self.outputs} output channels"
        if self.weight_stages:
            share = f"all output channels, {self.weight_stages} parts of weights that stream"
        patch = f" in patches of {self.patch[0]} x {self.patch[1]}" if self.patch != PATCH else ""
        return (
            f"{blocks} of {share}, tiles of {self.tile} pixels{patch}, {'rolling rows' if self.rolls else 'whole windows'}, "
            f"{self.stages} stages, {self.slots} slots, {self.staged} boxes staged"
        )


def terms(problem: Problem) -> int:
    """Of how many 16-bit terms an operand of the product is a sum."""
    return _TERMS[problem.precision] if problem.dtype is torch.float32 else 1


def _most_channels(problem: Problem, rolls: bool) -> int:
    """Over how many channels the kernel adds up with weights that stay.

    What matrix units cut off of longer sums is too much of the error budget of float32: of three terms 64 channels, of two 256.
    They are added up in registers where these are free and weights are split anew (kernels/cuda/product.cuh), as all are that
    stream.
    """
    in_registers = terms(problem) == 3 and not rolls and not _channels_last(problem)
    return ANY if in_registers else {1: ANY, 2: 256, 3: 64}[terms(problem)]


def shared_bytes(problem: Problem, config: CudaConfig) -> int:
    """The shared memory of a block; mirrors kSharedBytes in kernels/cuda/problem.cuh."""
    own = own_channels(problem, config.cluster)
    weights = _weight_bytes(problem, config, own * config.cluster)
    all_outputs = config.weight_stages and not _channels_last(problem)
    biases = _up(problem.out_channels, PASS) if all_outputs else config.outputs * output_sets(problem, config)
    biases *= problem.epilogue.pointwise_bias
    taps = _scratch_bytes(problem, config) if has_many_taps(problem) else own * _tap_bytes(problem)
    rings = config.slots * _slot_bytes(problem, config) + config.stages * _stage_bytes(problem, config)
    rings += _bytes_beyond_stages(problem, config)
    barriers = 16 * (
        config.stages + config.slots + stream_count(problem) * config.weight_stages + problem.epilogue.residual
    )
    return weights + rings + 2 * config.staged * GROUP_ROWS * 128 + taps + biases * 4 + barriers + 1024


def _tap_bytes(problem: Problem) -> int:
    """What the taps of a channel take."""
    kernel_h, kernel_w = window_rows(problem), problem.kernel_size[-1]
    if _channels_last(problem):
        return kernel_h * (kernel_w + 1) * 4
    if problem.dtype.itemsize > 2:
        return kernel_h * _tap_row(problem) * 4
    return kernel_h * (kernel_w + 2) * 4 + 4  # matrix units slide the window: kernels/cuda/bands.cuh


def _tap_row(problem: Problem) -> int:
    return problem.kernel_size[-1] // 4 * 4 + 4


def has_many_taps(problem: Problem) -> bool:
    """Whether the rows of the window reach so far that each warp brings their taps by itself: kernels/cuda/ahead.cuh."""
    reach, stride, dilation = reach_w(problem), problem.stride[-1], problem.dilation[-1]
    if _channels_last(problem):
        return False
    if problem.dtype.itemsize == 2:
        return reach > 33 or stride > 1 or dilation > 1
    return problem.kernel_size[-1] > 17 or reach + 3 * stride > 32


def _scratch_bytes(problem: Problem, config: CudaConfig) -> int:
    """A row of taps for each channel that a warp of the window's step has at a time."""
    if problem.dtype.itemsize > 2:
        return WINDOW_WARPS * TILE // config.tile * _tap_row(problem) * 4
    stride = problem.stride[-1]
    products = (7 * stride + reach_w(problem) + 16) // 16
    return WINDOW_WARPS * (7 * stride + 1 + 16 * products) * 4


def reach_w(problem: Problem) -> int:
    """The columns of x from the first to the last one that the window takes."""
    return (problem.kernel_size[-1] - 1) * problem.dilation[-1] + 1


def _weight_bytes(problem: Problem, config: CudaConfig, channels: int) -> int:
    if config.weight_stages:
        return stream_count(problem) * config.weight_stages * stream_rows(problem) * 128
    parts = math.ceil(channels / weight_part(problem, config))
    return parts * config.outputs * 128 * (1 if split_anew(problem, config) else terms(problem))


def stream_count(problem: Problem) -> int:
    """Streams of weights: one that both of the product's groups read, or one for each."""
    return 1 if terms(problem) == 1 or _channels_last(problem) else 2


def stream_rows(problem: Problem) -> int:
    """The output channels of a part of the weights that stream."""
    return PASS if _channels_last(problem) else GROUP_ROWS


def output_sets(problem: Problem, config: CudaConfig) -> int:
    """How often a cluster computes a tile again, for other output channels."""
    if not (config.weight_stages and _channels_last(problem)):
        return 1
    return math.ceil(problem.out_channels / (config.cluster * config.outputs))


def split_anew(problem: Problem, config: CudaConfig) -> bool:
    """Whether weights are float32 in shared memory, and are split when they are multiplied."""
    least = 2 if config.weight_stages else 3
    return terms(problem) >= least and not config.rolls and not _channels_last(problem)


def weight_part(problem: Problem, config: CudaConfig) -> int:
    """The channels of a part of the weights: 128 bytes of each output channel."""
    return 32 if split_anew(problem, config) else 64


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
    """The configuration for a problem: the best that shared memory and registers have room for, or None."""
    for config in _wanted(problem):
        fits = shared_bytes(problem, config) <= SHARED_BYTES and max(input_box(problem, config)) <= MOST_BOX
        if fits and _can_go_on(problem, config):
            return _with_more_stages(problem, config)
    return None


def _can_go_on(problem: Problem, config: CudaConfig) -> bool:
    """The product gives a slot back when it has the next chunk, so that one slot takes one chunk."""
    return config.slots > 1 or own_channels(problem, config.cluster) <= chunk(problem)


def _wanted(problem: Problem) -> Iterator[CudaConfig]:
    """Configurations for a problem, the best first.

    Rows that are loaded once come before whole windows; weights that stay in one block before weights that stream, and these
    before clusters, whose blocks wait for one another.
    """
    yield from _resident(problem, rolls=True)
    if _channels_last(problem):
        yield from _patched(problem)
        return
    yield from (config for config in _resident(problem, rolls=False) if config.cluster == 1)
    if _can_stream(problem):
        yield from _streaming(problem)
    yield from _resident(problem, rolls=False)


def _resident(problem: Problem, rolls: bool) -> Iterator[CudaConfig]:
    """The weights stay in one block, or in those of a cluster."""
    if problem.in_channels > _most_channels(problem, rolls):
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
            yield CudaConfig(1, PASS, False, stages, slots, 0, weight_stages, tile)


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
    if _channels_last(problem):
        return (TILE,)
    return (TILE, TILE // 2) if problem.out_size[-1] > TILE // 2 else (TILE // 2, TILE)


def _can_stream(problem: Problem) -> bool:
    row = problem.in_channels * problem.dtype.itemsize  # which the copy engine takes in whole 16 bytes
    return row % 16 == 0


def _can_roll(problem: Problem, cluster: int) -> bool:
    kept = window_rows(problem) - 1
    if max(problem.stride + problem.dilation) > 1 or has_many_taps(problem):
        return False
    if _channels_last(problem) and not _fills_tiles(problem):
        return False
    return kept > 0 and kept * own_channels(problem, cluster) <= MOST_KEPT


def _fills_tiles(problem: Problem) -> bool:
    """Whether rows of y are long enough for tiles of one row: where they are not, patches have less work."""
    columns = problem.out_size[-1]
    return columns >= 0.75 * _up(columns, TILE)


def _patched(problem: Problem) -> Iterator[CudaConfig]:
    """Whole windows with channels last: patches that cost little come first, weights that stay before weights that stream."""
    costs = patches.costs(problem)
    least = min(costs.values(), default=0.0)
    for above, most in itertools.pairwise((0.0, *MOST_ABOVE_LEAST)):
        sizes = [patch for patch, cost in costs.items() if above * least < cost <= most * least]
        for config in (*_resident(problem, rolls=False), *_streaming_beside(problem)):
            if config.staged:  # the copy engine writes patches
                yield from (replace(config, patch=patch) for patch in sizes)


def _streaming_beside(problem: Problem) -> Iterator[CudaConfig]:
    """Weights of one term that stream beside the chunks of the operand, with channels last.

    The blocks of a cluster share the window's step, which takes as long as the product of 128 to 256 output channels, and the
    taps, of which more blocks have room for more.
    """
    if terms(problem) > 1 or not _can_stream(problem):
        return
    for cluster in (2, 1, 4) if problem.out_channels > PASS else (1, 2, 4):
        least = max(2, cluster)
        for staged, slots, stages, weight_stages in (
            (2, 2 * cluster, 3, 4),
            (2, 2 * cluster, 2, 4),
            (2, 2 * cluster, 2, 3),
            (1, 2 * cluster, 2, 3),
            (1, least, 2, 2),
        ):
            yield CudaConfig(cluster, PASS, False, stages, slots, staged, weight_stages)


def has_patches(problem: Problem, config: CudaConfig) -> bool:
    """Whether a tile is two patches; else it is part of a row."""
    return _channels_last(problem) and not config.rolls


def tiles(problem: Problem, config: CudaConfig) -> tuple[int, int]:
    """The tiles side by side in a row of y, and the rows of all images; of patches all tiles count as one below the other."""
    if not has_patches(problem, config):
        return math.ceil(problem.out_size[-1] / config.tile), problem.batch * math.prod(problem.out_size[:-1])
    sizes = zip(problem.out_size, config.patch, strict=True)
    count = problem.batch * math.prod(math.ceil(size / of_patch) for size, of_patch in sizes)
    return 1, math.ceil(count / 2)


def _block_outputs(problem: Problem, rolls: bool) -> tuple[int, ...]:
    """The output channels of a block, the best first: 256 take two passes over the operand of a tile, which stays for both."""
    if problem.dtype.itemsize == 2 and problem.out_channels > PASS and not rolls and not _channels_last(problem):
        return (2 * PASS, PASS)
    return (PASS,)


def _wishes(problem: Problem, cluster: int, outputs: int, tile: int) -> list[tuple[int, int, int]]:
    """Boxes staged, slots and stages, the best first. With channels last a slot is four times as large."""
    boxes = tile * problem.dtype.itemsize // 128
    half = max(1, boxes // 2)
    if outputs > PASS:
        slots = own_channels(problem, cluster) // chunk(problem) * cluster
        return [(0, slots, 4), (0, slots, 2)]
    if _channels_last(problem):
        found = [(boxes, 2, 4), (half, 2, 4), (half, 2, 3), (0, 2, 2), (half, 2, 2), (half, 1, 3), (0, 1, 2), (1, 1, 2)]
        return [(staged, slots * cluster, stages) for staged, slots, stages in found]
    if cluster == 1:
        return [(boxes, 8, 6), (half, 8, 4), (boxes, 4, 6), (boxes, 4, 4), (half, 4, 4), (0, 4, 3), (0, 2, 2)]
    two, four = 2 * cluster, 4 * cluster
    return [(boxes, four, 4), (half, four, 4), (half, two, 4), (0, two, 3), (0, two, 2), (0, cluster, 2)]


def _with_more_stages(problem: Problem, config: CudaConfig) -> CudaConfig:
    """As many stages as there is room for, twelve at most; the even number below, for two teams (kernels/cuda/problem.cuh)."""
    room = SHARED_BYTES - shared_bytes(problem, config)
    stages = min(12, config.stages + room // (_stage_bytes(problem, config) + 16))
    if not _channels_last(problem) and stages > 3:
        stages -= stages % 2
    return replace(config, stages=max(stages, config.stages))


def _stage_bytes(problem: Problem, config: CudaConfig) -> int:
    boxes = 2 if has_patches(problem, config) else 1
    return _up(boxes * part(problem) * math.prod(input_box(problem, config)) * problem.dtype.itemsize, 128)


def _bytes_beyond_stages(problem: Problem, config: CudaConfig) -> int:
    columns = config.patch[1]
    return (_up(columns, 4) - columns) * problem.stride[-1] * 128 if has_patches(problem, config) else 0


def _slot_bytes(problem: Problem, config: CudaConfig) -> int:
    return terms(problem) * chunk(problem) * config.tile * 2


def window_rows(problem: Problem) -> int:
    """The rows of the window; in 1-D there is one."""
    return (1, *problem.kernel_size)[-2]


def input_box(problem: Problem, config: CudaConfig) -> tuple[int, int]:
    """The rows and columns that are loaded at a time, for a tile or a patch, with those around it."""
    if has_patches(problem, config):
        return patches.input_box(problem, config.patch)
    rows = (window_rows(problem) - 1) * (1, *problem.dilation)[-2] + 1
    return 1 if config.rolls else rows, row_columns(problem, config.tile)


def row_columns(problem: Problem, tile: int) -> int:
    """The columns that are loaded for so many pixels of a row, with those before and behind them that their windows reach."""
    if _channels_last(problem):
        return tile + problem.kernel_size[-1] - 1
    before = problem.padding[-1][0]
    return whole_32_bytes(problem, before) + tile * problem.stride[-1] + whole_32_bytes(problem, reach_w(problem) - 1 - before)


def columns_read(problem: Problem) -> int:
    """The columns of x that a thread reads for four pixels of a row, at least: those of all taps or, of many, of four."""
    if _channels_last(problem):
        return patches.input_box(problem, (1, 4))[1]
    return _up(3 + 3 * problem.stride[-1] + 3 * problem.dilation[-1] + 1, 4) if problem.dtype.itemsize > 2 else 0


def whole_32_bytes(problem: Problem, elements: int) -> int:
    """As many elements, and those that make 32 bytes full: what the copy engine loads fastest begins on 32 bytes."""
    return _up(max(0, elements), 32 // problem.dtype.itemsize)


def _channels_last(problem: Problem) -> bool:
    return problem.layout == CHANNELS_LAST


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
