"""The cost model: how long a configuration would take, from what the kernel does. It only has to rank configurations.

The constants are clocks, fitted to measurements of the kernel on a 2-core Xeon (AVX-512, 2 MiB of second-level cache),
2026-11-29.
"""

import math

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.candidates import candidates
from sepconv.tuning.config import CpuConfig, rows_and_columns

LANES = {"amx": 16, "avx512_bf16": 16, "avx512": 16, "avx2": 8, "generic": 4}  # float32 values of a vector
PRODUCT = 0.58  # clocks for each vector and weight of the product; two units would take 0.5
LOAD = 1.0  # for each tap of a vector of the depthwise step
VECTOR = 8.5  # for each vector of it besides: its store, and its way into the panels
ROW = 14.0  # for each row of input, besides its vectors
COPY = 2.4  # for each vector of input that is padded and copied
CACHE_BYTES, MEMORY_BYTES = 32.0, 12.0  # a clock, from the second-level cache and from beyond
FITS, SPILLS, WORST = 0.33, 0.75, 1.6  # the share of the cache a tile's result may take; what more costs, and at most
MEETING = 7000.0  # for the threads to wait for one another, twice a tile
TILE = 1300.0  # to begin a tile


def clocks(problem: Problem, config: CpuConfig, device: Device) -> float:
    """The clocks that the slowest thread takes, roughly."""
    rows, columns = rows_and_columns(problem)
    tiles = math.ceil(rows / config.tile_rows) * math.ceil(columns / config.tile_columns)
    product, depthwise = _product(problem, config, device), _depthwise(problem, config, device)
    if config.shared:
        exchange = _result_bytes(problem, config) / MEMORY_BYTES / device.units
        return tiles * ((product + depthwise) / device.units + exchange + MEETING + TILE)
    return math.ceil(tiles / device.units) * (product + depthwise + TILE)


def best(problem: Problem, device: Device) -> CpuConfig:
    """The candidate that the model expects to be the fastest. Raises ValueError where there is none."""
    return min(candidates(problem, device), key=lambda config: clocks(problem, config, device))


def _result_bytes(problem: Problem, config: CpuConfig) -> int:
    return 4 * config.tile_rows * config.tile_columns * problem.in_channels * problem.depth_multiplier


def _product(problem: Problem, config: CpuConfig, device: Device) -> float:
    """One tile's product: arithmetic, unless the weights come in too slowly; slower where its operand leaves the cache."""
    lanes, middle = LANES[device.isa], problem.in_channels * problem.depth_multiplier
    vectors = math.ceil(config.tile_rows * config.tile_columns / lanes)
    arithmetic = PRODUCT * vectors * middle * problem.out_channels
    arithmetic *= min(WORST, 1 + SPILLS * max(0.0, _result_bytes(problem, config) / (FITS * device.cache) - 1))
    weights = 4 * middle * problem.out_channels
    return arithmetic + weights / (CACHE_BYTES if weights < device.cache / 2 else MEMORY_BYTES)


def _depthwise(problem: Problem, config: CpuConfig, device: Device) -> float:
    """One tile's depthwise step, channel by channel."""
    lanes, middle = LANES[device.isa], problem.in_channels * problem.depth_multiplier
    kernel, stride, dilation = ((1, 1, *axes)[-2:] for axes in (problem.kernel_size, problem.stride, problem.dilation))
    vectors = config.tile_rows * math.ceil(config.tile_columns / lanes)
    input_rows = config.tile_rows * stride[0] + dilation[0] * (kernel[0] - 1)
    input_vectors = math.ceil((config.tile_columns + dilation[1] * (kernel[1] - 1) / stride[1]) / lanes) * stride[1]
    outputs = vectors * (LOAD * math.prod(kernel) + VECTOR)
    return middle * (outputs + input_rows * (ROW + COPY * input_vectors))
