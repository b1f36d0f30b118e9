"""What the tests of the CPU's kernels share: the backend called with a configuration, and cases that share few builds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from budget import check
from calls import named
from cases import Case, double, pair
from torch import Tensor

from sepconv import dispatch, ops
from sepconv.arguments import canonical
from sepconv.backends import cpu
from sepconv.backends.cpu import CpuBackend
from sepconv.device import describe
from sepconv.functional import problem_and_device
from sepconv.jit import cxx
from sepconv.problem import Operands, Options, Problem
from sepconv.tuning import config
from sepconv.tuning.candidates import candidates
from sepconv.tuning.config import CpuConfig

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = ("plain", "channels_last")
BACKEND = CpuBackend()
CPU = torch.device("cpu")
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def words(case: Case) -> tuple:
    """The arguments of a case that are no tensors, in the order of the library's `Words`."""
    return (case.stride, case.padding, case.dilation, *case.activations, None)


def problem_of(tensors: Sequence[Tensor | None], case: Case) -> Problem:
    return problem_and_device(Operands(*tensors), words(case))[0]


def options_of(tensors: Sequence[Tensor | None], case: Case) -> Options:
    return canonical(case.rank, Operands(*tensors), words(case))


def plan_of(tensors: Sequence[Tensor | None], case: Case) -> dispatch.Plan:
    return dispatch.plan(problem_of(tensors, case), describe(CPU))


def configs_of(tensors: Sequence[Tensor | None], case: Case) -> list[CpuConfig]:
    """Every candidate, as on a machine of several cores."""
    return candidates(problem_of(tensors, case), replace(describe(CPU), units=2))


def run(tensors: Sequence[Tensor | None], case: Case, config: CpuConfig, isa: str | None = None) -> Tensor:
    """The result by the CPU backend with this configuration."""
    device = describe(CPU)
    device = device if isa is None else replace(device, isa=isa)
    problem = problem_of(tensors, case)
    assert not BACKEND.unavailable(device) + BACKEND.reasons(problem, device)
    return BACKEND.forward(problem, config, Operands(*tensors), options_of(tensors, case), device)


def check_result(y: Tensor, tensors: Sequence[Tensor | None], case: Case) -> None:
    """Hold a result to the budget."""
    check(y, pair(double(tensors), case), pair(tensors, case), tensors[0].dtype)


def bits_of(tensors: Sequence[Tensor | None]) -> dict[str, bytes]:
    """Every byte of the memory that the tensors lie in, with what is around and between their elements."""
    memory = torch.empty(0, dtype=torch.uint8)
    return {name: memory.set_(t.untyped_storage()).numpy().tobytes() for name, t in named(tensors).items()}


@pytest.fixture
def few_builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[int, ...]]]:
    """All kernels of one dtype and layout are one build, which takes a second: for them nothing is known when it is compiled.

    The windows in the set that this gives have a build too, where a step is 1 everywhere.
    """
    known: set[tuple[int, ...]] = set()
    detailed = cpu.build

    def build(problem: Problem, isa: str) -> cxx.Build:
        found = detailed(problem, isa)
        defines = dict(found.defines) | dict.fromkeys(_ACTIVATIONS, "any")
        steps = {problem.depth_multiplier, *problem.stride, *problem.dilation}
        if problem.kernel_size not in known or steps != {1}:
            defines |= _NOTHING_KNOWN
        return replace(found, defines=tuple(defines.items()))

    monkeypatch.setattr(cpu, "build", build)
    ops.forget_plans()
    yield known
    monkeypatch.undo()
    ops.forget_plans()


@pytest.fixture
def terms_for_any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the machine splits operands into terms, small problems have theirs split too."""
    monkeypatch.setattr(config, "PIXELS_WORTH_TERMS", dict.fromkeys(config.PIXELS_WORTH_TERMS, 0))
    ops.forget_plans()
    yield
    monkeypatch.undo()
    ops.forget_plans()


_ACTIVATIONS = ("SEPCONV_DEPTHWISE_ACTIVATION", "SEPCONV_POINTWISE_ACTIVATION")
_NOTHING_KNOWN = {f"SEPCONV_{name}": 0 for name in ("MULTIPLIER", "KERNEL_H", "KERNEL_W")}
_NOTHING_KNOWN |= {f"SEPCONV_{name}": 1 for name in ("STRIDE_H", "STRIDE_W")}
