"""Short cuts: taken by calls that differ in addresses and values alone, and never past what PyTorch has to see."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import sepconv
from sepconv import ops, shortcuts
from sepconv.problem import Operands

X, DEPTHWISE, POINTWISE = torch.randn(2, 3, 9), torch.randn(3, 1, 3), torch.randn(4, 3, 1)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SEPCONV_BACKEND", "eager")
    ops.forget_plans()
    yield
    monkeypatch.undo()
    ops.forget_plans()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[shortcuts.ShortCut | None]:
    """What each call found."""
    found: list[shortcuts.ShortCut | None] = []
    real = shortcuts.find

    def find(operands: Operands, words: Any) -> shortcuts.ShortCut | None:
        found.append(real(operands, words))
        return found[-1]

    monkeypatch.setattr(shortcuts, "find", find)
    return found


def separable(x: Any = X, depthwise: Any = DEPTHWISE, pointwise: Any = POINTWISE, *more: Any, **words: Any) -> Tensor:
    return sepconv.separable_conv1d(x, depthwise, pointwise, *more, **words)


def pair(x: Tensor, depthwise: Tensor = DEPTHWISE, pointwise: Tensor = POINTWISE, **how: Any) -> Tensor:
    return F.conv1d(F.conv1d(x, depthwise, groups=3, **how), pointwise)


def test_the_second_of_two_calls_takes_it(taken: list[Any]) -> None:
    for scale in (1, 2, 3):
        x = X * scale
        assert torch.allclose(separable(x, padding=1), pair(x, padding=1), atol=1e-6)
    assert [found is not None for found in taken] == [False, True, True]


def test_numbers_that_can_change_are_read_anew(taken: list[Any]) -> None:
    weight, pointwise = torch.randn(3, 1, 3, 3), torch.randn(4, 3, 1, 1)
    x, step = torch.randn(2, 3, 9, 9), torch.tensor(1)

    def rows(stride: Any) -> int:
        return sepconv.separable_conv2d(x, weight, pointwise, stride=stride).shape[2]

    assert [rows(1), rows(np.int32(2)), rows((2, 1)), rows(step), rows(np.int32(2))] == [7, 4, 4, 7, 4]
    step.fill_(2)
    assert rows(step) == rows([2, 2]) == 4
    assert taken == [None] * len(taken)


Change = Callable[[], Tensor]
OTHERS: dict[str, tuple[Change, Change]] = {
    "shape": (lambda: separable(X[:1]), lambda: pair(X[:1])),
    "strides": (lambda: separable(X.mT.contiguous().mT), lambda: pair(X)),
    "a word": (lambda: separable(padding=1), lambda: pair(X, padding=1)),
    "another weight": (lambda: separable(X, DEPTHWISE.clone()), lambda: pair(X)),
    "a bias": (lambda: separable(X, DEPTHWISE, POINTWISE, torch.ones(3)), lambda: pair(X, bias=torch.ones(3))),
    "dtype": (
        lambda: separable(X.double(), DEPTHWISE.double(), POINTWISE.double()),
        lambda: pair(X.double(), DEPTHWISE.double(), POINTWISE.double()),
    ),
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_call_does_not(change: str, taken: list[Any]) -> None:
    ours, right = OTHERS[change]
    separable()
    assert torch.allclose(ours(), right(), atol=1e-6)
    assert taken == [None, None]
    assert separable().shape == (2, 4, 7)
    assert taken[2] is not None


def test_equal_words_in_another_object_take_it(taken: list[Any]) -> None:
    for _ in range(2):
        separable(stride=tuple(range(1, 2)), padding="".join(["sa", "me"]))
    assert taken[1] is not None


@pytest.mark.parametrize("word", [True, 1.0, (True,), (1.0,)], ids=repr)
def test_a_word_that_is_equal_and_wrong_is_refused(word: Any, taken: list[Any]) -> None:
    separable(stride=1), separable(stride=(1,))
    with pytest.raises(TypeError, match="stride"):
        separable(stride=word)
    assert taken[-1] is None


def test_a_list_may_change(taken: list[Any]) -> None:
    padding = [0]
    assert separable(padding=padding).shape[-1] == 7
    padding[0] = 1
    assert separable(padding=padding).shape[-1] == 9
    assert taken == [None, None]


def test_a_weight_may_change_in_place(taken: list[Any]) -> None:
    weight = torch.nn.Parameter(DEPTHWISE.clone())
    with torch.no_grad():
        separable(X, weight)
        weight.mul_(2)
        assert torch.allclose(separable(X, weight), pair(X, weight), atol=1e-6)
        assert taken[1] is not None
        weight.data = torch.randn(3, 1, 5)
        assert torch.allclose(separable(X, weight), pair(X, weight), atol=1e-6)
        assert taken[2] is None


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


SEEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "profiler": torch.autograd.profiler.profile,
    "dispatch mode": Watch,
    "function mode": Functions,
    "forward derivatives": forward_ad.dual_level,
}


@pytest.mark.parametrize("context", SEEN)
def test_what_pytorch_has_to_see_takes_the_whole_way(context: str, taken: list[Any]) -> None:
    for _ in range(2):
        separable()
    with SEEN[context]():
        y = separable()
        assert y.dtype is (torch.bfloat16 if context == "autocast" else torch.float32)
    assert [found is not None for found in taken[:3]] == [False, True, False]  # a mode for functions calls again


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # PyTorch's own, at the first dual
@pytest.mark.parametrize("transform", ["vmap", "grad", "dual"])
def test_so_do_transforms(transform: str, taken: list[Any]) -> None:
    separable()
    if transform == "vmap":
        y = torch.func.vmap(lambda x: separable(x))(torch.stack([X, X]))
        assert torch.allclose(y[0], pair(X), atol=1e-6)
    elif transform == "grad":
        gradient = torch.func.grad(lambda x: separable(x).sum())(X)
        assert torch.allclose(gradient, torch.func.grad(lambda x: pair(x).sum())(X), atol=1e-5)
    else:
        with forward_ad.dual_level():
            y = forward_ad.unpack_dual(separable(forward_ad.make_dual(X, X)))
        assert torch.allclose(y.tangent, pair(X), atol=1e-6)
    assert taken[1:] == [None]


def test_so_does_a_call_with_a_gradient(taken: list[Any]) -> None:
    weight = torch.nn.Parameter(DEPTHWISE.clone())
    for context in (torch.no_grad(), torch.no_grad(), nullcontext(), torch.inference_mode(), torch.inference_mode()):
        with context:
            y = separable(X, weight)
        assert y.requires_grad is isinstance(context, nullcontext)
    assert [found is not None for found in taken] == [False, True, False, False, True]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_so_does_tracing(taken: list[Any]) -> None:
    separable()
    traced = torch.jit.trace(lambda x: separable(x), (X,), check_trace=False)
    assert taken[1:] == [None]
    assert torch.allclose(traced(X * 2), pair(X * 2), atol=1e-6)


def test_another_number_of_threads_is_another_call(taken: list[Any]) -> None:
    threads = torch.get_num_threads()
    separable()
    try:
        torch.set_num_threads(threads + 1)
        separable()
    finally:
        torch.set_num_threads(threads)
    separable()
    assert [found is not None for found in taken] == [False, False, True]


def test_a_changed_setting_forgets_them(taken: list[Any]) -> None:
    separable()
    ops.forget_plans()
    separable()
    assert taken == [None, None]


def test_no_more_of_them_are_kept_than_are_of_use(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "_MOST_WEIGHTS", 4)
    weights = [DEPTHWISE.clone() for _ in range(10)]
    for weight in weights:
        separable(X, weight)
    for n in range(1, 20):
        separable(torch.randn(n, 3, 9))
    assert 0 < len(shortcuts._SHORT_CUTS) <= 4
    assert max(map(len, shortcuts._SHORT_CUTS.values())) == shortcuts._MOST_OF_WEIGHT
    for n in (19, 1):
        assert separable(torch.randn(n, 3, 9)).shape == (n, 4, 7)
    assert [found is not None for found in taken[-2:]] == [True, False]


def test_no_tensor_is_kept_alive() -> None:
    tensors = [X.clone(), DEPTHWISE.clone(), POINTWISE.clone()]
    for _ in range(2):
        separable(*tensors)
    alive = [weakref.ref(tensor) for tensor in tensors]
    tensors.clear()
    gc.collect()
    assert [tensor() for tensor in alive] == [None] * 3


def test_without_guards_every_call_takes_the_whole_way(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "_Guards", None)
    for _ in range(3):
        assert torch.allclose(separable(), pair(X), atol=1e-6)
    assert taken == [None] * 3
