"""The ceilings of the device, measured in the same rounds as the calls, and the floor that they set under a problem's time."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from sepconv.backends import probe
from sepconv.bench.timing import WARM_UPS, Timer
from sepconv.device import describe
from sepconv.errors import CompilerError, StoreError
from sepconv.problem import Problem
from sepconv.tuning.config import multiplies_bfloat16

# Products in units of one bfloat16 product: 'high' takes three, full float32 six; TF32 runs at half the rate.
PRODUCTS = {"ieee": 6, "high": 3, "tf32": 2}
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
_SIDE = {"cpu": 1024, "cuda": 8192}
_STEADY_SAMPLES = 9
_PROBE_ROUNDS = 500_000  # one or two milliseconds


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


def unit_of(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype whose arithmetic sets the ceiling for problems of a dtype: on CUDA all but float64 is products of bfloat16."""
    return torch.bfloat16 if device.type == "cuda" and dtype is not torch.float64 else dtype


class Gauge:
    """Measures the ceilings of one device for one `unit_of`, again and again: the clocks of a shared machine drift."""

    def __init__(self, device: torch.device, dtype: torch.dtype, timer: Timer) -> None:
        self.timer = timer
        source = torch.rand(_COPY_BYTES[device.type] // 4, device=device)  # what it holds costs power, and so clocks
        self._source, self._target = source, torch.zeros_like(source)
        self._products = device.type == "cuda" and dtype is not torch.float64
        self._name, self._arithmetic = self._unit(device, dtype)
        for _ in range(WARM_UPS):
            self.sample()

    def sample(self) -> Ceilings:
        """The ceilings at this moment."""
        copied = self.timer.once(lambda: self._target.copy_(self._source))
        return Ceilings(2e3 * self._source.nbytes / copied, self._arithmetic(), self._name, self._products)

    def _unit(self, device: torch.device, dtype: torch.dtype) -> tuple[str, Callable[[], float]]:
        """What stands for the arithmetic units, and what measures its FLOP/s."""
        if device.type == "cuda" or dtype is torch.float64:
            unit = unit_of(device, dtype)
            return f"{str(unit).removeprefix('torch.')} matrix product", self._product(device, unit)
        isa = describe(device).isa
        if dtype is torch.bfloat16 and multiplies_bfloat16(isa):
            return f"bfloat16 matrix product, a stand-in for its units ({isa})", self._product(device, torch.bfloat16)
        try:
            probe.multiply_add_rate(isa, 1)
        except (CompilerError, StoreError):
            name = "float32 matrix product, a stand-in for FMA, which no compiler is here to measure"
            return name, self._product(device, torch.float32)
        return f"float32 FMA in registers ({isa})", lambda: probe.multiply_add_rate(isa, _PROBE_ROUNDS)

    def _product(self, device: torch.device, dtype: torch.dtype) -> Callable[[], float]:
        side = _SIDE[device.type] // (2 if dtype is torch.float64 else 1)
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in "ab")
        return lambda: 2e3 * side**3 / self.timer.once(lambda: a @ b)


class Steady:
    """Gives what a gauge finds now, again and again: for many short problems on a device whose clocks hold still."""

    def __init__(self, gauge: Gauge) -> None:
        self.timer = gauge.timer
        self._found = median([gauge.sample() for _ in range(_STEADY_SAMPLES)])

    def sample(self) -> Ceilings:
        """The ceilings at the start."""
        return self._found


def median(samples: Sequence[Ceilings]) -> Ceilings:
    """The samples of one gauge as one: the median of each rate."""
    copy, arithmetic = (
        statistics.median(rates) for rates in zip(*((s.copy, s.arithmetic) for s in samples), strict=True)
    )
    return replace(samples[0], copy=copy, arithmetic=arithmetic)


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
