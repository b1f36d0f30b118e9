"""The torch boundary: op checks, derivatives of every order and mode, autocast, compile, export, fake tensors, threads."""

import copy
import io
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from budget import check
from calls import check_case, named, same_bits, separable
from cases import (
    BY_ID,
    FLOATS,
    FORMS,
    NAMES,
    Case,
    double,
    grad_of,
    laid_out,
    pair,
    per_axis,
    tensors_of,
    with_gradients,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sepconv

# PyTorch warns of its own deprecated parts at the first use of forward-mode derivatives, of Inductor and of decompositions.
_WARNED = (
    r"`torch.jit.\w+` is deprecated:DeprecationWarning",
    "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
)
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in _WARNED]
by_id = {"ids": str}
OP = torch.ops.sepconv.separable_conv.default
OP_BACKWARD = torch.ops.sepconv.separable_conv_backward.default
EVERYTHING = [
    Case(
        "1d",
        2,
        2,
        3,
        (6,),
        (2,),
        m=2,
        padding="same",
        dilation=3,
        bias="dp",
        activations=("silu", "tanh"),
        residual=True,
    ),
    Case(
        "2d",
        2,
        2,
        3,
        (5, 4),
        (3, 2),
        m=2,
        stride=(1, 2),
        padding=(1, 0),
        bias="dp",
        activations=("silu", "tanh"),
        residual=True,
    ),
    Case(
        "3d", 1, 2, 3, (4, 3, 4), (2, 3, 2), m=2, padding="same", bias="dp", activations=("silu", "tanh"), residual=True
    ),
]
PLAIN = [
    Case("1d", 2, 3, 4, (8,), (3,), padding=1),
    Case("2d", 2, 3, 4, (6, 5), (3, 2), padding=1, bias="p", activations=("silu", None)),
    Case("3d", 1, 2, 3, (4, 3, 4), (2, 3, 2), padding=1, bias="d"),
]
SMOOTH = ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh")
KINKED = ("relu", "relu6", ("leaky_relu", 0.2), "hardswish", "hardsigmoid")


def op_arguments(case: Case, tensors: list[torch.Tensor | None]) -> tuple[Any, ...]:
    """The arguments of the op for one case: flat padding, activations as name and value."""
    words = []
    for word in case.activations:
        words += [word or "identity", 0.0] if not isinstance(word, tuple) else list(word)
    padding = per_axis(case.padding, case.rank)
    return (
        *tensors,
        list(per_axis(case.stride, case.rank)),
        [n for p in padding for n in (p, p)],
        list(per_axis(case.dilation, case.rank)),
        *words,
        None,
    )


def leaves(tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


def over_tensors(
    case: Case, tensors: list[torch.Tensor | None], f: Callable[..., torch.Tensor]
) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """f as a function of the tensors that are there, and these."""
    present = [i for i, t in enumerate(tensors) if t is not None]

    def g(*some: torch.Tensor) -> torch.Tensor:
        full: list[torch.Tensor | None] = [None] * len(tensors)
        for i, t in zip(present, some, strict=True):
            full[i] = t
        return f(full, case)

    return g, tuple(tensors[i] for i in present)


# --- torch.library's own checks

OPCHECKED = [
    replace(
        case,
        id=f"{case}-{'all' if full else 'none'}",
        **({} if full else {"bias": "", "residual": False, "activations": (None, None)}),
    )
    for case in (
        Case("1d", 2, 3, 4, (7,), (3,), padding=1, bias="dp", activations=("silu", "relu"), residual=True),
        Case(
            "2d",
            2,
            3,
            4,
            (7, 6),
            (3, 2),
            m=2,
            stride=(2, 1),
            padding=(1, 0),
            bias="dp",
            activations=(("leaky_relu", 0.2), "gelu"),
            residual=True,
        ),
        Case(
            "3d",
            1,
            2,
            3,
            (4, 3, 4),
            (2, 3, 2),
            padding=1,
            dilation=(2, 1, 1),
            bias="dp",
            activations=("hardswish", None),
            residual=True,
        ),
    )
    for full in (True, False)
]


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("form", ["plain", "channels_last", "gaps"])
@pytest.mark.parametrize("case", OPCHECKED, **by_id)
def test_opcheck(case: Case, form: str, needs_grad: bool, device: str) -> None:
    tensors = [
        None if t is None else t.requires_grad_(needs_grad) for t in tensors_of(case, torch.float32, device, form)
    ]
    torch.library.opcheck(OP, op_arguments(case, tensors))


@pytest.mark.parametrize(
    "wanted", [[True] * 5, [True, False, False, False, False], [False, True, True, False, True], [False] * 5]
)
@pytest.mark.parametrize("form", ["plain", "channels_last", "gaps"])
@pytest.mark.parametrize("case", OPCHECKED, **by_id)
def test_opcheck_of_the_backward_op(case: Case, form: str, wanted: list[bool], device: str) -> None:
    tensors = tensors_of(case, torch.float32, device, form)[:5]
    wanted = [w and t is not None for w, t in zip(wanted, tensors, strict=True)]
    grad = grad_of(case, torch.float32, device)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(OP_BACKWARD, (grad, wanted, *op_arguments(case, tensors)), test_utils=tests)


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_dispatch_mode_sees_the_op(needs_grad: bool, device: str) -> None:
    case = PLAIN[1]
    tensors = [None if t is None else t.requires_grad_(needs_grad) for t in tensors_of(case, torch.float32, device)]
    with _Seen() as seen:
        y = separable(tensors, case)
    assert str(OP) in seen.names
    if needs_grad:
        with _Seen() as seen:
            y.sum().backward()
        assert str(OP_BACKWARD) in seen.names


def test_the_profiler_sees_the_op(device: str) -> None:
    case = PLAIN[1]
    tensors = tensors_of(case, torch.float32, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        separable(tensors, case)
    assert any("sepconv::separable_conv" in event.key for event in profile.key_averages())


def test_lazy_bits_of_a_view_are_read(device: str) -> None:
    case = replace(PLAIN[1], bias="")
    _, *rest = tensors_of(case, torch.float32, device)
    x = torch.randn(2, 3, 6, 5, dtype=torch.complex64, device=device).conj().imag
    assert x.is_neg()
    with torch.no_grad():
        y = separable([x, *rest], case)
    assert same_bits(y, separable([x.resolve_neg(), *rest], case))


# --- derivatives


@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_gradcheck_with_everything_on(case: Case, device: str) -> None:
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float64, device)), separable)
    assert torch.autograd.gradcheck(f, tensors, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("word", [*SMOOTH, *KINKED], ids=str)
def test_gradcheck_of_every_activation(word: Any) -> None:
    case = replace(EVERYTHING[0], N=1, activations=(word, word))
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float64, seed=3)), separable)
    assert torch.autograd.gradcheck(f, tensors, fast_mode=True)


@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_gradgradcheck_with_everything_on(case: Case, device: str) -> None:
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float64, device)), separable)
    assert torch.autograd.gradgradcheck(f, tensors, fast_mode=True, check_fwd_over_rev=True)
    _every_gradient_has_a_derivative(f, tensors)


@pytest.mark.parametrize("word", [None, *SMOOTH, *KINKED], ids=str)
def test_gradgradcheck_of_every_activation(word: Any) -> None:
    case = replace(EVERYTHING[1], N=1, activations=(word, word))
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float64)), separable)
    assert torch.autograd.gradgradcheck(f, tensors)
    _every_gradient_has_a_derivative(f, tensors)


def _every_gradient_has_a_derivative(f: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...]) -> None:
    """gradgradcheck leaves a gradient that has lost its graph out as long as another one has one."""
    y = f(*tensors)
    grads = torch.autograd.grad(y, tensors, torch.ones_like(y).requires_grad_(), create_graph=True)
    assert all(g.requires_grad for g in grads)


@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_a_gradient_penalty_trains_as_the_pair_does(case: Case, device: str) -> None:
    def penalty(f: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        tensors = leaves(tensors_of(case, dtype, device))
        (gx,) = torch.autograd.grad(f(tensors, case).square().sum(), tensors[0], create_graph=True)
        gx.square().sum().backward()
        return [t.grad for t in tensors if t.grad is not None]

    ours, eager = penalty(separable, torch.float32), penalty(pair, torch.float32)
    right = penalty(lambda t, c: pair([None if s is None else s.double() for s in t], c), torch.float64)
    exact = penalty(pair, torch.float64)
    assert len(ours) == len(right) == 6
    for o, r, e in zip(ours, exact, eager, strict=True):
        check(o, r, e, torch.float32)


@pytest.mark.parametrize(
    "transform", ["grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "vmap_grad", "vmap_x", "vmap_weights"]
)
@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_function_transforms(case: Case, transform: str, device: str) -> None:
    tensors = tensors_of(case, torch.float64, device)
    f, some = over_tensors(case, tensors, separable)
    g, _ = over_tensors(case, tensors, pair)
    every = tuple(range(len(some)))
    ones = tuple(torch.ones_like(t) for t in some)
    stacked = tuple(torch.stack([t, 2 * t, t.flip(0)]) for t in some)
    first = (0, *[None] * (len(some) - 1))
    transforms: dict[str, Callable[[Any], Any]] = {
        "grad": lambda h: torch.func.grad(lambda *t: h(*t).sin().sum(), every)(*some),
        "vjp": lambda h: (lambda y, back: back(y.cos()))(*torch.func.vjp(h, *some)),
        "jvp": lambda h: torch.func.jvp(h, some, ones),
        "jacrev": lambda h: torch.func.jacrev(h, (0, 1))(*some),
        "jacfwd": lambda h: torch.func.jacfwd(h, (1, 3))(*some),
        "hessian": lambda h: torch.func.hessian(lambda *t: h(*t).sum(), (1, 2))(*some),
        "vmap_grad": lambda h: torch.func.vmap(torch.func.grad(lambda *t: h(*t).sin().sum(), (0, 1)))(*stacked),
        "vmap_x": lambda h: torch.func.vmap(h, first)(stacked[0], *some[1:]),
        "vmap_weights": lambda h: torch.func.vmap(h, (None, 0, 0, *[None] * (len(some) - 3)))(
            some[0], *stacked[1:3], *some[3:]
        ),
    }
    ours, right = (torch.utils._pytree.tree_leaves(transforms[transform](h)) for h in (f, g))
    assert len(ours) == len(right)
    for o, r in zip(ours, right, strict=True):
        check(o, r, r, torch.float64)


def test_gradients_of_each_sample(device: str) -> None:
    case = Case("samples", 1, 4, 3, (11,), (3,), padding=1, bias="p")
    _, wd, wp, _, bp, _ = tensors_of(case, torch.float64, device)
    x = torch.randn(5, 4, 11, dtype=torch.float64, device=device)
    for bias in (None, bp):

        def loss(a: torch.Tensor, w: torch.Tensor, bias: Any = bias) -> torch.Tensor:
            return sepconv.separable_conv1d(a[None], w, wp, None, bias, padding=1).square().sum()

        together = torch.func.vmap(torch.func.grad(loss, argnums=1), (0, None))(x, wd)
        for i in range(5):
            w = wd.clone().requires_grad_()
            y = pair([x[i : i + 1], w, wp, None, bias, None], case)
            (right,) = torch.autograd.grad(y.square().sum(), w)
            check(together[i], right, right, torch.float64)


def test_functional_call_and_an_ensemble(device: str) -> None:
    models = [sepconv.SeparableConv2d(3, 4, 3, padding=1, bias=True, device=device) for _ in range(3)]
    x = torch.randn(2, 3, 5, 6, device=device)
    parameters, buffers = torch.func.stack_module_state(models)

    def one(p: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(models[0], (p, b), (x,))

    together = torch.func.vmap(one, (0, 0, None))(parameters, buffers, x)
    for y, model in zip(together, models, strict=True):
        alone = model(x).detach()
        exact = copy.deepcopy(model).double()(x.double()).detach()
        check(y.detach(), exact, alone, torch.float32)


@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_forward_mode(case: Case, device: str) -> None:
    tensors = tensors_of(case, torch.float64, device)

    def tangent(f: Any) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = [torch.autograd.forward_ad.make_dual(t, torch.ones_like(t)) for t in tensors]
            return torch.autograd.forward_ad.unpack_dual(f(dual, case)).tangent

    right = tangent(pair)
    check(tangent(separable), right, right, torch.float64)


@pytest.mark.parametrize("strict_mode", [False, True])
def test_the_functional_jacobian(strict_mode: bool) -> None:
    case = PLAIN[1]
    f, tensors = over_tensors(case, tensors_of(case, torch.float64), separable)
    g, _ = over_tensors(case, tensors_of(case, torch.float64), pair)
    ours = torch.autograd.functional.jacobian(f, tensors, strict=strict_mode)
    for o, r in zip(ours, torch.autograd.functional.jacobian(g, tensors), strict=True):
        check(o, r, r, torch.float64)


def test_batched_gradients(device: str) -> None:
    case = PLAIN[1]
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float64, device)), separable)
    y = f(*tensors)
    grads = torch.randn(3, *y.shape, dtype=y.dtype, device=device)
    batched = torch.autograd.grad(y, tensors, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        for b, one in zip(batched, torch.autograd.grad(y, tensors, grad, retain_graph=True), strict=True):
            check(b[i], one, one, torch.float64)


# --- what autograd keeps


@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_backward_keeps_the_operands_and_no_intermediate(case: Case, device: str) -> None:
    case = replace(case, N=2, L=(16,) * case.rank)  # so that the intermediate is larger than every operand
    tensors = leaves(tensors_of(case, torch.float32, device))
    tensors[5] = tensors_of(case, torch.float32, device)[5].requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        separable(tensors, case)
    own = {t.untyped_storage().data_ptr() for t in tensors}
    assert kept
    assert all(t.untyped_storage().data_ptr() in own for t in kept), [tuple(t.shape) for t in kept]


def test_a_weight_changed_before_backward_is_an_error(device: str) -> None:
    case = PLAIN[1]
    tensors = leaves(tensors_of(case, torch.float32, device))
    y = separable(tensors, case)
    with torch.no_grad():
        tensors[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_backward_needs_the_graph_kept(device: str) -> None:
    case = PLAIN[1]
    tensors = leaves(tensors_of(case, torch.float32, device))
    y = separable(tensors, case)
    y.sum().backward(retain_graph=True)
    once = [None if t is None else t.grad.clone() for t in tensors]
    y.sum().backward()
    for t, g in zip(tensors, once, strict=True):
        assert t is None or torch.equal(t.grad, 2 * g)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_the_result_may_be_changed_in_place(device: str) -> None:
    case = replace(PLAIN[1], activations=("silu", "sigmoid"))
    tensors = leaves(tensors_of(case, torch.float32, device))
    y = separable(tensors, case)
    expected = torch.autograd.grad((2 * y).sum(), tensors[0], retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y.mul_(2).sum(), tensors[0])[0], expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_activation_checkpointing(case: Case, use_reentrant: bool, device: str) -> None:
    f, tensors = over_tensors(case, leaves(tensors_of(case, torch.float32, device)), separable)
    grad = grad_of(case, torch.float32, device)
    y = checkpoint(f, *tensors, use_reentrant=use_reentrant)
    for a, b in zip(torch.autograd.grad(f(*tensors), tensors, grad), _backward(y, tensors, grad), strict=True):
        assert same_bits(a, b)


def _backward(y: torch.Tensor, tensors: tuple[torch.Tensor, ...], grad: torch.Tensor) -> list[torch.Tensor]:
    y.backward(grad)
    return [t.grad for t in tensors]


def test_parameters_of_no_effect_get_no_gradient(device: str) -> None:
    case = PLAIN[1]
    tensors = leaves(tensors_of(case, torch.float32, device))
    y = separable(tensors, case)
    (g,) = torch.autograd.grad(y.sum() * 0 + tensors[0].sum(), tensors[0])
    assert torch.equal(g, torch.ones_like(g))


# --- autocast

LOW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_autocast_as_a_convolution_has_it(case: Case, dtype: torch.dtype, device: str) -> None:
    tensors = leaves(tensors_of(case, torch.float32, device))
    with torch.autocast(device, dtype):
        y = separable(tensors, case)
        eager = pair(tensors, replace(case, residual=True))
    assert y.dtype is dtype
    low = [t.detach().to(dtype) for t in tensors]
    assert same_bits(y.detach(), separable(low, case))
    grad = grad_of(case, dtype, device)
    some = list(named(tensors).values())
    grads = torch.autograd.grad(y, some, grad)
    right = with_gradients(lambda t: pair(t, case), double(low), grad)[1]
    eager_grads = torch.autograd.grad(eager, some, grad.to(eager.dtype))
    for t, g, r, e in zip(some, grads, right.values(), eager_grads, strict=True):
        assert g.dtype is torch.float32
        assert g.stride() == torch.empty_like(t).stride()
        check(g.to(dtype), r, e.to(dtype), dtype)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_autocast_casts_whatever_mixture_comes(dtype: torch.dtype, device: str) -> None:
    case = EVERYTHING[1]
    tensors = tensors_of(case, torch.float32, device)
    expected = separable([t.to(dtype) for t in tensors], case)
    for i in range(len(NAMES)):
        mixed = [t.to(dtype) if j == i else t for j, t in enumerate(tensors)]
        with torch.autocast(device, dtype):
            assert same_bits(separable(mixed, case), expected)


def test_autocast_leaves_float64_alone(device: str) -> None:
    case = EVERYTHING[1]
    tensors = tensors_of(case, torch.float64, device)
    with torch.autocast(device, torch.bfloat16):
        y = separable(tensors, case)
    assert same_bits(y, separable(tensors, case))


def test_a_disabled_autocast_inside_another(device: str) -> None:
    case = EVERYTHING[1]
    tensors = tensors_of(case, torch.float32, device)
    with torch.autocast(device, torch.bfloat16), torch.autocast(device, enabled=False):
        y = separable(tensors, case)
    assert same_bits(y, separable(tensors, case))


def test_autocast_of_the_other_device_changes_nothing(device: str) -> None:
    if device == "cpu" and torch.cuda.is_available():
        case = EVERYTHING[1]
        tensors = tensors_of(case, torch.float32, device)
        with torch.autocast("cuda", torch.float16):
            assert separable(tensors, case).dtype is torch.float32


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_backward_inside_autocast_is_the_same(dtype: torch.dtype, device: str) -> None:
    case = EVERYTHING[1]
    grads = []
    for inside in (False, True):
        tensors = leaves(tensors_of(case, torch.float32, device))
        with torch.autocast(device, dtype):
            y = separable(tensors, case).float().square().sum()
            if inside:
                y.backward()
        if not inside:
            y.backward()
        grads.append([t.grad for t in tensors])
    assert all(same_bits(a, b) for a, b in zip(*grads, strict=True))


# --- compile

COMPILED = [PLAIN[0], replace(PLAIN[1], bias="dp", activations=("relu6", "silu"), residual=True), PLAIN[2]]


def _compiled(case: Case, **options: Any) -> Callable[[list[torch.Tensor | None]], torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(lambda t: separable(t, case).tanh(), fullgraph=True, **options)


@pytest.mark.parametrize(
    ("case", "form", "backend"),
    [(c, form, "aot_eager") for c in COMPILED for form in ("plain", "channels_last")]
    + [(COMPILED[0], "plain", "inductor"), (COMPILED[1], "channels_last", "inductor")],
    **by_id,
)
def test_compiled_forward_and_backward(case: Case, form: str, backend: str, device: str) -> None:
    compiled = _compiled(case, backend=backend, dynamic=False)
    tensors, grad = tensors_of(case, torch.float32, device, form), grad_of(case, torch.float32, device)
    y, grads = with_gradients(compiled, tensors, grad)
    right, right_grads = with_gradients(lambda t: pair(t, case).tanh(), double(tensors), grad)
    eager, eager_grads = with_gradients(lambda t: pair(t, case).tanh(), tensors, grad)
    check(y, right, eager, torch.float32)
    assert y.stride() == separable(tensors, case).stride()
    for name, g in right_grads.items():
        check(grads[name], g, eager_grads[name], torch.float32)


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("base", COMPILED, **by_id)
def test_one_graph_for_changing_sizes(base: Case, grad_mode: bool, device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    sizes = [
        (5, 7, 11),
        (6, 8, 13),
        (9, 10, 12),
        (8, 11, 15),
    ]  # none equal to another: that would be taken for one size

    def call(t: list[torch.Tensor | None]) -> torch.Tensor:
        return separable(t, replace_sizes(base, 1, 1, 1))

    seen: set[int] = set()
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for N, C, S in sizes:
        case = replace_sizes(base, N, C, S)
        tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)
        if grad_mode:
            y, grads = with_gradients(compiled, tensors, grad)
            z, expected = with_gradients(lambda t, case=case: separable(t, case), tensors, grad)
            assert all(same_bits(g, expected[name]) for name, g in grads.items())
        else:
            with torch.no_grad():
                y, z = compiled(tensors), separable(tensors, case)
        assert same_bits(y, z)
        assert y.stride() == z.stride()
        seen.add(counter.frame_count)  # above 1 where the first call had to start its analysis again
    assert len(seen) == 1


def replace_sizes(case: Case, N: int, C: int, S: int) -> Case:
    return replace(case, N=N, C=C, L=tuple(S + i for i in range(case.rank)))


def test_compiled_gradient_transform(device: str) -> None:
    case = EVERYTHING[1]
    f, tensors = over_tensors(case, tensors_of(case, torch.float64, device), separable)
    torch._dynamo.reset()
    gradient = torch.func.grad(lambda *t: f(*t).sin().sum(), (0, 1, 2))
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*tensors), gradient(*tensors), strict=True):
        check(a, b, b, torch.float64)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_compiled_autocast(dtype: torch.dtype, device: str) -> None:
    case = COMPILED[1]

    def f(t: list[torch.Tensor | None]) -> torch.Tensor:
        with torch.autocast(device, dtype):
            return separable(t, case)

    torch._dynamo.reset()
    tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, dtype, device)
    y, grads = with_gradients(torch.compile(f, fullgraph=True, backend="aot_eager"), tensors, grad)
    z, expected = with_gradients(f, tensors, grad)
    assert same_bits(y, z)
    assert all(same_bits(g, expected[name]) for name, g in grads.items())


def test_compiled_unbatched_and_numbers_as_lists() -> None:
    case = PLAIN[1]
    x, *rest = tensors_of(case)
    torch._dynamo.reset()
    f = torch.compile(
        lambda x: separable([x, *rest], case, padding=[1, 1], stride=[1, 1]), fullgraph=True, backend="aot_eager"
    )
    assert same_bits(f(x[0]), separable([x[0], *rest], case))


# --- export


class _Layer(torch.nn.Module):
    def __init__(self, case: Case, device: str = "cpu") -> None:
        super().__init__()
        self.case = case
        _, *rest = tensors_of(replace(case, residual=False), torch.float32, device)
        self.weights = torch.nn.ParameterList([t for t in rest if t is not None])
        self.present = [i for i, t in enumerate(rest) if t is not None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        full: list[torch.Tensor | None] = [None] * 5
        for i, t in zip(self.present, self.weights, strict=True):
            full[i] = t
        return separable([x, *full], self.case)


def _targets(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict_mode", [False, True])
@pytest.mark.parametrize("case", [replace(case, residual=False) for case in COMPILED], **by_id)
def test_export_save_load_and_decompose(case: Case, strict_mode: bool, device: str) -> None:
    layer = _Layer(case, device)
    x = tensors_of(case, torch.float32, device)[0]
    program = torch.export.export(layer, (x,), strict=strict_mode)
    assert str(OP) in _targets(program)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert same_bits(loaded.module()(x), layer(x))
    decomposed = program.run_decompositions(sepconv.decomposition_table())
    targets = _targets(decomposed)
    assert len([target for target in targets if target.startswith("aten.conv")]) == 2
    assert all(target.startswith("aten.") for target in targets), targets
    exact = copy.deepcopy(layer).double()(x.double())
    check(decomposed.module()(x), exact, layer(x), torch.float32)


@pytest.mark.parametrize("strict_mode", [False, True])
@pytest.mark.parametrize("case", [replace(case, residual=False) for case in COMPILED], **by_id)
def test_export_with_changing_sizes(case: Case, strict_mode: bool, device: str) -> None:
    layer = _Layer(case, device)
    axes = {0: torch.export.Dim.DYNAMIC, **{2 + i: torch.export.Dim.DYNAMIC for i in range(case.rank)}}
    x = torch.randn(4, case.C, *(9,) * case.rank, device=device)
    program = torch.export.export(layer, (x,), dynamic_shapes=(axes,), strict=strict_mode)
    decomposed = program.run_decompositions(sepconv.decomposition_table())
    for N, S in ((2, 7), (5, 12)):
        other = torch.randn(N, case.C, *(S,) * case.rank, device=device)
        assert same_bits(program.module()(other), layer(other))
        exact = copy.deepcopy(layer).double()(other.double())
        check(decomposed.module()(other), exact, layer(other), torch.float32)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str, device: str) -> None:
    case = COMPILED[1]
    f, tensors = over_tensors(case, tensors_of(case, torch.float32, device), separable)
    graph = make_fx(f, tracing_mode=mode)(*tensors)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function" and "sepconv" in str(n.target)] == [OP]
    assert same_bits(graph(*tensors), f(*tensors))


def test_a_traced_module(device: str) -> None:
    case = replace(COMPILED[1], residual=False)
    layer = _Layer(case, device)
    x = tensors_of(case, torch.float32, device)[0]
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    assert same_bits(traced(x), layer(x))


# --- tensors without data


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("which", [(), *[(name,) for name in NAMES[:3]], ("x", "residual")], ids="+".join)
@pytest.mark.parametrize("form", ["channels_last", "gaps", "permuted", "expanded"])
@pytest.mark.parametrize(
    "case", [*EVERYTHING, BY_ID["2d-all-ones"], BY_ID["2d-empty-batch"], BY_ID["1d-one-token"]], **by_id
)
def test_fake_tensors_have_the_real_strides(
    case: Case, form: str, which: tuple[str, ...], needs_grad: bool, device: str
) -> None:
    tensors = tensors_of(case, torch.float32, device)
    for name in which:
        i = NAMES.index(name)
        tensors[i] = None if tensors[i] is None else laid_out(tensors[i], form)
    real = [None if t is None else t.requires_grad_(needs_grad) for t in tensors]
    y = separable(real, case)
    grads = torch.autograd.grad(y.sum(), list(named(real).values())) if needs_grad else ()
    with FakeTensorMode() as mode:
        fake = [None if t is None else mode.from_tensor(t) for t in real]
        z = separable(fake, case)
        fake_grads = torch.autograd.grad(z.sum(), list(named(fake).values())) if needs_grad else ()
    for a, b in zip((y, *grads), (z, *fake_grads), strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", ["plain", "channels_last"])
@pytest.mark.parametrize("case", [*EVERYTHING, BY_ID["1d-long-stride"], BY_ID["3d-empty-batch"]], **by_id)
def test_meta_tensors(case: Case, form: str, dtype: torch.dtype) -> None:
    tensors = tensors_of(case, dtype, form=form)
    meta = [None if t is None else t.to("meta").requires_grad_() for t in tensors]
    y, z = separable(tensors, case), separable(meta, case)
    assert (z.device.type, z.shape, z.stride(), z.dtype) == ("meta", y.shape, y.stride(), y.dtype)
    for t, g in zip(named(meta).values(), torch.autograd.grad(z.sum(), list(named(meta).values())), strict=True):
        assert (g.device.type, g.shape, g.dtype) == ("meta", t.shape, t.dtype)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("case", EVERYTHING, **by_id)
def test_meta_tensors_without_a_gradient(case: Case, needs_grad: bool) -> None:
    meta = [None if t is None else t.to("meta").requires_grad_(needs_grad) for t in tensors_of(case)]
    assert separable(meta, case).requires_grad == needs_grad


# --- determinism and threads


@pytest.mark.parametrize("case", [*EVERYTHING, BY_ID["2d-mobilenet"]], **by_id)
def test_deterministic_mode_runs_and_repeats(case: Case, nan_in_fresh_memory: None, device: str) -> None:
    tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)
    first = with_gradients(lambda t: separable(t, case), tensors, grad)
    for _ in range(3):
        again = with_gradients(lambda t: separable(t, case), tensors, grad)
        assert same_bits(first[0], again[0])
        assert all(same_bits(g, again[1][name]) for name, g in first[1].items())


@pytest.mark.usefixtures("one_thread")
def test_eight_threads_at_once(device: str) -> None:
    cases = [*EVERYTHING, *PLAIN, BY_ID["2d-mobilenet"], BY_ID["1d-prime"]]
    prepared = [(case, tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)) for case in cases]
    expected = [with_gradients(lambda t, c=c: separable(t, c), t, g) for c, t, g in prepared]
    wrong: list[str] = []
    start = threading.Barrier(len(cases))

    def work(i: int) -> None:
        torch.set_num_threads(1)  # each thread has its own number, which fixes the order of sums
        case, tensors, grad = prepared[i]
        start.wait()
        try:
            for _ in range(15):
                y, grads = with_gradients(lambda t: separable(t, case), tensors, grad)
                if not same_bits(y, expected[i][0]) or not all(
                    same_bits(g, expected[i][1][n]) for n, g in grads.items()
                ):
                    wrong.append(str(case))
        except Exception as error:
            wrong.append(f"{case}: {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_shapes_one_after_another_stay_right(device: str) -> None:
    """The plan of one shape never serves another."""
    for length in (*range(3, 40), *range(39, 2, -1)):
        case = Case("length", 1, 2, 3, (length,), (3,), padding=length % 3, stride=1 + length % 2)
        check_case(tensors_of(case, torch.float32, device), case, grad_of(case, torch.float32, device))


def test_numbers_that_are_equal_but_not_the_same_do_not_share_a_plan(device: str) -> None:
    tensors = tensors_of(PLAIN[1], torch.float32, device)
    results = [
        separable(tensors, PLAIN[1], depthwise_activation=("leaky_relu", slope)) for slope in (0.0, -0.0, 0.5, 1.0, 2.0)
    ]
    for slope, y in zip((0.0, -0.0, 0.5, 1.0, 2.0), results, strict=True):
        case = replace(PLAIN[1], activations=(("leaky_relu", slope), None))
        check(y, pair(double(tensors), case), pair(tensors, case), torch.float32)
    assert math.prod(results[0].shape)


@pytest.mark.parametrize("form", FORMS)
def test_the_op_itself_takes_any_layout(form: str, device: str) -> None:
    case = replace(EVERYTHING[1], activations=("silu", "tanh"))
    tensors = tensors_of(case, torch.float32, device, form)
    assert same_bits(OP(*op_arguments(case, tensors)), separable(tensors, case))
