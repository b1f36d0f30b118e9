"""The configurations that the cost model and the search choose from."""

from collections.abc import Iterator

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.config import CpuConfig, legal, rows_and_columns

# Output pixels of a tile: from one panel of the product to what a second-level cache holds of a few channels.
PIXELS = (16, 48, 96, 144, 192, 288, 384, 576, 768, 1152, 1536, 2048, 3072, 4096)


def candidates(problem: Problem, device: Device) -> list[CpuConfig]:
    """Every configuration worth a try that is legal, without repetition; empty where the kernel can run none."""
    found = dict.fromkeys(_tiles(problem, device))
    return [config for config in found if legal(problem, config, device)]


def _tiles(problem: Problem, device: Device) -> Iterator[CpuConfig]:
    rows, columns = rows_and_columns(problem)
    for pixels in PIXELS:
        if columns > pixels:
            tile = (1, pixels)
        else:
            count = -(-rows // max(1, pixels // columns))  # tiles, all of about one size
            tile = (-(-rows // count), columns)
        yield CpuConfig(*tile, shared=False)
        if device.units > 1:
            yield CpuConfig(*tile, shared=True)
