"""The one error budget of every result and every gradient, for the benchmark and for the tests.

error(ours) <= 2 * error(eager PyTorch, same dtype, TF32 off) + 2 eps(dtype), against the reference in float64, for both
norm(e) / norm(r) and max|e| / max|r|. The precisions 'high' and 'tf32' of float32 have fixed budgets instead.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Errors(NamedTuple):
    """Two relative errors: norm(e) / norm(r) and max|e| / max|r|."""

    norm: float
    maximum: float


FIXED = {"high": Errors(1e-5, 2e-5), "tf32": Errors(1e-3, 2e-3)}
_INFINITE = Errors(math.inf, math.inf)


def errors(result: Tensor, right: Tensor) -> Errors:
    """The two relative errors of a result against the right values, computed in float64.

    Infinite for a wrong shape, and for an infinity or a NaN where the right values have another; where they have the
    same, the place is left out. Against zeros, any error at all is infinite.
    """
    if result.shape != right.shape:
        return _INFINITE
    result, right = result.detach().double(), right.detach().double()
    finite = right.isfinite()
    if not finite.all():
        same = torch.where(finite, result.isfinite(), (result == right) | (result.isnan() & right.isnan()))
        if not same.all():
            return _INFINITE
        result, right = result[finite], right[finite]
    if right.numel() == 0:
        return Errors(0.0, 0.0)
    e = result - right
    return Errors(
        _relative(e.norm().item(), right.norm().item()), _relative(e.abs().max().item(), right.abs().max().item())
    )


def budget(problem_dtype: torch.dtype, precision: str, peer_errors: tuple[float, float]) -> Errors:
    """The largest errors that are allowed, given those of eager PyTorch in the same dtype with TF32 off.

    `precision` speaks for float32 only.
    """
    if problem_dtype is torch.float32 and precision in FIXED:
        return FIXED[precision]
    eps = torch.finfo(problem_dtype).eps
    return Errors(*(2 * error + 2 * eps for error in peer_errors))


def within(found: tuple[float, float], allowed: tuple[float, float]) -> bool:
    """Whether both errors keep their budget."""
    return all(error <= most for error, most in zip(found, allowed, strict=True))


def _relative(error: float, size: float) -> float:
    if math.isnan(error):
        return math.inf
    if error == 0:
        return 0.0
    return error / size if size else math.inf
