"""Configurations: how a kernel runs a problem, as frozen records; and which of them are legal."""

import math
from dataclasses import dataclass

import torch

from sepconv.device import Device
from sepconv.problem import CHANNELS_LAST, Problem

MOST_SCRATCH = 8 << 20  # bytes that the tile of one thread may take


@dataclass(frozen=True)
class CpuConfig:
    """How the CPU's kernel runs a problem.

    A tile is `tile_rows` rows of `tile_columns` output pixels; rows run on from image to image (in 1-D every image is one
    row). With `shared` all threads work on one tile after the other; without, each thread takes tiles of its own.
    """

    tile_rows: int
    tile_columns: int
    shared: bool

    def __str__(self) -> str:
        how = "shared by the threads" if self.shared else "one for each thread"
        return f"tiles of {self.tile_rows} x {self.tile_columns} output pixels, {how}"


@dataclass(frozen=True)
class Units:
    """What multiplies in the product, by its name in kernels/cpu/call.h, and of how many bfloat16 terms its operands are sums.

    'vectors' of float32; where the CPU has them, 'matrices' of bfloat16, or for bfloat16 alone 'pairs'. With one term an
    operand is of the unit's own dtype.
    """

    name: str
    terms: int = 1


VECTORS = Units("vectors")


# Output pixels from which on splitting the weights pays: every weight is split once and multiplied with each pixel. float32 could
# be multiplied where it lies ((1, 512, 7, 7) -> 512: 109 us with terms, 123 with vectors; 4x4: 72 and 58; what fills its vectors
# is in between, (1, 256, 8, 8) -> 256: 52 and 43), float16 is converted anyway ((1, 512, 7, 7) -> 512: 95 and 194 us; 2 cores of
# a Xeon, 2026-11-30).
PIXELS_WORTH_TERMS = {torch.float32: 48, torch.float16: 16}


def units(problem: Problem, isa: str) -> Units:
    """What multiplies for this problem on this machine."""
    if problem.dtype is torch.bfloat16:
        return _BFLOAT16_UNITS.get(isa, VECTORS)
    pixels = problem.batch * math.prod(problem.out_size)
    splits = isa == "amx" and pixels >= PIXELS_WORTH_TERMS[problem.dtype]
    return Units("matrices", _TERMS[problem.dtype]) if splits else VECTORS


def multiplies_bfloat16(isa: str) -> bool:
    """Whether the CPU has units of its own for bfloat16."""
    return isa in _BFLOAT16_UNITS


_BFLOAT16_UNITS = {"amx": Units("matrices"), "avx512_bf16": Units("pairs")}
_TERMS = {torch.float16: 2, torch.float32: 3}


def rows_and_columns(problem: Problem) -> tuple[int, int]:
    """The output as the CPU's kernel sees it: rows of all images together, and the columns of a row; an empty one as one."""
    *outer, columns = problem.out_size
    return max(1, problem.batch * math.prod(outer)), max(1, columns)


def operand_bytes(problem: Problem, isa: str) -> int:
    """The bytes of one number in the product, all terms together."""
    unit = units(problem, isa)
    return 4 if unit == VECTORS else 2 * unit.terms


def scratch(problem: Problem, config: CpuConfig, isa: str) -> int:
    """Roughly the bytes that one tile takes: its depthwise result and, in channels_first, the padded input of two channels."""
    middle = problem.in_channels * problem.depth_multiplier
    result = operand_bytes(problem, isa) * config.tile_rows * config.tile_columns * middle
    if problem.layout == CHANNELS_LAST:
        return result
    stride, kernel, dilation = ((1, 1, *axes)[-2:] for axes in (problem.stride, problem.kernel_size, problem.dilation))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    input_rows = config.tile_rows * stride[0] + reach[0]
    input_columns = config.tile_columns * stride[1] + reach[1]
    return result + 4 * 2 * input_rows * input_columns


def legal(problem: Problem, config: CpuConfig, device: Device) -> bool:
    """Whether the kernel can run this problem with this configuration on this device."""
    rows, columns = rows_and_columns(problem)
    inside = 1 <= config.tile_rows <= rows and 1 <= config.tile_columns <= columns
    whole = config.tile_rows == 1 or config.tile_columns == columns
    return inside and whole and scratch(problem, config, device.isa) <= MOST_SCRATCH
