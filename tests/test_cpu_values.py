"""Special values on the CPU backend: inf and NaN, the ends of each dtype, the rounding to 16 bits, and every activation."""

import math
from dataclasses import replace

import pytest
import torch
from budget import check
from calls import separable
from cases import ACTIVATION_WORDS, BY_ID, Case, activation, pair, tensors_of
from kernels import DTYPES, HAS_AVX512, LAYOUTS, check_result, configs_of, plan_of, run
from torch import Tensor

import sepconv
from sepconv import ops
from sepconv.backends import cpu
from sepconv.device import Device, describe
from sepconv.problem import Problem
from sepconv.tuning.config import CpuConfig, multiplies_bfloat16

INF, NAN = math.inf, math.nan
EDGE = Case("edge", 2, 5, 7, (6, 9), (3, 3), padding=1)
CASES = [
    EDGE,
    Case("edge-any", 2, 4, 7, (6, 9), (2, 4), m=2, padding=2, stride=(1, 2), dilation=(2, 1)),
    Case("edge-1d", 3, 5, 7, (23,), (5,), padding=2),
]
by_dtype = {"ids": lambda value: str(value).removeprefix("torch.")}
pytestmark = pytest.mark.usefixtures("nan_in_fresh_memory", "few_builds", "terms_for_any_size")


def on_cpu(tensors: list[Tensor | None], case: Case) -> Tensor:
    """The library's result, which the CPU backend has to give."""
    assert plan_of(tensors, case).backend.name == "cpu"
    return separable(tensors, case)


# --- inf and NaN


def test_a_special_value_in_a_call_that_is_remembered() -> None:
    tensors = tensors_of(EDGE)
    for _ in range(2):
        check_result(on_cpu(tensors, EDGE), tensors, EDGE)
    tensors[0][0, 0, 1, 1] = INF
    check_result(on_cpu(tensors, EDGE), tensors, EDGE)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_special_value_in_any_operand(case: Case, value: float, dtype: torch.dtype, form: str) -> None:
    case = replace(case, bias="dp", residual=True, padding=0)
    for i in range(6):
        for place in (0, 1, -1):
            tensors = tensors_of(case, dtype, form=form)
            tensors[i][tuple(min(place, n - 1) for n in tensors[i].shape)] = value
            check_result(on_cpu(tensors, case), tensors, case)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_padding_multiplies_no_weight(case: Case, value: float, dtype: torch.dtype, form: str) -> None:
    """An infinite weight over padding gives no NaN of its own; PyTorch's own kernels may, and are no judge here."""
    for place in (0, -1):
        tensors = tensors_of(case, dtype, form=form)
        tensors[0].abs_().add_(1)
        tensors[2].abs_().add_(1)
        tensors[1][(0, 0, *[place] * case.rank)] = value
        for config in configs_of(tensors, case):
            y = run(tensors, case, config)
            right = _without_padding(tensors, case).to(dtype)
            assert torch.equal(y.isnan(), right.isnan())
            assert torch.equal(y.isinf(), right.isinf())


def _without_padding(tensors: list[Tensor | None], case: Case) -> Tensor:
    """The right answer, tap by tap over the places of x that exist."""
    x, weight, pointwise, *_ = (None if t is None else t.double() for t in tensors)
    shape = pair(tensors, case).shape
    steps = [(n,) * case.rank if isinstance(n, int) else n for n in (case.stride, case.padding, case.dilation)]
    middle = torch.zeros(case.N, case.C * case.m, *shape[2:], dtype=torch.float64)
    for at in torch.cartesian_prod(*[torch.arange(n) for n in shape[2:]]).view(-1, case.rank).tolist():
        for tap in torch.cartesian_prod(*[torch.arange(n) for n in case.K]).view(-1, case.rank).tolist():
            place = [a * s - p + t * d for a, t, s, p, d in zip(at, tap, *steps, strict=True)]
            if all(0 <= n < size for n, size in zip(place, case.L, strict=True)):
                values = x[(slice(None), slice(None), *place)].repeat_interleave(case.m, 1)
                middle[(slice(None), slice(None), *at)] += values * weight[(slice(None), 0, *tap)]
    return torch.einsum("nc...,oc->no...", middle, pointwise.flatten(1))


# --- the ends of the dtypes


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_sums_beyond_the_largest_value_are_infinite(dtype: torch.dtype, form: str) -> None:
    case = Case("large", 1, 4, 6, (5, 7), (3, 3))
    largest = torch.finfo(dtype).max
    tensors = tensors_of(case, dtype, form=form)
    tensors[0].fill_(largest / 4)
    tensors[1].zero_()[:, :, 1, 1] = 1
    tensors[2].fill_(1)
    tensors[2][:2] = -1
    tensors[2][2:4] = 0.5
    y = on_cpu(tensors, case)
    check_result(y, tensors, case)
    tensors[0] *= 2
    y = on_cpu(tensors, case)
    assert (y[:, :2] == -INF).all()
    assert y[:, 2:4].isfinite().all()
    assert (y[:, 4:] == INF).all()


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_subnormal_numbers_are_no_zeros(dtype: torch.dtype, form: str) -> None:
    case = Case("small", 1, 4, 6, (5, 19), (3, 3), padding=1)
    tensors = tensors_of(case, dtype, form=form)
    tensors[0].mul_(torch.finfo(dtype).tiny / 2)
    y = on_cpu(tensors, case)
    assert y.any()
    check_result(y, tensors, case)
    tensors[0].fill_(-0.0)
    assert not on_cpu(tensors, case).any()


# --- operands of every size: those that do not split into terms go another way


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("of_weight", [-100, -45, 0, 63, 120])
@pytest.mark.parametrize("of_x", [-120, -45, -30, 0, 58, 63, 120])
def test_numbers_of_any_size_are_multiplied_as_exactly(of_x: int, of_weight: int, form: str) -> None:
    if not -110 < of_x + of_weight < 110:  # the result would not be a normal number
        return
    case = Case("scaled", 2, 37, 11, (9, 11), (3, 3), padding=1)
    tensors = tensors_of(case, form=form)
    tensors[0].mul_(2.0**of_x)
    tensors[2].mul_(2.0**of_weight)
    check_result(on_cpu(tensors, case), tensors, case)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("channels", [64, 512])
def test_errors_have_no_direction(channels: int, form: str) -> None:
    """A sum that is always a little too small passes every budget of one layer, and adds up over the layers of a model."""
    draw = torch.Generator().manual_seed(1)
    x, depthwise, pointwise = (
        torch.rand(shape, generator=draw) + 0.5
        for shape in ((1, channels, 24, 24), (channels, 1, 1, 1), (64, channels, 1, 1))
    )
    if form == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    y = sepconv.separable_conv2d(x, depthwise, pointwise).double()
    right = torch.conv2d((x * depthwise.view(1, -1, 1, 1)).double(), pointwise.double())
    assert abs(((y - right) / right).mean()) < 5e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], **by_dtype)
def test_only_what_does_not_split_is_computed_twice(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if describe(torch.device("cpu")).isa != "amx":
        pytest.skip("nothing is split without AMX")
    tensors, without_terms, computed = tensors_of(EDGE, dtype), cpu._without_terms, []

    def note(problem: Problem, config: CpuConfig, device: Device) -> cpu.Kernel:
        computed.append(problem)
        return without_terms(problem, config, device)

    monkeypatch.setattr(cpu, "_without_terms", note)
    for _ in range(3):  # the first time, and as calls that are remembered
        on_cpu(tensors, EDGE)
    tensors[0].zero_()
    on_cpu(tensors, EDGE)
    assert not computed
    tensors[0][1, 1, 3, 4] = INF
    on_cpu(tensors, EDGE)
    assert len(computed) == 1
    ops.forget_plans()
    on_cpu(tensors, EDGE)
    assert len(computed) == 2
    tensors[0].fill_(1)
    tensors[2][-1, -1] = NAN
    on_cpu(tensors, EDGE)
    assert len(computed) == 3


# --- the rounding to 16 bits


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES[1:], **by_dtype)
@pytest.mark.parametrize("isa", ["avx512", "avx2", "generic"])
def test_results_are_rounded_as_pytorch_rounds(
    isa: str, dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value times a weight, which float32 holds exactly: ties and their neighbours, subnormal and too large numbers."""
    if isa == "avx512" and not HAS_AVX512:
        pytest.skip("this CPU has no AVX-512")
    monkeypatch.setenv("SEPCONV_ISA", isa)
    ops.forget_plans()
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).view(1, 1, 256, 256)
    x = x.to(memory_format=torch.channels_last) if form == "channels_last" else x
    case, one, eps = (
        Case("rounded", 1, 1, 1, (256, 256), (1, 1)),
        torch.ones(1, 1, 1, 1, dtype=dtype),
        torch.finfo(dtype).eps,
    )
    for factor in (1.0, 0.5, -0.25, 0.75, 1.5, 1.5 + eps, 1.5 - eps, 1 + eps, 1 - eps / 2, 2.0):
        y = on_cpu([x, one * factor, one, None, None, None], case)
        right = (x.float() * factor).to(dtype)
        assert torch.equal(y.isnan(), x.isnan())
        assert torch.equal(y[~x.isnan()], right[~x.isnan()])


@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_every_value_passes_unchanged(dtype: torch.dtype) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    values = bits.to(torch.int16).view(dtype) if dtype.itemsize == 2 else (bits << 16).view(dtype)
    case = Case("pass", 1, 1, 1, (256, 256), (1, 1))
    one = torch.ones(1, 1, 1, 1, dtype=dtype)
    y = on_cpu([values.view(1, 1, 256, 256), one, one, None, None, None], case).view(-1)
    own_bfloat16 = multiplies_bfloat16(describe(torch.device("cpu")).isa)
    if dtype is torch.bfloat16 and own_bfloat16:  # which has no subnormal numbers
        values = torch.where(values.abs() < torch.finfo(dtype).tiny, 0, values)
    assert torch.equal(y.isnan(), values.isnan())
    assert torch.equal(y[~values.isnan()], values[~values.isnan()])


# --- activations


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("word", ACTIVATION_WORDS, ids=str)
def test_an_activation_over_its_whole_range(word: str | tuple[str, float] | None, step: int) -> None:
    x = torch.cat([torch.linspace(-110, 110, 4001), torch.linspace(-1, 1, 1001)])
    case = Case("range", 1, 1, 1, (x.numel(),), (1,), activations=(word, None) if step == 0 else (None, word))
    one = torch.ones(1, 1, 1)
    tensors = [x[None, None], one, one, None, None, None]
    check_result(on_cpu(tensors, case), tensors, case)


EXTREMES = (INF, -INF, NAN, 3e38, -3e38, 1e30, -1e30, 1e10, -1e10, 104.0, -104.0, 90.0, -90.0, 1e-30, -1e-30, 0.0, -0.0)


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("word", ACTIVATION_WORDS, ids=str)
def test_an_activation_of_one_extreme_value(word: str | tuple[str, float] | None, value: float) -> None:
    for activations in ((word, None), (None, word)):
        case = Case("extreme", 1, 1, 1, (3,), (1,), activations=activations)
        one = torch.ones(1, 1, 1)
        y = on_cpu([torch.full((1, 1, 3), value), one, one, None, None, None], case)
        x = torch.full((1, 1, 3), value)
        check(y, activation(word)(x.double()), activation(word)(x), torch.float32)


def test_known_activations_agree_with_those_that_are_chosen_at_run_time() -> None:
    for name in ("relu", "relu6"):
        case = replace(BY_ID["2d-prime"], activations=(name, name))
        tensors = tensors_of(case)
        check_result(on_cpu(tensors, case), tensors, case)
