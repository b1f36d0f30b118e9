"""Short cuts: a call that was made before, on tensors of the same kind, goes straight to its loaded kernel.

Behind a kernel, or another program's work, the caches are cold, and every step on the way to the next kernel counts: a GPU
waited 20 to 30 us for calls that were looked up by all that they hang on (an H200, 2026-11-30). A short cut is found by its
depthwise weight, and what it hangs on is checked by the guard that PyTorch's compiler puts before its own code: type, dispatch
keys as modes and contexts leave them, dtype, device, shape, strides and `requires_grad` of all tensors, in 0.2 us.
"""

import os
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sepconv.device import float32_switch
from sepconv.problem import Operands

_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)  # without them every call takes the whole way

_is_tracing, _modes_of_functions = torch._C._is_tracing, torch._C._len_torch_function_stack
_is_profiling = torch._C._autograd._profiler_enabled

Words = tuple[Any, ...]
Direct = Callable[[Operands], Tensor | None]
_LASTING = frozenset({int, float, bool, str, type(None), tuple, torch.Size})
_MOST_WEIGHTS, _MOST_OF_WEIGHT = 4096, 8


class ShortCut:
    """The way of one call: `direct` gives y, or None for operands that have to take the whole way."""

    __slots__ = ("_guard", "_kinds", "_setting", "_trains", "_value", "_words", "direct")

    def __init__(self, operands: Operands, words: Words, direct: Direct) -> None:
        self.direct = direct
        self._words, self._kinds = words, kinds_of(words)
        self._guard = _Guards(*_present(operands), dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._trains = any([t.requires_grad for t in _present(operands)])
        self._setting = _setting_of(operands.x, words)
        self._value = self._setting and self._setting()

    def fits(self, tensors: list[Tensor], words: Words) -> bool:
        same = all(map(is_, words, self._words)) or (kinds_of(words) == self._kinds and words == self._words)
        return (
            same
            and self._guard.check(*tensors)
            and not (self._trains and torch.is_grad_enabled())
            and (self._setting is None or self._setting() == self._value)
        )


def find(operands: Operands, words: Words) -> ShortCut | None:
    """The short cut of a call in the user's words; None where there is none, or where a layer of PyTorch has to see the call."""
    known = _SHORT_CUTS.get(_key(operands))
    if known is None:
        return None
    if _is_tracing() or _modes_of_functions() or _is_profiling() or forward_ad._current_level >= 0:
        return None
    tensors = _present(operands)
    for short_cut in known:
        if short_cut.fits(tensors, words):
            return short_cut
    return None


def keep(operands: Operands, words: Words, direct: Direct) -> None:
    """Have `find` find this way for calls like this one, which no layer of PyTorch had to see."""
    if _Guards is None or not are_lasting(kinds_of(words)):
        return
    key = _key(operands)
    if len(_SHORT_CUTS) >= _MOST_WEIGHTS:
        _SHORT_CUTS.clear()
    others = _SHORT_CUTS.get(key, ())
    _SHORT_CUTS[key] = (ShortCut(operands, words, direct), *others[: _MOST_OF_WEIGHT - 1])


def forget() -> None:
    """Forget all short cuts."""
    _SHORT_CUTS.clear()


def kinds_of(words: Words) -> tuple[type, ...]:
    """The types of all words and of what is in them: 1, 1.0 and True are equal, but not the same word."""
    kinds = tuple(map(type, words))
    if tuple not in kinds:
        return kinds
    return kinds + tuple([kind for word in words if type(word) is tuple for kind in kinds_of(word)])


def are_lasting(kinds: tuple[type, ...]) -> bool:
    """Whether words of these kinds stay what they are: lists, arrays and tensors can change under the same name."""
    return _LASTING.issuperset(kinds)


def _key(operands: Operands) -> tuple[int, bool, bool, bool]:
    """A weight that is gone may have left its number to another one; then the guard tells them apart where it matters."""
    _, weight, _, depthwise_bias, pointwise_bias, residual = operands
    return id(weight), depthwise_bias is None, pointwise_bias is None, residual is None


def _present(operands: Operands) -> list[Tensor]:
    return [t for t in operands if t is not None]


def _setting_of(x: Tensor, words: Words) -> Callable[[], Any] | None:
    """What else a call hangs on."""
    if x.is_cpu:
        return torch.get_num_threads
    return float32_switch if x.dtype is torch.float32 and words[-1] is None else None


_SHORT_CUTS: dict[Any, tuple[ShortCut, ...]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHORT_CUTS.clear)  # a short cut may know threads that the child does not have
