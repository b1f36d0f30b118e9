"""Every wrong call: the class of its error, and a text that names the argument, what came and what is expected."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calls import FUNCTIONS, MODULES
from cases import Case, tensors_of
from hypothesis import given, settings
from hypothesis import strategies as st

import sepconv
from sepconv.errors import ArgumentTypeError, ArgumentValueError

V, T = ArgumentValueError, ArgumentTypeError
RIGHT = {
    rank: Case("right", 2, 4, 6, (8, 9, 7)[:rank], (3, 2, 3)[:rank], m=2, padding=1, bias="dp", residual=True)
    for rank in (1, 2, 3)
}


def right_call(rank: int = 2, device: str = "cpu") -> dict[str, Any]:
    """The arguments of a call that is right in every respect; a test makes one of them wrong."""
    x, wd, wp, bd, bp, residual = tensors_of(RIGHT[rank], device=device)
    return {
        "x": x,
        "depthwise_weight": wd,
        "pointwise_weight": wp,
        "depthwise_bias": bd,
        "pointwise_bias": bp,
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "depthwise_activation": "relu",
        "pointwise_activation": ("leaky_relu", 0.2),
        "residual": residual,
        "precision": None,
    }


def refused(f: Callable[[], Any], kind: type[Exception], argument: str, *words: str) -> str:
    """The text of the error that f must raise; it is of this class and names the argument."""
    with pytest.raises((ValueError, TypeError)) as caught:
        f()
    text = str(caught.value)
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {text}"
    assert isinstance(caught.value, sepconv.SepconvError)
    assert f"`{argument}`" in text, text
    assert "expected" in text, text
    for word in words:
        assert word in text, (word, text)
    return text


def test_the_right_call_is_right() -> None:
    for rank, function in FUNCTIONS.items():
        assert function(**right_call(rank)).shape == RIGHT[rank].out_shape
        assert function(**right_call(rank, "meta")).shape == RIGHT[rank].out_shape
        assert f"backend   {'eager' if rank == 3 else 'cpu'} (" in sepconv.explain(**right_call(rank))


# --- tensors

TENSORS = ("x", "depthwise_weight", "pointwise_weight", "depthwise_bias", "pointwise_bias", "residual")
NOT_TENSORS = (3, 1.5, "x", [1.0, 2.0], np.zeros((2, 4, 8, 9), np.float32), object(), torch.float32, True)
BAD_TENSORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], type[Exception], tuple[str, ...]]] = {
    "complex64": (lambda t: t.to(torch.complex64), T, ("complex64", "real")),
    "complex128": (lambda t: t.to(torch.complex128), T, ("complex128",)),
    "int8": (lambda t: t.to(torch.int8), T, ("int8",)),
    "uint8": (lambda t: t.to(torch.uint8), T, ("uint8",)),
    "int64": (lambda t: t.to(torch.int64), T, ("int64",)),
    "bool": (lambda t: t.to(torch.bool), T, ("bool",)),
    "float8": (lambda t: t.to(torch.float8_e4m3fn), T, ("float8_e4m3fn",)),
    "sparse": (lambda t: t.to_sparse(), T, ("sparse",)),
}


@pytest.mark.parametrize("value", NOT_TENSORS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", TENSORS)
def test_what_is_not_a_tensor(name: str, value: Any) -> None:
    refused(lambda: sepconv.separable_conv2d(**{**right_call(), name: value}), T, name, type(value).__name__, "Tensor")


@pytest.mark.parametrize("name", TENSORS[:3])
def test_a_tensor_that_may_not_be_missing(name: str) -> None:
    refused(lambda: sepconv.separable_conv2d(**{**right_call(), name: None}), T, name, "NoneType", "Tensor")


@pytest.mark.parametrize("what", BAD_TENSORS)
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_a_kind_that_has_no_meaning(name: str, what: str, device: str) -> None:
    change, kind, words = BAD_TENSORS[what]
    call = right_call(device=device)
    call[name] = change(call[name])
    refused(lambda: sepconv.separable_conv2d(**call), kind, name, *words)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_mixed_dtypes_are_refused_with_both_named(name: str, dtype: torch.dtype, on: str) -> None:
    call = right_call(device=on)
    call[name] = call[name].to(dtype)
    named = name if name != "x" else "depthwise_weight"
    refused(lambda: sepconv.separable_conv2d(**call), T, named, str(dtype), "torch.float32")


def test_mixed_dtypes_are_refused_when_compiled_too() -> None:
    call = right_call()
    call["depthwise_weight"] = call["depthwise_weight"].double()
    f = torch.compile(lambda: sepconv.separable_conv2d(**call), backend="eager")
    with pytest.raises(TypeError, match="float64"):
        f()


@pytest.mark.parametrize("name", TENSORS)
def test_mixed_devices_are_refused_with_both_named(name: str, device: str) -> None:
    call = right_call(device=device)
    call[name] = call[name].to("meta")
    named = name if name != "x" else "depthwise_weight"
    refused(lambda: sepconv.separable_conv2d(**call), V, named, "meta", device)


# --- shapes

Shape = tuple[int, ...]
WRONG_SHAPES: dict[int, list[tuple[str, Shape, tuple[str, ...]]]] = {
    1: [
        ("x", (8,), ("(8,)", "3")),
        ("x", (2, 3, 4, 8), ("4 dimensions", "3 dimensions")),
        ("depthwise_weight", (8, 3), ("(8, 3)",)),
        ("depthwise_weight", (8, 1, 3, 3), ("(8, 1, 3, 3)",)),
        ("pointwise_weight", (6, 8), ("(6, 8)",)),
        ("pointwise_weight", (6, 8, 3), ("(6, 8, 3)",)),
        ("x", (2, 4, 0), ("0 elements", "spatial axis 0", "at least 1")),
    ],
    2: [
        ("x", (), ("()",)),
        ("x", (4, 8), ("(4, 8)", "4 dimensions", "3 without a batch")),
        ("x", (1, 2, 4, 8, 9), ("5 dimensions",)),
        ("x", (2, 0, 8, 9), ("(2, 0, 8, 9)", "channel")),
        ("x", (2, 4, 0, 9), ("0 elements", "spatial axis 0", "at least 1")),
        ("x", (2, 4, 8, 0), ("0 elements", "spatial axis 1", "at least 1")),
        ("depthwise_weight", (), ("()",)),
        ("depthwise_weight", (8, 1, 3), ("(8, 1, 3)", "4 dimensions")),
        ("depthwise_weight", (8, 2, 3, 2), ("(8, 2, 3, 2)", "1")),
        ("depthwise_weight", (8, 0, 3, 2), ("(8, 0, 3, 2)", "1")),
        ("depthwise_weight", (6, 1, 3, 2), ("(6, 1, 3, 2)", "4 * multiplier", "4 channels")),
        ("depthwise_weight", (3, 1, 3, 2), ("(3, 1, 3, 2)", "4 channels")),
        ("depthwise_weight", (0, 1, 3, 2), ("(0, 1, 3, 2)",)),
        ("depthwise_weight", (8, 1, 0, 2), ("kernel of 0", "spatial axis 0", "at least 1")),
        ("depthwise_weight", (8, 1, 3, 0), ("kernel of 0", "spatial axis 1", "at least 1")),
        ("pointwise_weight", (6, 8, 1), ("(6, 8, 1)", "4 dimensions")),
        ("pointwise_weight", (6, 4, 1, 1), ("(6, 4, 1, 1)", "8")),
        ("pointwise_weight", (6, 8, 3, 3), ("(6, 8, 3, 3)",)),
        ("pointwise_weight", (6, 8, 1, 0), ("(6, 8, 1, 0)",)),
        ("pointwise_weight", (0, 8, 1, 1), ("(0, 8, 1, 1)", "output channel")),
        ("depthwise_bias", (), ("()", "(8,)")),
        ("depthwise_bias", (4,), ("(4,)", "(8,)")),
        ("depthwise_bias", (0,), ("(0,)", "(8,)")),
        ("depthwise_bias", (8, 1), ("(8, 1)", "(8,)")),
        ("pointwise_bias", (8,), ("(8,)", "(6,)")),
        ("pointwise_bias", (1,), ("(1,)", "(6,)")),
        ("pointwise_bias", (6, 1, 1), ("(6, 1, 1)", "(6,)")),
        ("residual", (), ("()", "(2, 6, 8, 10)")),
        ("residual", (6, 8, 10), ("(6, 8, 10)", "(2, 6, 8, 10)")),
        ("residual", (1, 6, 8, 10), ("(1, 6, 8, 10)", "(2, 6, 8, 10)")),
        ("residual", (2, 4, 8, 10), ("(2, 4, 8, 10)", "(2, 6, 8, 10)")),
        ("residual", (2, 6, 8, 9), ("(2, 6, 8, 9)", "(2, 6, 8, 10)")),
    ],
    3: [
        ("x", (4, 8, 9), ("(4, 8, 9)", "5 dimensions")),
        ("depthwise_weight", (8, 1, 3, 3), ("(8, 1, 3, 3)", "5 dimensions")),
        ("pointwise_weight", (6, 8, 1, 1), ("(6, 8, 1, 1)", "5 dimensions")),
        ("residual", (2, 6, 8, 10), ("(2, 6, 8, 10)",)),
    ],
}


@pytest.mark.parametrize("on", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("rank", "name", "shape", "words"), [(rank, *entry) for rank, entries in WRONG_SHAPES.items() for entry in entries]
)
def test_wrong_shapes(rank: int, name: str, shape: Shape, words: tuple[str, ...], on: str) -> None:
    call = {**right_call(rank, on), name: torch.ones(shape, device=on)}
    refused(lambda: FUNCTIONS[rank](**call), V, name, *words)


@pytest.mark.parametrize("on", ["cpu", "meta"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_window_that_does_not_fit(rank: int, on: str) -> None:
    call = right_call(rank, on)
    call["x"] = call["x"][..., :1]
    refused(lambda: FUNCTIONS[rank](**{**call, "dilation": 3}), V, "x", "`padding`", "3 with", "reach", "dilation")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("x", lambda t: t[:3], ("(3, 8, 9)",)),
        ("residual", lambda t: t[..., :-1], ("(6, 8, 9)", "(6, 8, 10)")),
        ("residual", lambda t: t[None], ("(1, 6, 8, 10)", "(6, 8, 10)")),
    ],
)
def test_texts_of_unbatched_calls_speak_of_the_shapes_that_came(name: str, change: Any, words: tuple[str, ...]) -> None:
    call = right_call()
    call["x"], call["residual"] = call["x"][0], call["residual"][0]
    call[name] = change(call[name])
    named = "depthwise_weight" if name == "x" else name  # 8 rows do not go into 3 channels
    text = refused(lambda: sepconv.separable_conv2d(**call), V, named, *([] if name == "x" else words))
    assert "(1, 6, 8, 9)" not in text


@pytest.mark.parametrize("rank", [0, 4])
def test_explain_wants_a_rank_that_there_is(rank: int) -> None:
    call = right_call()
    call["depthwise_weight"] = torch.ones((8, 1) + (3,) * rank)
    refused(lambda: sepconv.explain(**call), V, "depthwise_weight", "3, 4 or 5 dimensions")


# --- numbers

BAD_NUMBERS: list[tuple[Any, type[Exception]]] = [
    (-1, V),
    ((1, -1), V),
    ((1, 2, 3), V),
    ([], V),
    ((), V),
    (1.0, T),
    (1.5, T),
    (math.nan, T),
    (math.inf, T),
    (True, T),
    ((1, True), T),
    ((1, 2.0), T),
    ((1, None), T),
    (None, T),
    (b"1", T),
    ({"a": 1}, T),
    (object(), T),
    (torch.tensor([1, 2]), T),
    (torch.tensor(1.5), T),
    (np.float32(1), T),
    (np.bool_(True), T),
    ((1, "1"), T),
    (((1, 1), (1, 1)), T),
    (2**31, V),
    (2**63, V),
    (2**70, V),
    ((1, 2**70), V),
]
BAD_WORDS_AND_NUMBERS = (
    [("stride", value, kind) for value, kind in [*BAD_NUMBERS, (0, V), ((1, 0), V), ("1", T), ("same", T)]]
    + [("dilation", value, kind) for value, kind in [*BAD_NUMBERS, (0, V), ((0, 1), V), ("1", T), ("same", T)]]
    + [
        ("padding", value, kind)
        for value, kind in [*BAD_NUMBERS, ("SAME", V), ("", V), ("full", V), ("1", V), (("same", "same"), T)]
    ]
)


@pytest.mark.parametrize("on", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    BAD_WORDS_AND_NUMBERS,
    ids=[f"{name}-{type(value).__name__}-{i}" for i, (name, value, _) in enumerate(BAD_WORDS_AND_NUMBERS)],
)
def test_numbers_that_mean_nothing(name: str, value: Any, kind: type[Exception], on: str) -> None:
    text = refused(
        lambda: sepconv.separable_conv2d(**{**right_call(device=on), "residual": None, name: value}), kind, name
    )
    assert repr(value) in text


@pytest.mark.parametrize("stride", [2, (1, 2), [2, 1]])
def test_same_padding_with_a_stride(stride: Any) -> None:
    call = {**right_call(), "stride": stride, "padding": "same", "residual": None}
    refused(lambda: sepconv.separable_conv2d(**call), V, "padding", "same", "stride")


def test_padding_words_are_listed() -> None:
    refused(
        lambda: sepconv.separable_conv2d(**{**right_call(), "padding": "SAME"}), V, "padding", "SAME", "same", "valid"
    )


# --- activations and precision

BAD_ACTIVATIONS: list[tuple[Any, type[Exception]]] = [
    ("swish", V),
    ("ReLU", V),
    ("", V),
    (("relu", 1.0), V),
    (("leaky_relu", "0.1"), V),
    (("leaky_relu", True), V),
    (("leaky_relu", None), V),
    (("leaky_relu", math.nan), V),
    (("leaky_relu", math.inf), V),
    (("leaky_relu", 10**400), V),
    (("gelu", "erf"), V),
    (("gelu", True), V),
    (("leaky_relu", []), V),
    (([], 0.1), V),
    (("leaky_relu",), T),
    (("leaky_relu", 0.1, 0.2), T),
    ((), T),
    (["leaky_relu", 0.1], T),
    (torch.relu, T),
    (torch.nn.ReLU(), T),
    (torch.nn.ReLU, T),
    (1, T),
    (True, T),
    (b"relu", T),
    (torch.zeros(2), T),
]


@pytest.mark.parametrize("name", ["depthwise_activation", "pointwise_activation"])
@pytest.mark.parametrize(("value", "kind"), BAD_ACTIVATIONS, ids=[f"{i}" for i in range(len(BAD_ACTIVATIONS))])
def test_activations_that_there_are_not(name: str, value: Any, kind: type[Exception]) -> None:
    refused(
        lambda: sepconv.separable_conv2d(**{**right_call(), name: value}), kind, name, repr(value), "leaky_relu", "silu"
    )


@pytest.mark.parametrize(
    "value", ["fp32", "TF32", "", "ieee ", 1, True, torch.float32, ("ieee",), ["ieee"], b"ieee"], ids=str
)
def test_precisions_that_there_are_not(value: Any) -> None:
    kind = V if isinstance(value, str) else T
    refused(
        lambda: sepconv.separable_conv2d(**{**right_call(), "precision": value}),
        kind,
        "precision",
        repr(value),
        "high",
        "tf32",
    )


# --- the same through the modules

MODULE_RIGHT: dict[str, Any] = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
BAD_MODULES: list[tuple[str, Any, type[Exception]]] = [
    *[(name, value, V) for name in ("in_channels", "out_channels", "depth_multiplier") for value in (0, -1)],
    *[
        (name, value, T)
        for name in ("in_channels", "out_channels", "depth_multiplier")
        for value in (1.0, "4", None, True, (4,), torch.tensor(4.0))
    ],
    *[("kernel_size", value, V) for value in (0, -1, (3, 0), (1, 2, 3, 4), ())],
    *[("kernel_size", value, T) for value in (3.0, "3", None, True, (3, 3.0), "same")],
    *[("stride", value, V) for value in (0, -1, (1, 2, 3, 4), 2**70)],
    *[("stride", value, T) for value in (1.0, "1", None, True)],
    *[("dilation", value, V) for value in (0, -1, (1, 2, 3, 4))],
    *[("dilation", value, T) for value in (1.0, "1", None, True)],
    *[("padding", value, V) for value in (-1, "SAME", "", (1, 2, 3, 4))],
    *[("padding", value, T) for value in (1.0, None, True)],
    *[("padding_mode", value, V) for value in ("zero", "", "REFLECT", None, 1)],
    *[("bias", value, T) for value in ("yes", None, 1.0, torch.zeros(6))],
    ("depthwise_activation", "swish", V),
    ("pointwise_activation", torch.relu, T),
    ("precision", "fp32", V),
    ("precision", 1, T),
]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    BAD_MODULES,
    ids=[f"{entry[0]}-{type(entry[1]).__name__}-{i}" for i, entry in enumerate(BAD_MODULES)],
)
def test_wrong_constructor_arguments(rank: int, name: str, value: Any, kind: type[Exception]) -> None:
    if name == "kernel_size" and value == (3, 0) and rank != 2:
        value = (3,) * (rank - 1) + (0,)
    refused(lambda: MODULES[rank](**{**MODULE_RIGHT, name: value}), kind, name)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64], ids=str)
def test_modules_of_dtypes_without_a_meaning(dtype: torch.dtype) -> None:
    refused(lambda: sepconv.SeparableConv2d(4, 6, 3, dtype=dtype), T, "dtype", str(dtype))


def test_same_padding_with_a_stride_in_a_constructor() -> None:
    refused(lambda: sepconv.SeparableConv2d(4, 6, 3, stride=2, padding="same"), V, "padding", "same", "stride")


def test_modules_refuse_wrong_inputs() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    refused(lambda: module(torch.zeros(2, 3, 8, 8)), V, "depthwise_weight", "3 channels")
    refused(lambda: module(torch.zeros(2, 4, 8, 8).double()), T, "depthwise_weight", "float64", "float32")
    refused(lambda: module(torch.zeros(2, 4, 8, 8), torch.zeros(2, 6, 5, 6)), V, "residual", "(2, 6, 6, 6)")
    refused(lambda: module(None), T, "x", "NoneType")


# --- whatever is wrong with one argument

_WRONG_SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 9, 10]), max_size=6).map(tuple)
_WRONG_TENSORS = st.one_of(
    _WRONG_SHAPES.map(lambda shape: torch.ones(shape)),
    st.sampled_from([torch.int8, torch.int64, torch.bool, torch.complex64, torch.float64, torch.float16]).map(
        lambda dtype: torch.ones(2, 4, 8, 9, dtype=dtype)
    ),
)
_THINGS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=3),
    st.tuples(st.integers(), st.integers()),
    st.lists(st.one_of(st.integers(-3, 3), st.floats(), st.none(), st.text(max_size=3)), max_size=4),
    st.tuples(
        st.sampled_from(["leaky_relu", "gelu", "relu", "tanh"]), st.one_of(st.floats(), st.text(max_size=4), st.none())
    ),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
    st.just(torch.relu),
    st.just(np.zeros(2)),
    _WRONG_TENSORS,
)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _may_be_right(name: str, value: Any, rank: int) -> bool:
    """Whether a drawn value is one that the call may take; everything else has to be refused."""
    if name in TENSORS:
        if value is None:
            return name in TENSORS[3:]
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.float32
            and value.shape == right_call(rank)[name].shape
        )
    if name in ("stride", "dilation", "padding"):
        least = 0 if name == "padding" else 1
        if isinstance(value, str):
            return name == "padding" and value in ("same", "valid")
        if isinstance(value, (list, tuple)):
            return len(value) in (1, rank) and all(_is_whole(n) and n >= least for n in value)
        if isinstance(value, torch.Tensor):
            return value.numel() == 1 and value.dtype in (torch.int8, torch.int64)
        return _is_whole(value) and value >= least
    if name == "precision":
        return value in (None, "ieee", "high", "tf32") if value is None or isinstance(value, str) else False
    if value is None or (isinstance(value, str) and value in sepconv.ACTIVATIONS):
        return True
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)):
        return False
    if value[0] == "leaky_relu":
        return isinstance(value[1], float) and math.isfinite(value[1])
    return value[0] == "gelu" and value[1] in ("none", "tanh")


@settings(max_examples=200)
@given(st.sampled_from([1, 2, 3]), st.sampled_from(sorted(right_call())), _THINGS, st.sampled_from(["cpu", "meta"]))
def test_one_wrong_argument_is_refused_by_name(rank: int, name: str, value: Any, on: str) -> None:
    if _may_be_right(name, value, rank):
        return
    call = {**right_call(rank, on), "residual": None}
    if name == "residual":
        call["residual"] = right_call(rank, on)["residual"]
    call[name] = value.to(on) if isinstance(value, torch.Tensor) and name in TENSORS else value
    with pytest.raises((ValueError, TypeError)) as caught:
        FUNCTIONS[rank](**call)
    assert isinstance(caught.value, sepconv.SepconvError), repr(caught.value)
    # A wrong size of x is found where a weight does not fit it, and the other way round.
    mentioned = re.findall(r"`(\w+)`", str(caught.value))
    assert mentioned, str(caught.value)
    assert name in mentioned or (name in TENSORS[:3] and mentioned[0] in TENSORS), str(caught.value)
