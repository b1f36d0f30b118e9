"""How the kernel for Hopper runs a problem: one configuration, by the shared memory that its parts take."""

import math
from dataclasses import dataclass

import torch

from sepconv.problem import CHANNELS_LAST, Problem
from sepconv.tuning import patches
from sepconv.tuning.patches import GROUP_ROWS, MOST_BOX, SHARED_BYTES

TILE, PASS = 128, 128  # pixels of a tile, output channels that are computed together: kernels/cuda/problem.cuh
ROW_BYTES = 16  # of whose multiples the copy engine loads rows
PATCH = (1, GROUP_ROWS)  # rows and columns of output pixels; where there are no others: half of a tile
WINDOW_WARPS = 8  # of a block
MOST_GATHERED = 16  # columns, that a lane reads at a time of what is gathered
SWIZZLED = 1024  # bytes, of whose multiples what the copy engine swizzles begins
ANY = 1 << 30

_TERMS = {"ieee": 3, "high": 2, "tf32": 2}


@dataclass(frozen=True)
class CudaConfig:
    """How the kernel runs a problem.

    `cluster` blocks of `outputs` output channels each share the depthwise step. With `rolls` each input row is loaded once, and
    what it adds to output rows further down is kept in registers. `stages` parts of input and `slots` chunks of the product's
    operand are under way; `staged` boxes of results of 128 bytes by 64 rows are written by way of shared memory at a time, by
    each half of a block (0: results are written from registers). With `weight_stages` the pointwise weights stream through a
    block for each tile, so many parts at a time in each stream (0: they stay): a block computes all output channels or, where
    they pass by `beside` the operand, a cluster computes the tile again for the next of its output channels.

    A `tile` is so many pixels of a row or, with channels last and whole windows, two patches of so many rows and columns. Where
    the copy engine cannot load rows, each warp of the window's step `gathers` the input by itself, of a tile that is one patch.
    """

    cluster: int
    outputs: int
    rolls: bool
    stages: int
    slots: int
    staged: int
    weight_stages: int = 0
    beside: bool = False
    tile: int = TILE
    patch: tuple[int, int] = PATCH
    gathers: bool = False

    def __str__(self) -> str:
        blocks = f"clusters of {self.cluster} blocks" if self.cluster > 1 else "single blocks"
        share = f"{self.outputs} output channels"
        if self.weight_stages:
            share = f"{share} at a time" if self.beside else "all output channels"
            share += f", {self.weight_stages} parts of weights that stream"
        patch = f" in patches of {self.patch[0]} x {self.patch[1]}" if self.patch != PATCH else ""
        windows = "rolling rows" if self.rolls else "gathered windows" if self.gathers else "whole windows"
        return (
            f"{blocks} of {share}, tiles of {self.tile} pixels{patch}, {windows}, "
            f"{self.stages} stages, {self.slots} slots, {self.staged} boxes staged"
        )


def legal(problem: Problem, config: CudaConfig) -> bool:
    """Whether the kernel can run a problem so."""
    if shared_bytes(problem, config) > SHARED_BYTES or (
        max(input_box(problem, config)) > MOST_BOX and not config.gathers
    ):
        return False
    # The product gives a slot back when it has the next chunk, so that one slot takes one chunk.
    return config.slots > 1 or own_channels(problem, config) <= chunk(problem)


def terms(problem: Problem) -> int:
    """Of how many 16-bit terms an operand of the product is a sum."""
    return _TERMS[problem.precision] if problem.dtype is torch.float32 else 1


def most_channels(problem: Problem, rolls: bool) -> int:
    """Over how many channels the kernel adds up with weights that stay.

    What matrix units cut off of longer sums is too much of the error budget of float32: of three terms 64 channels, of two 256.
    They are added up in registers where these are free and weights are split anew (kernels/cuda/product.cuh), as all are that
    stream.
    """
    in_registers = terms(problem) == 3 and not rolls and not _channels_last(problem)
    return ANY if in_registers else {1: ANY, 2: 256, 3: 64}[terms(problem)]


def shared_bytes(problem: Problem, config: CudaConfig) -> int:
    """The shared memory of a block; mirrors kSharedBytes in kernels/cuda/problem.cuh."""
    own = own_channels(problem, config)
    weights = _weight_bytes(problem, config, own * config.cluster)
    all_outputs = config.weight_stages and not config.beside
    biases = up(problem.out_channels, PASS) if all_outputs else config.outputs * output_sets(problem, config)
    biases *= problem.epilogue.pointwise_bias
    rings = config.slots * _slot_bytes(problem, config) + config.stages * stage_bytes(problem, config)
    rings += _bytes_beyond_stages(problem, config)
    barriers = 16 * (
        config.stages + config.slots + stream_count(problem, config) * config.weight_stages + problem.epilogue.residual
    )
    staged = 2 * config.staged * GROUP_ROWS * 128
    return weights + rings + staged + _bytes_of_window(problem, config) + biases * 4 + barriers + 1024


def _bytes_of_window(problem: Problem, config: CudaConfig) -> int:
    """What the window's step has besides stages: taps that stay, or what each of its warps has for itself."""
    if config.gathers:
        return 0
    if has_diagonals(problem):
        return WINDOW_WARPS * 2 * (-config.patch[1] % 8) * 16  # for pixels beside a patch
    if has_many_taps(problem):
        return _scratch_bytes(problem, config)
    return own_channels(problem, config) * _tap_bytes(problem)


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
        return stream_count(problem, config) * config.weight_stages * stream_rows(config) * 128
    parts = math.ceil(channels / weight_part(problem, config))
    return parts * config.outputs * 128 * (1 if split_anew(problem, config) else terms(problem))


def stream_count(problem: Problem, config: CudaConfig) -> int:
    """Streams of weights: one that both of the product's groups read, or one for each."""
    return 1 if terms(problem) == 1 or config.beside else 2


def stream_rows(config: CudaConfig) -> int:
    """The output channels of a part of the weights that stream."""
    return PASS if config.beside else GROUP_ROWS


def output_sets(problem: Problem, config: CudaConfig) -> int:
    """How often a cluster computes a tile again, for other output channels."""
    if not config.beside:
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


def own_channels(problem: Problem, config: CudaConfig) -> int:
    """Of how many channels each block of a cluster computes the depthwise step: whole chunks.

    Weights of one term that pass by come in parts, whose chunks are multiplied together.
    """
    whole = chunk(problem) * (chunks_together(problem) if config.beside else 1)
    return up(up(problem.in_channels, whole), chunk(problem) * config.cluster) // config.cluster


def chunks_together(problem: Problem) -> int:
    """How many chunks are multiplied together where weights pass by: of one term those of a part of the weights."""
    return 64 // chunk(problem) if terms(problem) == 1 else 1


def has_patches(problem: Problem, config: CudaConfig) -> bool:
    """Whether a tile is a patch or two; else it is part of a row."""
    return config.gathers or (_channels_last(problem) and not config.rolls)


def has_diagonals(problem: Problem) -> bool:
    """Whether matrix units slide the window over patches: kernels/cuda/diagonals.cuh."""
    return _channels_last(problem) and problem.dtype.itemsize == 2


def runs(problem: Problem) -> dict[str, int]:
    """The bytes of what lies together in x and in y: rows or, with channels last, pixels."""
    found = {"input rows": problem.in_size[-1], "output rows": problem.out_size[-1]}
    if _channels_last(problem):
        found = {"input pixels": problem.in_channels, "output pixels": problem.out_channels}
    return {name: elements * problem.dtype.itemsize for name, elements in found.items()}


def copied_in_rows(problem: Problem) -> bool:
    """Whether the copy engine can load and store rows of pixels, or of channels: they are whole 16 bytes."""
    return all(size % ROW_BYTES == 0 for size in runs(problem).values())


def can_gather(problem: Problem) -> bool:
    """Whether warps can gather the input by themselves: four bytes at a time, of channels that lie apart."""
    return problem.dtype is torch.float32 and not _channels_last(problem)


def tiles(problem: Problem, config: CudaConfig) -> tuple[int, int]:
    """The tiles side by side in a row of y, and the rows of all images; of patches all tiles count as one below the other."""
    if not has_patches(problem, config):
        return math.ceil(problem.out_size[-1] / config.tile), problem.batch * math.prod(problem.out_size[:-1])
    if config.gathers:
        return 1, problem.batch * patches.gathered_count(problem, config.patch, config.tile)
    return 1, patches.pairs(problem, config.patch)


def stage_bytes(problem: Problem, config: CudaConfig) -> int:
    """The shared memory of a stage of input."""
    if config.gathers:
        box = input_box(problem, config)[0] * _gathered_pitch(problem, config)
        of_warp = chunk(problem) // WINDOW_WARPS * (box + math.prod(problem.kernel_size) + 1) * 4
        return up(WINDOW_WARPS * up(of_warp, 16), 128)
    box = part(problem) * math.prod(input_box(problem, config)) * problem.dtype.itemsize
    if has_diagonals(problem):
        taps = math.prod(problem.kernel_size) + problem.epilogue.depthwise_bias
        return up(2 * up(box, SWIZZLED) + chunk(problem) * taps * 2, SWIZZLED)
    return up(box * (2 if has_patches(problem, config) else 1), 128)


def _gathered_pitch(problem: Problem, config: CudaConfig) -> int:
    """The columns of a row of a gathered box, with those that are read for whole fours of pixels and some taps at a time."""
    taps, stride, dilation = problem.kernel_size[-1], problem.stride[-1], problem.dilation[-1]

    def columns_of(taps: int) -> int:
        return up(3 * stride + (taps - 1) * dilation + 1, 4)

    at_once = next((count for count in (taps, 4) if columns_of(count) <= MOST_GATHERED), 1)
    return (up(config.patch[1], 4) - 4) * stride + columns_of(up(taps, at_once))


def _bytes_beyond_stages(problem: Problem, config: CudaConfig) -> int:
    if not has_patches(problem, config) or config.gathers or has_diagonals(problem):
        return 0
    columns = config.patch[1]
    return (up(columns, 4) - columns) * problem.stride[-1] * 128


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
    return (
        whole_32_bytes(problem, before)
        + tile * problem.stride[-1]
        + whole_32_bytes(problem, reach_w(problem) - 1 - before)
    )


def columns_read(problem: Problem) -> int:
    """The columns of x that a thread reads for four pixels of a row, at least: those of all taps or, of many, of four.

    In 16 bits matrix units slide whole windows.
    """
    if problem.dtype.itemsize == 2:
        return 0
    if _channels_last(problem):
        return patches.input_box(problem, (1, 4))[1]
    return up(3 + 3 * problem.stride[-1] + 3 * problem.dilation[-1] + 1, 4)


def most_read(problem: Problem) -> int:
    """How many columns of x a thread has registers for: of two channels or of one."""
    return 24 if _channels_last(problem) else 32


def whole_32_bytes(problem: Problem, elements: int) -> int:
    """As many elements, and those that make 32 bytes full: what the copy engine loads fastest begins on 32 bytes."""
    return up(max(0, elements), 32 // problem.dtype.itemsize)


def _channels_last(problem: Problem) -> bool:
    return problem.layout == CHANNELS_LAST


def up(n: int, multiple: int) -> int:
    """The next multiple."""
    return -(-n // multiple) * multiple
