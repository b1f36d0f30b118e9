"""The ceilings of the device, measured in the same run, and the floor that they set under a problem's time."""

from dataclasses import dataclass, replace

import torch

from sepconv.bench.timing import Timer
from sepconv.problem import Problem

# Products in units of one bfloat16 product: 'high' takes three, full float32 six; TF32 runs at half the rate.
PRODUCTS = {"ieee": 6, "high": 3, "tf32": 2}
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
_SIDE = {"cpu": 1536, "cuda": 8192}
_ROUNDS = 7


@dataclass(frozen=True)
class Ceilings:
    """What the device can do: bytes a second of a copy (read + written), FLOPs a second, and what gave the latter.

    `products` says whether float32 counts as several products (on CUDA, where the unit is a bfloat16 product).
    """

    copy: float
    arithmetic: float
    arithmetic_name: str
    products: bool = False

    def __str__(self) -> str:
        unit, scale = ("TFLOP/s", 1e12) if self.arithmetic >= 1e13 else ("GFLOP/s", 1e9)
        rate = f"{self.arithmetic / scale:.1f} {unit}"
        return f"copy: {self.copy / 1e9:.1f} GB/s; arithmetic: {self.arithmetic_name}, {rate}"


def measure(device: torch.device, dtype: torch.dtype, timer: Timer) -> Ceilings:
    """The ceilings of this device for problems of this dtype."""
    copy = _copy_rate(device, timer)
    if device.type == "cuda" and dtype is not torch.float64:
        return Ceilings(copy, _product_rate(device, torch.bfloat16, timer), "bfloat16 matrix product", products=True)
    if device.type == "cuda":
        return Ceilings(copy, _product_rate(device, dtype, timer), "float64 matrix product")
    unit = dtype if dtype is torch.float64 else torch.float32
    name = f"{str(unit).removeprefix('torch.')} matrix product, a stand-in for FMA"
    return Ceilings(copy, _product_rate(device, unit, timer), name)


def floor_ms(traffic: int, flops: int, precision: str, dtype: torch.dtype, ceilings: Ceilings) -> float:
    """The time that nothing can be faster than, in milliseconds: the larger of bytes / rate and FLOPs / rate."""
    factor = PRODUCTS[precision] if ceilings.products and dtype is torch.float32 else 1
    return 1e3 * max(traffic / ceilings.copy, factor * flops / ceilings.arithmetic)


def work(problem: Problem, *, training: bool) -> tuple[int, int]:
    """Bytes to move and FLOPs of a problem in forward, or in forward and backward together."""
    if not training:
        return problem.bytes, problem.flops
    backward = replace(problem, direction="backward")
    return problem.bytes + backward.bytes, problem.flops + backward.flops


def _copy_rate(device: torch.device, timer: Timer) -> float:
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.int8, device=device).view(torch.float32)
    target = torch.zeros_like(source)
    times = timer.in_turn({"copy": lambda: target.copy_(source)}, _ROUNDS)
    return 2e3 * source.nbytes / times["copy"].median


def _product_rate(device: torch.device, dtype: torch.dtype, timer: Timer) -> float:
    side = _SIDE[device.type] // (2 if dtype is torch.float64 else 1)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in "ab")
    times = timer.in_turn({"product": lambda: a @ b}, _ROUNDS)
    return 2e3 * side**3 / times["product"].median
