"""The configurations that the cost model and the search choose from."""

from collections.abc import Iterator

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.config import CpuConfig, legal, rows_and_columns

# Output pixels of a tile: from one panel of the product to what a second-level cache holds of a few channels.
PIXELS = (16, 48, 96, 144, 192, 240, 288, 336, 384, 432, 480, 576, 672, 768, 960, 1152, 1536, 2048, 3072, 4096)

STEP = 16  # columns: tiles of a part of a row begin at whole vectors


def candidates(problem: Problem, device: Device) -> list[CpuConfig]:
    """Every configuration worth a try that is legal, without repetition; empty where the kernel can run none."""
    found = dict.fromkeys(_tiles(problem, device))
    return [config for config in found if legal(problem, config, device)]


def _tiles(problem: Problem, device: Device) -> Iterator[CpuConfig]:
    rows, columns = rows_and_columns(problem)
    for pixels in PIXELS:
        if columns > pixels:
            tile = (1, min(columns, -(-_even(columns, pixels) // STEP) * STEP))
            yield CpuConfig(*tile, shared=False)
        else:
            tile = (_even(rows, max(1, pixels // columns)), columns)
            yield CpuConfig(*tile, shared=False)
            yield CpuConfig(_even(rows, tile[0], device.units), columns, shared=False)
        if device.units > 1:
            yield CpuConfig(*tile, shared=True)


def _even(length: int, part: int, multiple: int = 1) -> int:
    """The size of the parts where `length` is cut into as few as can be of about one size, at most `part` each.

    There are a multiple of so many parts, so that each thread gets as many as the others.
    """
    count = -(-length // part)
    count = -(-count // multiple) * multiple
    return -(-length // min(count, length))
