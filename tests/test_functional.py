"""The three functions against the right answer: values, gradients, memory formats, special values, arguments."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from budget import check
from calls import FUNCTIONS, check_case, named, same_bits, separable
from cases import (
    ALL,
    BY_ID,
    FLOATS,
    FORMS,
    NAMES,
    TABLE,
    Case,
    double,
    grad_of,
    laid_out,
    pair,
    tensors_of,
    with_gradients,
)

import sepconv

SMALL = [case for case in TABLE if torch.Size((case.N, case.C, *case.L)).numel() < 10_000]
BOTH_BIASES = [BY_ID[name] for name in ("1d-prime", "2d-residual-activated", "3d-plain")]
LAYOUT = [
    Case(f"{rank}d-layout", 2, 6, 5, (7, 8, 9)[:rank], (3, 2, 3)[:rank], padding=1, bias="dp", residual=True)
    for rank in (1, 2, 3)
]
by_id = {"ids": str}


# --- values and gradients


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize(("case", "dtype"), [pytest.param(c, d, id=f"{c}-{str(d)[6:]}") for c in ALL for d in c.dtypes])
def test_result_and_gradients(case: Case, dtype: torch.dtype, device: str) -> None:
    check_case(tensors_of(case, dtype, device), case, grad_of(case, dtype, device))


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("case", SMALL, **by_id)
def test_any_layout_of_the_tensors(case: Case, form: str, device: str) -> None:
    check_case(tensors_of(case, torch.float32, device, form), case, grad_of(case, torch.float32, device))


@pytest.mark.parametrize("form", [*FORMS[1:], "one number"])
@pytest.mark.parametrize("case", LAYOUT, **by_id)
def test_any_layout_of_the_incoming_gradient(case: Case, form: str, device: str) -> None:
    grad = grad_of(case, torch.float32, device)
    grad = grad.new_ones(()).expand(grad.shape) if form == "one number" else laid_out(grad, form)
    check_case(tensors_of(case, torch.float32, device), case, grad)


@pytest.mark.parametrize("form_of", [*FORMS[1:]])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", LAYOUT, **by_id)
def test_one_tensor_in_another_layout(case: Case, name: str, form_of: str, device: str) -> None:
    tensors = tensors_of(case, torch.float32, device)
    i = NAMES.index(name)
    tensors[i] = laid_out(tensors[i], form_of)
    check_case(tensors, case, grad_of(case, torch.float32, device))


def test_slices_out_of_a_channels_last_tensor(device: str) -> None:
    case = Case("slice", 3, 4, 5, (7, 6), (3, 3), padding=1)
    big = torch.randn(3, 10, 7, 6, device=device)
    for b in (big, big.to(memory_format=torch.channels_last)):
        for view in (b[:, 3:7], b[:, ::2][:, :4], b[:, 3:7, 1:, ::2], b[1:, 2:6], b[:, 2:6].transpose(2, 3)):
            case = replace(case, N=view.shape[0], L=tuple(view.shape[2:]))
            tensors = tensors_of(case, torch.float32, device)
            check_case([view, *tensors[1:]], case, grad_of(case, torch.float32, device))


def test_a_piece_of_a_projection_with_an_odd_pitch(device: str) -> None:
    case = BY_ID["1d-causal-width"]
    projection = torch.randn(2, 50, 3 * 33 + 1, device=device)
    x = projection[..., 1:34].transpose(1, 2)
    check_case([x, *tensors_of(case, torch.float32, device)[1:]], case, grad_of(case, torch.float32, device))


def test_strides_of_axes_of_one_element_mean_nothing(device: str) -> None:
    case = BY_ID["1d-one-token"]
    x = torch.randn(2, 1, 4, device=device).transpose(1, 2)
    assert x.stride() == (4, 1, 4)
    check_case([x, *tensors_of(case, torch.float32, device)[1:]], case, grad_of(case, torch.float32, device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [BY_ID["2d-mobilenet"], BY_ID["1d-quartznet"]], **by_id)
def test_every_element_of_16_bits_is_near(case: Case, dtype: torch.dtype, device: str) -> None:
    case = replace(case, activations=(None, None), residual=False, bias="")
    tensors = tensors_of(case, dtype, device)
    y, right = separable(tensors, case), pair(double(tensors), case)
    step = right.abs().clamp_min(right.abs().max() / 8) * torch.finfo(dtype).eps
    # The intermediate rounded to 16 bits, as two separate convolutions do, makes up to 4 steps; kept in float32, 1.
    assert ((y.double() - right).abs() / step).max() <= 4


@pytest.mark.parametrize("N", [1, 2, 16])
@pytest.mark.parametrize(("K", "L"), [((256, 1), (256, 20)), ((1, 300), (3, 310))])
def test_a_kernel_as_long_as_the_axis(N: int, K: tuple[int, int], L: tuple[int, int], device: str) -> None:
    case = Case("spans", N, 8, 5, L, K, m=2)
    check_case(tensors_of(case, torch.float32, device), case, grad_of(case, torch.float32, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("K", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 65])
def test_every_width_of_a_causal_window(K: int, dtype: torch.dtype, device: str) -> None:
    case = Case("width", 2, 6, 5, (130,), (K,), padding=K - 1)
    check_case(tensors_of(case, dtype, device), case, grad_of(case, dtype, device))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("stride", [65535, 65536, 65537, 2**31 - 1])
def test_long_strides_leave_one_output(stride: int, dtype: torch.dtype, device: str) -> None:
    case = Case("far", 1, 3, 4, (5, 6), (3, 3), padding=1, stride=stride)
    tensors = tensors_of(case, dtype, device)
    assert separable(tensors, case).shape == (1, 4, 1, 1)
    check_case(tensors, case, grad_of(case, dtype, device))


# --- what a call leaves alone, and what it repeats


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", BOTH_BIASES, **by_id)
def test_inputs_are_left_as_they_were(case: Case, form: str, device: str) -> None:
    tensors = tensors_of(case, torch.float32, device, form)
    grad = grad_of(case, torch.float32, device)
    before = [None if t is None else (t.clone(), t._version) for t in [*tensors, grad]]
    with torch.no_grad():
        separable(tensors, case)
    with_gradients(lambda t: separable(t, case), tensors, grad)
    for t, b in zip([*tensors, grad], before, strict=True):
        assert t is b or (same_bits(t, b[0]) and t._version == b[1])


@pytest.mark.parametrize("case", BOTH_BIASES, **by_id)
def test_the_result_shares_no_memory_with_the_inputs(case: Case, device: str) -> None:
    tensors = tensors_of(case, torch.float32, device)
    y = separable(tensors, case)
    before = [t.clone() for t in tensors if t is not None]
    y.fill_(7)
    assert all(torch.equal(t, b) for t, b in zip((t for t in tensors if t is not None), before, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [*BOTH_BIASES, BY_ID["2d-long-weight-sum"]], **by_id)
def test_the_same_call_gives_the_same_bits(case: Case, dtype: torch.dtype, device: str) -> None:
    tensors, grad = tensors_of(case, dtype, device), grad_of(case, dtype, device)
    runs = [with_gradients(lambda t: separable(t, case), tensors, grad) for _ in range(4)]
    for y, grads in runs[1:]:
        assert same_bits(y, runs[0][0])
        assert all(same_bits(g, runs[0][1][name]) for name, g in grads.items())


@pytest.mark.parametrize("case", BOTH_BIASES, **by_id)
def test_memory_full_of_nan_changes_nothing(case: Case, device: str) -> None:
    tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)
    y, grads = with_gradients(lambda t: separable(t, case), tensors, grad)
    for size in (1 << 22, *(t.numel() for t in [y, *grads.values()])):
        junk = [torch.full((size,), float("nan"), device=device) for _ in range(4)]
        del junk
        again, grads_again = with_gradients(lambda t: separable(t, case), tensors, grad)
        assert same_bits(y, again)
        assert all(same_bits(g, grads_again[name]) for name, g in grads.items())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", SMALL, **by_id)
def test_grad_mode_changes_no_bit(case: Case, dtype: torch.dtype, device: str) -> None:
    tensors = tensors_of(case, dtype, device)
    leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
    y = separable(leaves, case)
    assert y.requires_grad
    with torch.no_grad():
        silent = separable(leaves, case)
    with torch.inference_mode():
        inferred = separable(tensors, case)
    assert not silent.requires_grad
    assert inferred.is_inference()
    assert same_bits(y.detach(), silent)
    assert same_bits(y.detach(), inferred.clone())
    assert y.stride() == silent.stride() == inferred.stride()


# --- who needs a gradient


@pytest.mark.parametrize("activations", [(None, None), ("silu", None), (None, "relu6"), ("gelu", "sigmoid")])
@pytest.mark.parametrize(
    "wanted", [(name,) for name in NAMES] + [NAMES[1:3], NAMES[3:5], ("x", "pointwise_bias")], ids="+".join
)
def test_some_inputs_alone_need_a_gradient(wanted: tuple[str, ...], activations: Any, device: str) -> None:
    case = replace(BY_ID["2d-residual-activated"], activations=activations, stride=2, padding=2)
    tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)

    def some(f: Any, of: list[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        leaves = [t.detach().requires_grad_(name in wanted) for name, t in zip(NAMES, of, strict=True)]
        y = f(leaves, case)
        assert y.requires_grad
        y.backward(grad.to(y.dtype))
        assert all((t.grad is not None) == (name in wanted) for name, t in zip(NAMES, leaves, strict=True))
        return tuple(t.grad for t in leaves if t.grad is not None)

    for ours, right, eager in zip(
        some(separable, tensors), some(pair, double(tensors)), some(pair, tensors), strict=True
    ):
        check(ours, right, eager, torch.float32)


def test_no_gradient_is_offered_where_none_is_asked_for(device: str) -> None:
    case = BY_ID["2d-plain"]
    assert separable(tensors_of(case, torch.float32, device), case).grad_fn is None


# --- unbatched


@pytest.mark.parametrize("case", [c for c in SMALL if c.N == 1], **by_id)
def test_unbatched_equals_batched(case: Case, device: str) -> None:
    tensors, grad = tensors_of(case, torch.float32, device), grad_of(case, torch.float32, device)
    alone = list(tensors)
    alone[0] = tensors[0][0]
    alone[5] = None if tensors[5] is None else tensors[5][0]
    y, grads = with_gradients(lambda t: separable(t, case), tensors, grad)
    z, grads_alone = with_gradients(lambda t: separable(t, case), alone, grad[0])
    assert same_bits(z, y[0])
    for name, g in grads_alone.items():
        assert same_bits(g, grads[name][0] if name in ("x", "residual") else grads[name])


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("L", "K"), [((9,), (3,)), ((9, 8), (3, 3)), ((5, 6, 7), (3, 2, 1))])
def test_unbatched_is_right(L: tuple[int, ...], K: tuple[int, ...], dilation: int, device: str) -> None:
    case = Case("alone", 1, 5, 4, L, K, padding=2, dilation=dilation, bias="dp", activations=("relu", None))
    tensors = tensors_of(case, torch.float32, device)
    y = separable([tensors[0][0], *tensors[1:]], case)
    check(y, pair(double(tensors), case)[0], pair(tensors, case)[0], torch.float32)


# --- strides of what comes out


def _dense(shape: torch.Size, last: bool) -> tuple[int, ...]:
    return laid_out(torch.empty(shape), "channels_last" if last else "plain").stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("which", [(), *[(name,) for name in NAMES[:3]], NAMES[:3], ("residual",)], ids="+".join)
@pytest.mark.parametrize(
    "case", [LAYOUT[1], LAYOUT[2], replace(LAYOUT[1], stride=2, activations=("relu", "silu"))], **by_id
)
def test_the_result_is_channels_last_where_x_or_a_weight_is(
    case: Case, which: tuple[str, ...], needs_grad: bool, dtype: torch.dtype, device: str
) -> None:
    tensors = tensors_of(case, dtype, device)
    for name in which:
        i = NAMES.index(name)
        tensors[i] = laid_out(tensors[i], "channels_last")
    tensors = [t.requires_grad_(needs_grad) for t in tensors]
    y = separable(tensors, case)
    assert y.stride() == _dense(y.shape, last=bool({*which} & {*NAMES[:3]}))


@pytest.mark.parametrize("L", [(5, 7), (1, 7), (1, 1)])
@pytest.mark.parametrize("C", [1, 4])
@pytest.mark.parametrize("N", [0, 1, 2])
@pytest.mark.parametrize("which", [(), *[(name,) for name in NAMES[:3]]], ids="+".join)
def test_ambiguous_shapes_go_as_pytorch_has_them(which: Any, N: int, C: int, L: tuple[int, int]) -> None:
    case = Case("tiny", N, C, 3, L, (1, 1))
    tensors = tensors_of(case)
    for name in which:
        i = NAMES.index(name)
        tensors[i] = tensors[i].to(memory_format=torch.channels_last)
    suggested = {torch._prims_common.suggest_memory_format(t) for t in tensors[:3]}
    y = separable(tensors, case)
    expected = (
        torch.empty(y.shape).to(memory_format=torch.channels_last)
        if torch.channels_last in suggested
        else torch.empty(y.shape)
    )
    assert y.stride() == expected.stride()


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_stays_in_its_dense_order(form: str, needs_grad: bool, device: str) -> None:
    case = LAYOUT[0]
    tensors = tensors_of(case, torch.float32, device)
    tensors[0] = laid_out(tensors[0], form)
    y = separable([t.requires_grad_(needs_grad) for t in tensors], case)
    assert y.stride() == _dense(y.shape, last=form == "channels_last")
    for i in (1, 2, 5):  # neither a weight nor the residual decides in 1-D
        other = tensors_of(case, torch.float32, device)
        other[i] = laid_out(other[i], "channels_last")
        assert separable(other, case).is_contiguous()


def test_a_sequence_slice_in_channel_order_with_gaps_becomes_contiguous(device: str) -> None:
    case = LAYOUT[0]
    x = torch.randn(2, 7, 12, device=device)[..., :6].transpose(1, 2)
    assert separable([x, *tensors_of(case, torch.float32, device)[1:]], case).is_contiguous()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [*LAYOUT, BY_ID["2d-256-taps"], BY_ID["2d-all-ones"], BY_ID["1d-one-token"]], **by_id)
def test_gradients_have_the_strides_of_their_tensors(case: Case, form: str, device: str) -> None:
    tensors = tensors_of(case, torch.float32, device, form)
    for form_of_grad in ("plain", "channels_last"):
        grad = laid_out(grad_of(case, torch.float32, device), form_of_grad)
        _, grads = with_gradients(lambda t: separable(t, case), tensors, grad)
        for name, t in named(tensors[:5]).items():
            assert grads[name].stride() == torch.empty_like(t).stride(), name


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last])
def test_weight_gradients_of_7x7_need_no_copy_for_a_bucket(fmt: torch.memory_format, device: str) -> None:
    case = Case("convnext", 2, 24, 6, (9, 9), (7, 7), padding=3)
    x, *weights = [t.to(memory_format=fmt).requires_grad_() for t in tensors_of(case, torch.float32, device)[:3]]
    separable([x, *weights, None, None, None], case).sum().backward()
    assert all(w.grad.stride() == torch.empty_like(w).stride() for w in weights)


# --- special values


def test_nan_reaches_exactly_the_windows_that_hold_it(device: str) -> None:
    for N in (4, 16, 32):
        x, wd, wp, *_ = tensors_of(Case("nan", N, 3, 2, (64,), (3,)), torch.float32, device)
        x[3, :, 40:] = float("nan")
        y = sepconv.separable_conv1d(F.pad(x, (2, 0)), wd, wp)
        expected = torch.zeros_like(y, dtype=torch.bool)
        expected[3, :, 40:] = True
        assert torch.equal(y.isnan(), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "case",
    [BY_ID[name] for name in ("1d-plain", "1d-stride-dilation", "2d-plain", "2d-mixed", "2d-multiplier-3", "3d-plain")],
    **by_id,
)
def test_one_special_value(case: Case, dtype: torch.dtype, value: float, device: str) -> None:
    for position in (0, -1):
        tensors = tensors_of(case, dtype, device)
        tensors[0].view(-1)[position] = value
        check(separable(tensors, case), pair(double(tensors), case), pair(tensors, case), dtype)
        batch = 0 if position == 0 else case.N - 1
        y = separable(tensors, case)
        others = [n for n in range(case.N) if n != batch]
        assert y[others].isfinite().all()
        assert not y[batch].isfinite().all()


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("case", [BY_ID["1d-prime"], BY_ID["2d-prime"]], **by_id)
def test_one_special_value_in_a_parameter(case: Case, value: float, name: str, device: str) -> None:
    case = replace(case, residual=True, padding=0)
    tensors = tensors_of(case, torch.float32, device)
    tensors[NAMES.index(name)].view(-1)[1] = value
    check(separable(tensors, case), pair(double(tensors), case), pair(tensors, case), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", [1, 2])
def test_an_infinite_weight_over_padding_multiplies_nothing(rank: int, dtype: torch.dtype, device: str) -> None:
    case = Case("edge", 1, 2, 3, (6,) * rank, (3,) * rank, padding=1)
    tensors = tensors_of(case, dtype, device)
    tensors[1].view(2, -1)[0, 0] = float("inf")
    y, right = separable(tensors, case), pair(double(tensors), case)
    assert not (y.isnan() & ~right.isnan()).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [BY_ID["1d-plain"], BY_ID["2d-plain"]], **by_id)
def test_values_near_the_largest_float(case: Case, dtype: torch.dtype, device: str) -> None:
    x, wd, wp, *rest = tensors_of(replace(case, positive=True), torch.float64, device)
    largest = torch.finfo(dtype).max
    tensors = [(x * largest * 0.9).to(dtype), wd.to(dtype), wp.to(dtype), *rest]
    y = separable(tensors, case)
    assert y.isfinite().all()
    assert y.abs().max() > largest / 100
    check(y, pair(double(tensors), case), pair(tensors, case), dtype)


@pytest.mark.parametrize("case", [BY_ID["1d-plain"], BY_ID["2d-plain"]], **by_id)
def test_values_near_the_smallest_float(case: Case, device: str) -> None:
    tensors = tensors_of(case, torch.float64, device)
    tensors = [(tensors[0] * 1e-30).float(), *[None if t is None else t.float() for t in tensors[1:]]]
    y = separable(tensors, case)
    assert y.any()
    check(y, pair(double(tensors), case), pair(tensors, case), torch.float32)


# --- arguments


@pytest.mark.parametrize(
    "wrap",
    [list, tuple, np.array, torch.Size, lambda n: [np.int64(i) for i in n], lambda n: [torch.tensor(i) for i in n]],
)
def test_numbers_come_in_many_types(wrap: Any) -> None:
    case = BY_ID["2d-mixed"]
    tensors = tensors_of(case)
    numbers = {name: wrap(getattr(case, name)) for name in ("stride", "padding", "dilation")}
    if isinstance(numbers["stride"], np.ndarray):
        numbers = {name: tuple(value) for name, value in numbers.items()}
    assert same_bits(separable(tensors, case, **numbers), separable(tensors, case))


@pytest.mark.parametrize("wrap", [int, np.int32, np.uint8, torch.tensor, lambda n: [n], lambda n: (n, n)])
def test_one_number_for_all_axes(wrap: Any) -> None:
    case = Case("numbers", 2, 3, 4, (11, 12), (3, 3), stride=2, padding=1, dilation=2)
    numbers = {name: wrap(getattr(case, name)) for name in ("stride", "padding", "dilation")}
    tensors = tensors_of(case)
    assert same_bits(separable(tensors, case, **numbers), separable(tensors, case))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_order_of_the_positional_arguments_is_that_of_pytorch(rank: int) -> None:
    case = Case("order", 2, 3, 4, (9, 8, 7)[:rank], (2, 3, 1)[:rank], stride=2, padding=1, dilation=2, bias="dp")
    tensors = tensors_of(case)
    assert same_bits(FUNCTIONS[rank](*tensors[:5], 2, 1, 2), separable(tensors, case))


@pytest.mark.parametrize("precision", [None, "ieee", "high", "tf32"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [BY_ID["1d-quartznet"], BY_ID["2d-mobilenet"], BY_ID["2d-long-sum-1024"]], **by_id)
def test_every_precision_keeps_its_bound(case: Case, dtype: torch.dtype, precision: str | None, device: str) -> None:
    tensors = tensors_of(case, dtype, device)
    bound = (precision or "ieee") if device == "cuda" else "ieee"
    check_case(tensors, case, grad_of(case, dtype, device), bound, precision=precision)


def test_an_unset_precision_follows_the_switch_of_pytorch(device: str) -> None:
    case = BY_ID["2d-mobilenet"]
    tensors = tensors_of(case, torch.float32, device)
    exact = separable(tensors, case)
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # the fixture puts it back
    y = separable(tensors, case)
    check(y, pair(double(tensors), case), exact, torch.float32, "high" if device == "cuda" else "ieee")
    assert same_bits(y, separable(tensors, case, precision="high"))
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_zeroed_padding_gives_the_frames_of_the_cut_sequence(device: str) -> None:
    whole, cut = Case("whole", 2, 6, 5, (50,), (9,), padding=4), Case("cut", 2, 6, 5, (30,), (9,), padding=4)
    x, *rest = tensors_of(whole, torch.float32, device)
    masked = x * (torch.arange(50, device=device) < 30)
    y = separable([masked, *rest], whole)[..., :30]
    short = [x[..., :30], *rest]
    check(y, pair(double(short), cut), pair(short, cut), torch.float32)


def test_fake_quantised_weights_pass_through(device: str) -> None:
    case = Case("quantised", 2, 8, 4, (12, 12), (3, 3), padding=2, dilation=2)
    x, wd, wp, *rest = tensors_of(case, torch.float32, device)
    scale = wd.abs().amax((1, 2, 3)) / 127
    zeros = torch.zeros(8, dtype=torch.int32, device=device)
    tensors = [x, torch.fake_quantize_per_channel_affine(wd, scale, zeros, 0, -128, 127), wp, *rest]
    check(separable(tensors, case), pair(double(tensors), case), pair(tensors, case), torch.float32)


def test_explain_says_what_would_run(device: str) -> None:
    case = BY_ID["2d-mobilenet"]
    tensors = tensors_of(case, torch.float32, device)
    text = sepconv.explain(*tensors[:5], **case.arguments)
    for word in ("(2, 32, 14x14) -> 64", "kernel 3x3", "backend", "device", device, "float32", "GFLOP", "relu6"):
        assert word in text
    on_meta = sepconv.explain(*[None if t is None else t.to("meta") for t in tensors[:5]], **case.arguments)
    assert "meta" in on_meta


def test_every_activation_name_is_tested() -> None:
    assert set(sepconv.ACTIVATIONS) == {word for case in ALL for word in case.activations if isinstance(word, str)}
