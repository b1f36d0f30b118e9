"""Patches: rows by columns of output pixels, which a product group of the kernel for Hopper computes with channels last."""

import math
from collections.abc import Iterator

from sepconv.problem import Problem

SHARED_BYTES = 227 << 10  # what a block may have
GROUP_ROWS = 64  # of the product, that each of its two groups has at a time
MOST_BOX = 256  # rows, or columns, that the copy engine loads at a time


def costs(problem: Problem, pixels: int) -> dict[tuple[int, int], float]:
    """What it costs to compute y in patches of so many rows and columns, of at most so many pixels; the best first.

    A patch costs the product of all pixels, whatever it fills of them, and the window's step.
    """
    found = {}
    for patch in _sizes(problem, pixels):
        box = input_box(problem, patch)
        if max(box) <= MOST_BOX and 2 * math.prod(box) * 128 <= SHARED_BYTES // 3:
            found[patch] = count(problem, patch) * (pixels + cost_of_window(problem, patch))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def cost_of_window(problem: Problem, patch: tuple[int, int]) -> float:
    """What it costs to load a patch's input and to slide the window over it, four pixels at a time, in pixels of the product."""
    return math.prod(input_box(problem, patch)) / 2 + patch[0] * math.ceil(patch[1] / 4)


def time_by_diagonals(problem: Problem, patch: tuple[int, int]) -> float:
    """How long it takes to load a chunk's input of a tile of two patches in 16 bits and to slide the window over it, in ns.

    For each column of taps eight pixels of all rows are read at a time, and multiplied for two rows of results.
    """
    box, units_of_row, stride = input_box(problem, patch), math.ceil(patch[1] / 8), of_2d(problem.stride)
    matrices = box[0] * units_of_row * problem.kernel_size[-1] * math.gcd(stride[1], 8)
    deep = math.ceil((of_2d(problem.kernel_size)[0] + stride[0]) / 2)
    products = math.ceil(patch[0] / 2) * units_of_row * deep * problem.kernel_size[-1]
    return 310 + 2 * math.prod(box) + 5 * matrices + 18 * products


def for_gathering(problem: Problem, tile: int) -> list[tuple[int, int]]:
    """Patches whose input can be gathered: each has a tile of so many pixels, or they flow (kernels/cuda/problem.cuh)."""
    found = [patch for patch in _sizes(problem, tile) if not flows(patch, tile)]
    found += _flowing(problem, tile)
    return [patch for patch in found if math.prod(input_box(problem, patch)) * 16 * 4 <= SHARED_BYTES // 6]


def _flowing(problem: Problem, tile: int) -> Iterator[tuple[int, int]]:
    """Patches of rows that are more than fill a tile: as many as have a part of one, of strips of about one width."""
    height, width = of_2d(problem.out_size)
    for columns in {math.ceil(width / strips) for strips in range(1, width + 1)}:
        of_row = pitch((1, columns))
        if 2 * of_row > tile or height * of_row <= tile:
            continue
        rows = max((first * tile % of_row + tile - 1) // of_row for first in range(of_row)) + 1
        if flows((rows, columns), tile):  # else none of them begins within a row
            yield rows, columns


def pitch(patch: tuple[int, int]) -> int:
    """What a row of a patch that is gathered takes up of the product's columns: four pixels are computed together."""
    return math.ceil(patch[1] / 4) * 4


def flows(patch: tuple[int, int], tile: int) -> bool:
    """Whether the rows of a patch that is gathered are more than fill a tile of so many pixels."""
    return patch[0] * pitch(patch) > tile


def gathered_count(problem: Problem, patch: tuple[int, int], tile: int) -> int:
    """How many such patches, with a tile of so many pixels for each, an image has."""
    if not flows(patch, tile):
        return count(problem, patch)
    height, width = of_2d(problem.out_size)
    return math.ceil(width / patch[1]) * math.ceil(height * pitch(patch) / tile)


def time_to_gather(problem: Problem, patch: tuple[int, int], tile: int) -> float:
    """How long it takes to gather a patch's input of a chunk of channels and to slide the window over it, in ns.

    A row of at most 32 columns is copied at a time, and 32 times four pixels are computed, or half as many where these are all.
    """
    rows, columns = input_box(problem, patch)
    units = min(patch[0] * pitch(patch), tile) // 4
    steps = 0.5 if units <= 16 else math.ceil(units / 32)
    return 50 * rows * math.ceil(columns / 32) + steps * (436 + 16 * math.prod(problem.kernel_size))


def _sizes(problem: Problem, pixels: int) -> Iterator[tuple[int, int]]:
    height, width = of_2d(problem.out_size)
    for rows in range(1, min(height, pixels) + 1):
        yield from ((rows, columns) for columns in range(1, min(width, pixels // rows) + 1))


def count(problem: Problem, patch: tuple[int, int]) -> int:
    """How many patches an image has."""
    return math.prod(math.ceil(size / of_patch) for size, of_patch in zip(of_2d(problem.out_size), patch, strict=True))


def pairs(problem: Problem, patch: tuple[int, int]) -> int:
    """How many tiles of two such patches all images have."""
    return math.ceil(problem.batch * count(problem, patch) / 2)


def of_2d(axes: tuple[int, ...]) -> tuple[int, int]:
    """The same of rows and columns: in 1-D there is one row."""
    height, width = (1, *axes)[-2:]
    return height, width


def input_box(problem: Problem, patch: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of x that a patch of so many output rows and columns takes."""
    axes = zip(patch, *map(of_2d, (problem.stride, problem.kernel_size, problem.dilation)), strict=True)
    rows, columns = ((size - 1) * stride + (kernel - 1) * dilation + 1 for size, stride, kernel, dilation in axes)
    return rows, columns
