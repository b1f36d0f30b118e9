"""The library's three functions by rank, called with the tensors and the arguments of a case."""

from collections.abc import Sequence
from typing import Any

import torch
from budget import check
from cases import NAMES, Case, double, pair, with_gradients
from torch import Tensor

import sepconv

FUNCTIONS = {1: sepconv.separable_conv1d, 2: sepconv.separable_conv2d, 3: sepconv.separable_conv3d}
MODULES = {1: sepconv.SeparableConv1d, 2: sepconv.SeparableConv2d, 3: sepconv.SeparableConv3d}


def separable(tensors: Sequence[Tensor | None], case: Case, **changed: Any) -> Tensor:
    """The library's result for one case."""
    *operands, residual = tensors
    return FUNCTIONS[case.rank](*operands, residual=residual, **{**case.arguments, **changed})


def check_case(tensors: Sequence[Tensor | None], case: Case, grad: Tensor, bound: str = "ieee", **changed: Any) -> None:
    """Hold the result and every gradient of one case to the budget."""
    dtype = grad.dtype
    y, grads = with_gradients(lambda t: separable(t, case, **changed), tensors, grad)
    right, right_grads = with_gradients(lambda t: pair(t, case), double(tensors), grad)
    eager, eager_grads = with_gradients(lambda t: pair(t, case), tensors, grad)
    check(y, right, eager, dtype, bound)
    for name, right_grad in right_grads.items():
        _check_gradient(name, grads[name], right_grad, eager_grads[name], bound)


def _check_gradient(name: str, result: Tensor, right: Tensor, eager: Tensor, bound: str) -> None:
    try:
        check(result, right, eager, eager.dtype, bound)
    except AssertionError as error:
        raise AssertionError(f"gradient of `{name}`: {error}") from None


def named(tensors: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """The tensors that are there, by the names of the arguments."""
    return {name: t for name, t in zip(NAMES, tensors, strict=False) if t is not None}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in every bit, NaN included."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    return a.dtype is b.dtype and torch.equal(a.view(bits), b.view(bits))
