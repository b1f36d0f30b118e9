"""How the portable kernel for GPUs runs a problem: one configuration, by the shared memory and the SMs of a device."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from sepconv.device import Device
from sepconv.problem import CHANNELS_LAST, Problem
from sepconv.tuning.hopper import terms

CHUNK = 32  # middle channels that are multiplied together: kernels/cuda/portable.cu
TILES, BLOCKS = (128, 64, 32, 16), (128, 64, 32)
LEAST_RESULTS = 2048  # of a block of threads: its warps multiply 16 by 16 at least
PART_CHUNKS = {
    1: 2**30,
    2: 256 // CHUNK,
    3: 64 // CHUNK,
}  # over so many channels matrix units add up (docs/design.md, numerics)
_MOST_TAPS = 64  # with fewer they lie in shared memory
_HELD_TAPS = 12  # with fewer those of a channel are loaded into registers at once, but for channels last
_VECTOR = 16  # bytes
_SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}  # that a block may have; elsewhere:
_LEAST_SHARED_KIB = 99
_OF_BLOCK = 1024  # of an SM's shared memory is taken for each block


@dataclass(frozen=True)
class PortableConfig:
    """How the kernel runs a problem.

    A block of threads takes a `tile` of so many places for output pixels, in rows of `columns` pixels, and `block` output
    channels at a time. A thread slides the window over `run` pixels of a row. Input of `stages` chunks is on its way or in use
    (0: the window reads x where it lies). Where the tile is `resident`, the depthwise result of all channels stays in shared
    memory for all output channels; else it is computed for each block of them again. `blocks_of_sm` blocks are to run on an SM
    at a time. Output channels are split among `splits` blocks for each tile, where there are fewer tiles than SMs.
    """

    tile: int
    columns: int
    run: int
    block: int
    stages: int
    resident: bool
    blocks_of_sm: int
    splits: int

    @property
    def places(self) -> int:
        """Places of a tile's row: whole runs."""
        return math.ceil(self.columns / self.run) * self.run

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.tile // self.places

    def __str__(self) -> str:
        where = "stays" if self.resident else f"is computed for each {self.block} output channels"
        return (
            f"tiles of {self.rows}x{self.columns} pixels, whose depthwise result {where}, "
            f"{self.stages} stages of input, {self.splits} blocks for each tile"
        )


def piece_bytes(problem: Problem, columns: int) -> int:
    """So many bytes of a dense x are copied at once, and lie on multiples of as many."""
    item = problem.dtype.itemsize
    if problem.layout == CHANNELS_LAST:
        runs = (problem.in_channels,) if problem.depth_multiplier == 1 else (1,)
    else:
        # The first column of a tile is `lead` columns before its window; where tiles are more than one, each has to be so.
        more = (columns * problem.stride[-1],) if columns < problem.out_size[-1] else ()
        runs = (problem.in_size[-1], *more)
    return next((size for size in (16, 8, 4) if all(run * item % size == 0 for run in runs)), item)


def stage_bytes(problem: Problem, config: PortableConfig) -> int:
    """The input of one chunk for a tile; mirrors kStage in kernels/cuda/portable/problem.cuh, as all of this does."""
    item, last, multiplier = problem.dtype.itemsize, problem.layout == CHANNELS_LAST, problem.depth_multiplier
    channels = CHUNK if multiplier == 1 else (CHUNK - 2) // multiplier + 2
    (*_, padding), stride, dilation = problem.padding, problem.stride[-1], problem.dilation[-1]
    lead = 0 if last else -padding[0] % (piece_bytes(problem, config.columns) // item)
    placed = lead + (config.places - 1) * stride + (problem.kernel_size[-1] - 1) * dilation + 1
    apart = {1: 0, 2: 16}.get(config.run, 8) if item == 2 else 0
    step = _whole_vectors(channels, item) + apart if last else 1
    return _stage_rows(problem, config) * _whole_vectors(placed * step, item) * (1 if last else channels) * item


def _whole_vectors(elements: int, item: int) -> int:
    return math.ceil(elements * item / _VECTOR) * _VECTOR // item


def images_of_tile(problem: Problem, config: PortableConfig) -> int:
    """Of how many images the rows of one tile are at most: tiles begin on multiples of their rows, counted through all images."""
    height = math.prod(problem.out_size[:-1])
    return (height - math.gcd(height, config.rows) + config.rows - 1) // height + 1


def _stage_rows(problem: Problem, config: PortableConfig) -> int:
    if problem.rank == 1:
        return config.rows
    kernel, stride, dilation = problem.kernel_size[0], problem.stride[0], problem.dilation[0]
    height, rows = (kernel - 1) * dilation + 1, config.rows
    overlapping = (rows - 1) * stride + (images_of_tile(problem, config) - 1) * (height - stride) + height
    return overlapping if height >= stride and overlapping < rows * kernel else rows * kernel


def shared_bytes(problem: Problem, config: PortableConfig) -> int:
    """The shared memory of a block of threads."""
    chunks, taps = _chunks(problem), math.prod(problem.kernel_size)
    of_channel = (taps + 4) // 4 * 4 if taps < _HELD_TAPS else (taps + 1) | 1
    of_channel = taps + 1 if problem.layout == CHANNELS_LAST else of_channel
    tap_bytes = of_channel * CHUNK * 4 if taps < _MOST_TAPS else 0
    begun = math.ceil(config.tile / config.places)
    plan = math.ceil(((_stage_rows(problem, config) if config.stages else 1) * 8 + begun * 12 + 8) / 128) * 128
    operand = config.tile * CHUNK * terms(problem) * 2
    window = (config.stages * stage_bytes(problem, config) if config.stages else 0) + 2 * tap_bytes
    weights = (3 if terms(problem) == 1 else 2) * config.block * CHUNK * terms(problem) * 2
    if config.resident:
        return plan + chunks * operand + max(window, weights)
    return plan + operand + window + weights


def tiles(problem: Problem, config: PortableConfig) -> int:
    """How many tiles there are."""
    height = math.prod(problem.out_size[:-1])
    return math.ceil(problem.batch * height / config.rows) * math.ceil(problem.out_size[-1] / config.columns)


@lru_cache(maxsize=4096)
def configuration(problem: Problem, device: Device) -> PortableConfig:
    """The configuration for a problem, which takes the fewest clocks by a rough count: every problem has one."""
    found = list(_configurations(problem, device.capability or (0, 0)))
    return min(found, key=lambda config: _clocks(problem, config, max(1, device.units)))


def _configurations(problem: Problem, capability: tuple[int, int]) -> Iterator[PortableConfig]:
    room = 1024 * _SHARED_KIB.get(capability, _LEAST_SHARED_KIB)
    sums_once = _chunks(problem) <= PART_CHUNKS[terms(problem)]
    for tile in TILES:
        # Sums of 128 x 128 fill the registers: there is no place for a second set, or for three terms.
        if tile == TILES[0] and not (sums_once and terms(problem) < 3):
            continue
        arranged = _arranged(problem, tile)
        for block, resident in itertools.product(BLOCKS, (True, False)):
            if tile * block < LEAST_RESULTS or (block > BLOCKS[0] // 2 and 2 * problem.out_channels <= block):
                continue
            wanted = replace(arranged, block=block, resident=resident)
            yield from _split(problem, _with_memory(problem, wanted, room, capability))


def _arranged(problem: Problem, tile: int) -> PortableConfig:
    """The rows of a tile: few places are empty, and the input that rows and columns share is copied once."""
    width, item, last = problem.out_size[-1], problem.dtype.itemsize, problem.layout == CHANNELS_LAST
    runs = (max(1, tile // 32),) if last else (8, 4, 2)[item // 4 :]
    widths = [*range(4, min(tile, width - 1) + 1, 4), *([width] if width <= tile else [])]
    found = [
        PortableConfig(tile, columns, run, BLOCKS[0], 1, True, 1, 1)
        for columns, run in itertools.product(widths, runs)
        if math.ceil(columns / run) * run <= tile
    ]
    return min(found, key=lambda config: tiles(problem, config) * _work_of_rows(problem, config))


def _work_of_rows(problem: Problem, config: PortableConfig) -> float:
    """Of a tile and a channel, by the time of a place: places, copies, bytes; and rows too short to be written at once."""
    channel = stage_bytes(problem, config) / (CHUNK if problem.depth_multiplier == 1 else 1)
    copies = channel / piece_bytes(problem, config.columns)
    short = max(0, 128 - config.columns * problem.dtype.itemsize) if problem.layout != CHANNELS_LAST else 0
    return config.tile + copies / 8 + channel / 22 + short * config.rows / 32


def _is_crowded(problem: Problem, config: PortableConfig, capability: tuple[int, int]) -> bool:
    """Whether two blocks leave too few registers to a thread: so it was when all of these were compiled for all targets."""
    has_parts, results = _chunks(problem) > PART_CHUNKS[terms(problem)], config.tile * config.block
    older, last = capability < (9, 0), problem.layout == CHANNELS_LAST
    if results > 128 * 64 and not config.resident:
        return True
    if terms(problem) == 1 or results <= 64 * 64:
        return False
    if not has_parts:
        return older and last and results > 128 * 64
    return terms(problem) == 3 or (not config.resident and (older or last))


def _with_memory(
    problem: Problem, config: PortableConfig, room: int, capability: tuple[int, int]
) -> PortableConfig | None:
    """The same with two blocks on an SM, and with the most stages, for which there is room; None where it has none."""
    most = 3 if config.resident else 2  # one chunk ahead where both steps take turns
    for blocks, stages in ((2, most), (2, 2), (1, most), (1, 2), (1, 1), (2, 0), (1, 0)):
        found = replace(config, stages=stages, blocks_of_sm=blocks)
        of_block = shared_bytes(problem, found)
        if (
            of_block <= room
            and blocks * (of_block + _OF_BLOCK) <= room + _OF_BLOCK
            and not (blocks > 1 and _is_crowded(problem, config, capability))
        ):
            return found
    return None


def _split(problem: Problem, config: PortableConfig | None) -> Iterator[PortableConfig]:
    if config is None:
        return
    blocks = math.ceil(problem.out_channels / config.block)
    for splits in {1, 2, 4, 8, 16, 32, blocks}:
        if splits <= blocks:
            yield replace(config, splits=splits)


def _clocks(problem: Problem, config: PortableConfig, units: int) -> float:
    """About how many clocks the kernel takes: instructions of a warp, of which an SM issues four, and the matrix units' time.

    Instructions are counted in what the compiler makes for sm_90; a product of 16 x 8 x 16 counts as eight.
    """
    of_terms, chunks = terms(problem), _chunks(problem)
    products = {1: 1, 2: 3, 3: 6}[of_terms] * config.tile * config.block * CHUNK / 2048
    weights = {1: 80, 2: 900, 3: 1230}[of_terms] * config.block / BLOCKS[0]
    of_tap = 1.2 if config.stages else 40
    window = config.tile * (of_tap * math.prod(problem.kernel_size) + 4 * of_terms)
    of_blocks = math.ceil(math.ceil(problem.out_channels / config.block) / config.splits)
    step = products * 8 + weights + 400
    results = config.tile * config.block / 64 * 10
    windows = chunks * (1 if config.resident else of_blocks) * (window + 200)
    instructions = of_blocks * (chunks * step + results) + windows + 3000
    of_sm = math.ceil(tiles(problem, config) * config.splits / units)
    return of_sm * instructions * (1.4 if config.blocks_of_sm == 1 or of_sm == 1 else 1) / 4


def _chunks(problem: Problem) -> int:
    return math.ceil(problem.in_channels * problem.depth_multiplier / CHUNK)
