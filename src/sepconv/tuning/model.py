"""The cost model: how long a configuration would take, from what the kernel does. It only has to rank configurations.

The constants are clocks, fitted to measurements of the kernel on a 2-core Xeon (AVX-512, AMX, 2 MiB of second-level cache),
2026-11-29; `fits` to those of 46 problems on a 2-core EPYC (AVX-512, 1 MiB), where the model's choice takes 1.6 per cent
longer than the best, and took 3.4 with 0.45 (2026-12-01).
"""

import math
from dataclasses import dataclass

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.candidates import candidates
from sepconv.tuning.config import CpuConfig, operand_bytes, rows_and_columns, units

LANES = {"amx": 16, "avx512_bf16": 16, "avx512": 16, "avx2": 8, "generic": 4}  # float32 values of a vector


@dataclass(frozen=True)
class Constants:
    """What the parts of a call cost, in clocks.

    `product`: each vector and weight of the product (two units would take 0.5); `matrices`: the same in matrix units;
    `result`: each vector of results. `load`: each tap of a vector of the depthwise step; `vector`: each vector of it besides,
    for its store and its way into the panels. `row`: each row of input, besides its vectors; `copy`: each vector of input
    that is padded and copied. `meeting`: the threads wait for one another, twice a tile. `tile`: a tile begins.
    `cache_bytes`, `memory_bytes`: how many come in a clock, from the second-level cache and from beyond. `fits`,
    `fits_matrices`: the share of that cache that a tile's depthwise result may take where vectors multiply, and where matrix
    units do; `spilled`: how much longer the product takes for each such share more, up to `worst` times as long.
    """

    product: float = 0.58
    matrices: float = 0.03
    result: float = 6.0
    load: float = 1.0
    vector: float = 8.5
    row: float = 14.0
    copy: float = 2.4
    meeting: float = 7000.0
    tile: float = 1300.0
    cache_bytes: float = 32.0
    memory_bytes: float = 7.0
    fits: float = 0.8
    fits_matrices: float = 0.45
    spilled: float = 0.75
    worst: float = 1.6


CONSTANTS = Constants()


def clocks(problem: Problem, config: CpuConfig, device: Device, constants: Constants = CONSTANTS) -> float:
    """The clocks that the slowest thread takes, roughly."""
    rows, columns = rows_and_columns(problem)
    tiles = math.ceil(rows / config.tile_rows) * math.ceil(columns / config.tile_columns)
    work = _product(problem, config, device, constants) + _depthwise(problem, config, device, constants)
    if config.shared:
        exchange = _result_bytes(problem, config, device) / constants.memory_bytes / device.units
        return tiles * (work / device.units + exchange + constants.meeting + constants.tile)
    return math.ceil(tiles / device.units) * (work + constants.tile)


def ranked(problem: Problem, device: Device, constants: Constants = CONSTANTS) -> list[CpuConfig]:
    """All candidates, the one that the model expects to be the fastest first."""
    return sorted(candidates(problem, device), key=lambda config: clocks(problem, config, device, constants))


def best(problem: Problem, device: Device) -> CpuConfig:
    """The candidate that the model expects to be the fastest. Raises ValueError where there is none."""
    return min(candidates(problem, device), key=lambda config: clocks(problem, config, device))


def eager_is_faster(problem: Problem, device: Device) -> str | None:
    """Why PyTorch's own kernels can be expected to be faster than any configuration, in words; None where they are not."""
    return None


def _result_bytes(problem: Problem, config: CpuConfig, device: Device) -> int:
    middle = problem.in_channels * problem.depth_multiplier
    return operand_bytes(problem, device.isa) * middle * config.tile_rows * config.tile_columns


def _product(problem: Problem, config: CpuConfig, device: Device, constants: Constants) -> float:
    """One tile's product: arithmetic, unless the weights come in too slowly; slower where its operand leaves the cache."""
    lanes, middle = LANES[device.isa], problem.in_channels * problem.depth_multiplier
    vectors = math.ceil(config.tile_rows * config.tile_columns / lanes)
    unit = units(problem, device.isa)
    products = unit.terms * (unit.terms + 1) // 2
    each = products * constants.matrices if unit.name == "matrices" else constants.product
    arithmetic = vectors * problem.out_channels * (each * middle + constants.result)
    fits = constants.fits_matrices if unit.name == "matrices" else constants.fits
    excess = _result_bytes(problem, config, device) / (fits * device.cache) - 1
    arithmetic *= min(constants.worst, 1 + constants.spilled * max(0.0, excess))
    weights = operand_bytes(problem, device.isa) * middle * problem.out_channels
    return arithmetic + weights / (constants.cache_bytes if weights < device.cache / 2 else constants.memory_bytes)


def _depthwise(problem: Problem, config: CpuConfig, device: Device, constants: Constants) -> float:
    """One tile's depthwise step, channel by channel."""
    lanes, middle = LANES[device.isa], problem.in_channels * problem.depth_multiplier
    kernel, stride, dilation = ((1, 1, *axes)[-2:] for axes in (problem.kernel_size, problem.stride, problem.dilation))
    vectors = config.tile_rows * math.ceil(config.tile_columns / lanes)
    input_rows = config.tile_rows * stride[0] + dilation[0] * (kernel[0] - 1)
    input_vectors = math.ceil((config.tile_columns + dilation[1] * (kernel[1] - 1) / stride[1]) / lanes) * stride[1]
    outputs = vectors * (constants.load * math.prod(kernel) + constants.vector)
    return middle * (outputs + input_rows * (constants.row + constants.copy * input_vectors))
