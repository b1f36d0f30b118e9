"""The one error budget that every result and every gradient is held to; there is no other tolerance in the tests.

    error(ours) <= 2 * error(PyTorch's own convolutions, same dtype, TF32 off) + 2 eps(dtype)

Both errors are taken against float64: norm(e) / norm(r) and max|e| / max|r|. For float32 on CUDA the precisions "high"
and "tf32" have absolute bounds in place of that. NaN and infinities must sit exactly where the right answer, rounded to
the dtype, has them.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Errors(NamedTuple):
    """Two relative errors: of the norm and of the largest element."""

    norm: float
    maximum: float


REDUCED = {"high": Errors(1e-5, 2e-5), "tf32": Errors(1e-3, 2e-3)}


def errors(result: Tensor, right: Tensor) -> Errors:
    """How far `result` is from `right`, over the elements where `right` is finite in the result's dtype."""
    finite = right.to(result.dtype).isfinite()
    r = right.double()[finite]
    e = result.double()[finite] - r
    if not r.numel():
        return Errors(0.0, 0.0)
    return Errors(_ratio(e.norm(), r.norm()), _ratio(e.abs().max(), r.abs().max()))


def budget(eager: Errors, dtype: torch.dtype, precision: str = "ieee") -> Errors:
    """The errors that are allowed where eager PyTorch makes the errors `eager`."""
    if dtype is torch.float32 and precision in REDUCED:
        return REDUCED[precision]
    eps = torch.finfo(dtype).eps
    return Errors(2 * eager.norm + 2 * eps, 2 * eager.maximum + 2 * eps)


def check(result: Tensor, right: Tensor, eager: Tensor, dtype: torch.dtype, precision: str = "ieee") -> None:
    """Fail at another shape or dtype than asked for, misplaced NaN or infinities, or too large an error."""
    assert result.shape == right.shape, f"shape {tuple(result.shape)}, right is {tuple(right.shape)}"
    assert result.dtype is dtype, f"dtype {result.dtype}, right is {dtype}"
    rounded = right.to(dtype)
    assert torch.equal(result.isnan(), rounded.isnan()), "NaN in other places than in the right answer"
    infinite = rounded.isinf()
    assert torch.equal(result.isinf(), infinite), "infinities in other places than in the right answer"
    assert torch.equal(result[infinite], rounded[infinite]), "infinities of another sign than in the right answer"
    sound = torch.where(eager.isfinite(), eager, rounded)  # where PyTorch itself fails, it allows us nothing
    found, allowed = errors(result, right), budget(errors(sound, right), dtype, precision)
    assert found.norm <= allowed.norm, f"error in norm {found.norm:.3g}, allowed {allowed.norm:.3g}"
    assert found.maximum <= allowed.maximum, f"error in maximum {found.maximum:.3g}, allowed {allowed.maximum:.3g}"


def _ratio(error: Tensor, size: Tensor) -> float:
    if not error.item():
        return 0.0
    return (error / size).item() if size.item() else float("inf")
