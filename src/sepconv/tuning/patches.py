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


def for_gathering(problem: Problem, pixels: int) -> list[tuple[int, int]]:
    """Patches whose input can be gathered: their rows take up whole fours of so many pixels (kernels/cuda/gathers.cuh)."""
    return [
        patch
        for patch in _sizes(problem, pixels)
        if patch[0] * math.ceil(patch[1] / 4) * 4 <= pixels
        and math.prod(input_box(problem, patch)) * 16 * 4 <= SHARED_BYTES // 6
    ]


def time_to_gather(problem: Problem, patch: tuple[int, int]) -> float:
    """How long it takes to gather a patch's input of a chunk of channels and to slide the window over it, in ns.

    A row of at most 32 columns is copied at a time, and 32 times four pixels are computed, or half as many where these are all.
    """
    rows, columns = input_box(problem, patch)
    units = patch[0] * math.ceil(patch[1] / 4)
    steps = 0.5 if units <= 16 else math.ceil(units / 32)
    return 50 * rows * math.ceil(columns / 32) + steps * (436 + 16 * math.prod(problem.kernel_size))


def _sizes(problem: Problem, pixels: int) -> Iterator[tuple[int, int]]:
    height, width = of_2d(problem.out_size)
    for rows in range(1, min(height, pixels) + 1):
        yield from ((rows, columns) for columns in range(1, min(width, pixels // rows) + 1))


def count(problem: Problem, patch: tuple[int, int]) -> int:
    """How many patches an image has."""
    return math.prod(math.ceil(size / of_patch) for size, of_patch in zip(of_2d(problem.out_size), patch, strict=True))


def of_2d(axes: tuple[int, ...]) -> tuple[int, int]:
    """The same of rows and columns: in 1-D there is one row."""
    height, width = (1, *axes)[-2:]
    return height, width


def input_box(problem: Problem, patch: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of x that a patch of so many output rows and columns takes."""
    axes = zip(patch, *map(of_2d, (problem.stride, problem.kernel_size, problem.dilation)), strict=True)
    rows, columns = ((size - 1) * stride + (kernel - 1) * dilation + 1 for size, stride, kernel, dilation in axes)
    return rows, columns
