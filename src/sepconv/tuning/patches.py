"""Patches: rows by columns of output pixels, which a product group of the kernel for Hopper computes with channels last."""

import math

from sepconv.problem import Problem

SHARED_BYTES = 227 << 10  # what a block may have
GROUP_ROWS = 64  # of the product, that each of its two groups has at a time
MOST_BOX = 256  # rows, or columns, that the copy engine loads at a time


def costs(problem: Problem, pixels: int, more: int = 0) -> dict[tuple[int, int], float]:
    """What it costs to compute y in patches of so many rows and columns, of at most so many pixels; the best first.

    A patch costs the product of all pixels, whatever it fills of them, what is loaded for it, and four pixels of a row at a time
    in the window's step; and as much as `more` pixels, of whatever size it is.
    """
    height, width = of_2d(problem.out_size)
    found = {}
    for rows in range(1, min(height, pixels) + 1):
        for columns in range(1, min(width, pixels // rows) + 1):
            box = input_box(problem, (rows, columns))
            if max(box) <= MOST_BOX and 2 * math.prod(box) * 128 <= SHARED_BYTES // 3:
                count = math.ceil(height / rows) * math.ceil(width / columns)
                cost = pixels + more + math.prod(box) / 2 + rows * math.ceil(columns / 4)
                found[rows, columns] = count * cost
    return dict(sorted(found.items(), key=lambda item: item[1]))


def of_2d(axes: tuple[int, ...]) -> tuple[int, int]:
    """The same of rows and columns: in 1-D there is one row."""
    height, width = (1, *axes)[-2:]
    return height, width


def input_box(problem: Problem, patch: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of x that a patch of so many output rows and columns takes."""
    axes = zip(patch, *map(of_2d, (problem.stride, problem.kernel_size, problem.dilation)), strict=True)
    rows, columns = ((size - 1) * stride + (kernel - 1) * dilation + 1 for size, stride, kernel, dilation in axes)
    return rows, columns
