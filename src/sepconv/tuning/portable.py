"""How the portable kernel for GPUs runs a problem: one configuration, by the shared memory and the SMs of a device."""

import math
from dataclasses import dataclass

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.hopper import terms

BLOCK, CHUNK = 128, 32  # output channels, and middle channels, that are multiplied together: kernels/cuda/portable.cu
TILES = (64, 32, 16)
_PITCH = CHUNK + 8
_MOST_TAPS = 64  # with fewer they lie in shared memory
_SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}  # that a block may have; elsewhere:
_LEAST_SHARED_KIB = 99


@dataclass(frozen=True)
class PortableConfig:
    """How the kernel runs a problem.

    A block takes a `tile` of so many output pixels. Where it is `resident`, the depthwise result of all channels stays in shared
    memory for all output channels; else it is computed for each 128 of them again. `blocks_of_sm` blocks are to run on an SM at
    a time. Output channels are split among `splits` blocks for each tile, where there are fewer tiles than SMs.
    """

    tile: int
    resident: bool
    blocks_of_sm: int
    splits: int

    def __str__(self) -> str:
        where = "stays for all output channels" if self.resident else "is computed for each 128 output channels"
        return f"tiles of {self.tile} pixels, whose depthwise result {where}, {self.splits} blocks for each tile"


def shared_bytes(problem: Problem, tile: int, resident: bool) -> int:
    """The shared memory of a block; mirrors kSharedBytes in kernels/cuda/portable.cu."""
    operands = math.ceil(problem.in_channels * problem.depth_multiplier / CHUNK) if resident else 2
    taps = math.prod(problem.kernel_size)
    tap_floats = (taps + 1) * CHUNK if taps < _MOST_TAPS else 0
    return (operands * tile + 2 * BLOCK) * terms(problem) * _PITCH * 2 + 2 * tap_floats * 4


def configuration(problem: Problem, device: Device) -> PortableConfig:
    """The configuration for a problem: every problem has one."""
    room = 1024 * _SHARED_KIB.get(device.capability or (0, 0), _LEAST_SHARED_KIB)
    tile, resident = _tile(problem, room)
    # Sums of 64 pixels, in parts, take more registers than two blocks leave to a thread.
    crowded = tile == TILES[0] and terms(problem) > 1
    blocks_of_sm = 1 if crowded or 2 * shared_bytes(problem, tile, resident) > room else 2
    tiles = max(1, math.ceil(problem.batch * math.prod(problem.out_size) / tile))
    splits = max(1, min(math.ceil(problem.out_channels / BLOCK), device.units * blocks_of_sm // tiles))
    return PortableConfig(tile, resident, blocks_of_sm, splits)


def _tile(problem: Problem, room: int) -> tuple[int, bool]:
    """The pixels of a tile, and whether its depthwise result stays: where it is multiplied once, only if two blocks still fit."""
    multiplied_once = problem.out_channels <= BLOCK
    sizes, most = (TILES[:1], room // 2) if multiplied_once else (TILES, room)
    fitting = (tile for tile in sizes if shared_bytes(problem, tile, resident=True) <= most)
    tile = next(fitting, None)
    return (tile, True) if tile else (TILES[0], False)
