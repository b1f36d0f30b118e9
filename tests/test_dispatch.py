"""Which backend runs: the order, the reasons, the setting that forces one, and captures of CUDA graphs."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from calls import same_bits, separable
from cases import BY_ID, Case, pair, tensors_of, with_gradients

import sepconv
from sepconv import backends, dispatch, ops
from sepconv.backends import eager
from sepconv.backends.eager import EagerBackend
from sepconv.device import describe
from sepconv.errors import BackendWarning, UnsupportedError, WarmUpError
from sepconv.problem import Activation, Epilogue, Problem

CASE = Case("call", 2, 3, 4, (6, 5), (3, 3), padding=1)
PROBLEM = Problem(2, 3, 4, 1, (6, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
CPU = describe(torch.device("cpu"))


class Fake(EagerBackend):
    """A backend that counts its calls and says what it is told to say."""

    def __init__(
        self,
        name: str,
        unavailable: tuple[str, ...] = (),
        reasons: tuple[str, ...] = (),
        ready: bool = True,
        kind: str | None = None,
    ) -> None:
        self.name, self.kind = name, kind
        self.answers, self.why, self.ready = list(unavailable), list(reasons), ready
        self.calls: list[str] = []
        self.problems: list[Problem] = []

    def unavailable(self, device: Any) -> list[str]:
        return self.answers

    def reasons(self, problem: Any, device: Any) -> list[str]:
        return self.why

    def direct_call(self, problem: Problem, config: Any, like: Any, options: Any, device: Any) -> Any:
        return None

    def is_ready(self, problem: Any, device: Any) -> bool:
        return self.ready

    def forward(self, *args: Any) -> torch.Tensor:
        self.problems.append(args[0])
        self.calls.append("forward")
        return super().forward(*args)

    def gradients(self, *args: Any) -> list[torch.Tensor]:
        self.problems.append(args[0])
        self.calls.append("backward")
        return super().gradients(*args)


Install = Callable[..., tuple[Fake, ...]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts these backends in place of the library's; every plan is forgotten before and after."""

    def put(*fakes: Fake) -> tuple[Fake, ...]:
        for module in (dispatch, backends):
            monkeypatch.setattr(module, "all_backends", lambda *_: fakes)
        ops.forget_plans()
        return fakes

    monkeypatch.delenv("SEPCONV_BACKEND", raising=False)
    ops.forget_plans()
    yield put
    monkeypatch.undo()
    ops.forget_plans()


def test_the_first_that_can_runs_forward_and_backward(install: Install) -> None:
    away, unable, able, last = install(
        Fake("away", unavailable=("no such device",)), Fake("unable", reasons=("too wide",)), Fake("able"), Fake("last")
    )
    tensors = tensors_of(CASE)
    y, _ = with_gradients(lambda t: separable(t, CASE), tensors, torch.ones(CASE.out_shape))
    assert able.calls == ["forward", "backward"]
    assert not away.calls + unable.calls + last.calls
    assert torch.allclose(y, pair(tensors, CASE))
    with torch.no_grad():
        separable(tensors, CASE)
    assert able.calls == ["forward", "backward", "forward"]


class FakeDirect(Fake):
    """A backend whose kernel is loaded once it has run."""

    def direct_call(self, problem: Problem, config: Any, like: Any, options: Any, device: Any) -> Any:
        def compute(operands: Any) -> torch.Tensor:
            self.calls.append("direct")
            return pair(operands, CASE)

        return compute if "forward" in self.calls else None


def test_a_call_that_is_remembered_goes_straight_to_a_loaded_kernel(install: Install) -> None:
    (able,) = install(FakeDirect("able"))
    tensors = tensors_of(CASE)
    right = pair(tensors, CASE)
    for _ in range(3):
        assert torch.allclose(separable(tensors, CASE), right)
    assert able.calls == ["forward", "direct", "direct"]
    other = [None if t is None else t[:1] if i == 0 else t for i, t in enumerate(tensors)]
    assert torch.allclose(separable(other, CASE), right[:1])
    assert able.calls[3:] == ["forward"], "another shape is another call"


def test_operands_that_the_loaded_kernel_cannot_compute_take_the_whole_way(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    (able,) = install(FakeDirect("able"))
    monkeypatch.setattr(FakeDirect, "direct_call", lambda *_: lambda operands: able.calls.append("direct"))
    tensors = tensors_of(CASE)
    for _ in range(3):
        assert torch.allclose(separable(tensors, CASE), pair(tensors, CASE))
    assert able.calls == ["forward", "direct", "forward", "direct", "forward"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "case", [BY_ID["2d-residual-activated"], BY_ID["2d-multiplier-3"], BY_ID["1d-same-even"]], ids=str
)
def test_the_eager_backend_gives_the_same_by_its_direct_call(
    case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "eager")
    ops.forget_plans()
    tensors = tensors_of(case, dtype)
    first = separable(tensors, case)
    monkeypatch.setattr(EagerBackend, "forward", lambda *_: pytest.fail("the whole way"))
    if dtype is torch.bfloat16 and case.m > 1:  # PyTorch's own product would spread NaN there
        with pytest.raises(pytest.fail.Exception):
            separable(tensors, case)
    else:
        again = separable(tensors, case)
        assert again.stride() == first.stride()
        assert torch.equal(again, first)
    ops.forget_plans()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["plain", "channels_last"])
@pytest.mark.parametrize("images", [1, 2])
def test_the_eager_backend_computes_few_images_at_a_time_where_pytorch_would_lose_count(
    images: int, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(BY_ID["2d-multiplier-3"], N=5, stride=1, residual=True)
    tensors = tensors_of(case, dtype, form=form)
    monkeypatch.setenv("SEPCONV_BACKEND", "eager")
    ops.forget_plans()
    whole = separable(tensors, case)
    middle = math.prod((case.C * case.m, *case.out_shape[2:]))
    assert middle > max(math.prod(case.out_shape[1:]), math.prod(tensors[0].shape[1:]))
    monkeypatch.setattr(eager, "_MOST_ELEMENTS", images * middle + 1)
    computed: list[int] = []
    real = eager.reference.forward

    def forward(operands: Any, options: Any, **how: Any) -> torch.Tensor:
        computed.append(operands.x.shape[0])
        return real(operands, options, **how)

    monkeypatch.setattr(eager.reference, "forward", forward)
    ops.forget_plans()
    for _ in range(2):
        computed.clear()
        y = separable(tensors, case)
        assert computed == [images] * (5 // images) + [5 % images] * (5 % images > 0)
        assert y.stride() == whole.stride()
        most = whole.abs().max() * torch.finfo(dtype).eps
        assert (y - whole).abs().max() <= 4 * most  # added up in another order
    ops.forget_plans()


def test_no_layer_of_pytorch_is_passed_over_by_the_direct_call(install: Install) -> None:
    (able,) = install(FakeDirect("able"))
    tensors = tensors_of(CASE)
    separable(tensors, CASE)
    able.calls.clear()
    with_gradients(lambda t: separable(t, CASE), tensors, torch.ones(CASE.out_shape))
    assert able.calls == ["forward", "backward"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert separable(tensors, CASE).dtype is torch.bfloat16
    assert "direct" not in able.calls
    ops.forget_plans()
    able.calls.clear()
    separable(tensors, CASE)
    assert able.calls == ["forward"]


def test_the_reasons_are_in_the_explanation(install: Install) -> None:
    install(
        Fake("away", unavailable=("no such device",)), Fake("unable", reasons=("too wide", "too deep")), Fake("able")
    )
    text = sepconv.explain(*tensors_of(CASE)[:3], padding=1)
    assert "able (chosen by default)" in text
    for line in ("not away: no such device", "not unable: too wide", "not unable: too deep"):
        assert line in text.splitlines()


def test_where_none_can_the_error_has_every_reason(install: Install) -> None:
    install(Fake("away", unavailable=("no such device",)), Fake("unable", reasons=("too wide", "too deep")))
    with pytest.raises(UnsupportedError) as caught:
        separable(tensors_of(CASE), CASE)
    assert isinstance(caught.value, NotImplementedError)
    assert isinstance(caught.value, sepconv.SepconvError)
    for word in ("away: no such device", "unable: too wide, too deep", "(2, 3, 6x5) -> 4", "cpu"):
        assert word in str(caught.value)
    with pytest.raises(UnsupportedError):
        sepconv.explain(*tensors_of(CASE)[:3], padding=1)


def test_what_is_missed_on_a_device_is_told_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of the backends that are made for the device, and only where another one takes their place."""
    monkeypatch.setattr(dispatch, "_warnings", itertools.count())
    away = Fake("away", unavailable=("no such device",), kind="cuda")
    broken, last = Fake("broken", unavailable=("no compiler", "no luck"), kind="cpu"), Fake("last")
    install(away, last)
    separable(tensors_of(CASE), CASE)
    install(away, broken)
    with pytest.raises(UnsupportedError):
        separable(tensors_of(CASE), CASE)
    install(away, broken, last)
    with pytest.warns(BackendWarning, match="no compiler") as caught:
        assert "last (chosen by default)" in sepconv.explain(*tensors_of(CASE)[:3], padding=1)
    assert len(caught) == 1
    separable(tensors_of(replace(CASE, N=3)), replace(CASE, N=3))
    assert last.calls == ["forward"] * 2


def test_a_backend_may_be_forced(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = install(Fake("first"), Fake("second"))
    monkeypatch.setenv("SEPCONV_BACKEND", "second")
    separable(tensors_of(CASE), CASE)
    assert (first.calls, second.calls) == ([], ["forward"])
    assert "second (chosen by setting)" in sepconv.explain(*tensors_of(CASE)[:3], padding=1)


def test_a_forced_backend_that_cannot_is_an_error(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(Fake("first", reasons=("too wide",)), Fake("second"))
    monkeypatch.setenv("SEPCONV_BACKEND", "first")
    with pytest.raises(UnsupportedError, match="first: too wide") as caught:
        separable(tensors_of(CASE), CASE)
    assert "`SEPCONV_BACKEND` is 'first'" in str(caught.value)


def test_a_forced_backend_that_there_is_not(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(Fake("first"), Fake("second"))
    monkeypatch.setenv("SEPCONV_BACKEND", "third")
    with pytest.raises(UnsupportedError, match="third") as caught:
        separable(tensors_of(CASE), CASE)
    assert "first, second" in str(caught.value)


def test_a_setting_takes_effect_once_plans_are_forgotten(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = install(Fake("first"), Fake("second"))
    separable(tensors_of(CASE), CASE)
    monkeypatch.setenv("SEPCONV_BACKEND", "second")
    separable(tensors_of(CASE), CASE)
    assert (first.calls, second.calls) == (["forward"] * 2, [])
    ops.forget_plans()
    separable(tensors_of(CASE), CASE)
    assert (first.calls, second.calls) == (["forward"] * 2, ["forward"])


def test_a_plan_is_made_once(install: Install) -> None:
    install(Fake("only"))
    assert dispatch.plan(PROBLEM, CPU) is dispatch.plan(PROBLEM, CPU)
    plan = dispatch.plan(PROBLEM, CPU)
    assert (plan.problem, plan.device, plan.backend.name, plan.source, plan.rejected) == (
        PROBLEM,
        CPU,
        "only",
        "default",
        (),
    )


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same": ({}, {}),
    "batch": ({"N": 3}, {"batch": 3}),
    "channels": ({"C": 5}, {"in_channels": 5}),
    "outputs": ({"O": 6}, {"out_channels": 6}),
    "size": ({"L": (6, 7)}, {"in_size": (6, 7)}),
    "kernel": ({"K": (3, 2)}, {"kernel_size": (3, 2)}),
    "multiplier": ({"m": 2}, {"depth_multiplier": 2}),
    "stride": ({"stride": (1, 2)}, {"stride": (1, 2)}),
    "padding": ({"padding": (1, 2)}, {"padding": ((1, 1), (2, 2))}),
    "dilation": ({"dilation": (2, 1)}, {"dilation": (2, 1)}),
    "depthwise bias": ({"bias": "d"}, {"epilogue": Epilogue(depthwise_bias=True)}),
    "pointwise bias": ({"bias": "p"}, {"epilogue": Epilogue(pointwise_bias=True)}),
    "residual": ({"residual": True}, {"epilogue": Epilogue(residual=True)}),
    "depthwise activation": (
        {"activations": ("relu", None)},
        {"epilogue": Epilogue(depthwise_activation=Activation("relu"))},
    ),
    "pointwise activation": (
        {"activations": (None, "relu")},
        {"epilogue": Epilogue(pointwise_activation=Activation("relu"))},
    ),
    "a slope": (
        {"activations": (("leaky_relu", 0.1), None)},
        {"epilogue": Epilogue(depthwise_activation=Activation("leaky_relu", 0.1))},
    ),
    "another slope": (
        {"activations": (("leaky_relu", 0.2), None)},
        {"epilogue": Epilogue(depthwise_activation=Activation("leaky_relu", 0.2))},
    ),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_backend_is_told_the_problem_at_hand(install: Install, direction: str) -> None:
    """The plan of one call never serves a call that differs in anything."""
    (only,) = install(Fake("only"))
    base = replace(PROBLEM, direction=direction)
    for case_change, problem_change in (*CALLS.values(), *reversed(CALLS.values())):
        case = replace(CASE, **case_change)
        if direction == "backward" and case.residual:
            continue  # its gradient is the incoming one: no backend hears of it
        with_gradients(lambda t, case=case: separable(t, case), tensors_of(case), torch.ones(case.out_shape))
        assert only.problems[-2 if direction == "forward" else -1] == replace(base, **problem_change)
    for dtype in (torch.float64, torch.bfloat16):
        separable(tensors_of(CASE, dtype), CASE)
        assert only.problems[-1] == replace(PROBLEM, dtype=dtype)
    separable(tensors_of(CASE, form="channels_last"), CASE)
    assert only.problems[-1] == replace(PROBLEM, layout="channels_last")


def test_a_cold_backend_inside_a_capture_is_an_error(
    install: Install, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    (cold,) = install(Fake("cold", ready=False))
    tensors = tensors_of(CASE, device=device)
    warm = separable(tensors, CASE)
    plan = dispatch.plan(PROBLEM, describe(torch.device(device)))
    dispatch.check_warm(plan)
    monkeypatch.setattr(dispatch, "is_capturing", lambda kind: kind == device)
    # The CPU has no capture, so that a call there need not ask.
    ask = (lambda: separable(tensors, CASE)) if device == "cuda" else (lambda: dispatch.check_warm(plan))
    with pytest.raises(WarmUpError, match="capture") as caught:
        ask()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, sepconv.SepconvError)
    assert "`cold`" in str(caught.value)
    assert cold.calls == ["forward"]
    cold.ready = True
    dispatch.check_warm(plan)
    assert same_bits(separable(tensors, CASE), warm)


def test_the_library_ends_with_a_backend_that_runs_everything() -> None:
    last = backends.all_backends()[-1]
    assert last.name == "eager"
    assert not last.unavailable(CPU)
    assert not last.reasons(PROBLEM, CPU)
    assert last.is_ready(PROBLEM, CPU)
    names = [backend.name for backend in backends.all_backends()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
