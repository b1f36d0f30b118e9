"""`check`: hold one result or gradient to the library's error budget; there is no other tolerance in the tests."""

import torch
from torch import Tensor

from sepconv.bench.budget import budget, errors, within


def check(result: Tensor, right: Tensor, eager: Tensor, dtype: torch.dtype, precision: str = "ieee") -> None:
    """Fail at another shape or dtype than asked for, misplaced NaN or infinities, or too large an error.

    `right` is in float64 and `eager` is what PyTorch's own convolutions give in this dtype. NaN and infinities have to
    be exactly where `right`, rounded to the dtype, has them; where `eager` alone is not finite, it allows no error.
    """
    assert result.shape == right.shape, f"shape {tuple(result.shape)}, right is {tuple(right.shape)}"
    assert result.dtype is dtype, f"dtype {result.dtype}, right is {dtype}"
    rounded = right.to(dtype)
    assert torch.equal(result.isnan(), rounded.isnan()), "NaN in other places than in the right answer"
    infinite = rounded.isinf()
    assert torch.equal(result.isinf(), infinite), "infinities in other places than in the right answer"
    assert torch.equal(result[infinite], rounded[infinite]), "infinities of another sign than in the right answer"
    wanted = torch.where(rounded.isfinite(), right.double(), rounded.double())
    sound = torch.where(eager.isfinite() & rounded.isfinite(), eager, rounded)
    found, allowed = errors(result, wanted), budget(dtype, precision, errors(sound, wanted))
    assert within(found, allowed), f"{found}, allowed {allowed}"
