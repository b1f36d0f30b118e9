"""The error budget: what an error is, and how much of it is allowed."""

import math

import pytest
import torch

from sepconv.bench.budget import Errors, budget, errors, within


def test_errors_are_relative_in_norm_and_in_maximum() -> None:
    found = errors(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert found == pytest.approx((0.1, 0.125))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_where_the_right_one_is_has_no_bound(bad: float) -> None:
    assert errors(torch.tensor([1.0, bad]), torch.ones(2)) == (math.inf, math.inf)
    assert errors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, bad])) == (math.inf, math.inf)
    assert errors(torch.tensor([1.0, bad]), torch.tensor([1.0, bad])) == (0, 0)


def test_errors_of_wrong_shapes_zeros_and_nothing() -> None:
    assert errors(torch.ones(2), torch.ones(2, 1)) == (math.inf, math.inf)
    assert errors(torch.zeros(2), torch.zeros(2)) == (0, 0)
    assert errors(torch.full((2,), 1e-30), torch.zeros(2)) == (math.inf, math.inf)
    assert errors(torch.ones(0, 3), torch.ones(0, 3)) == (0, 0)


def test_the_budget_is_twice_the_peer_and_two_ulps_or_fixed_by_the_precision() -> None:
    eps = torch.finfo(torch.bfloat16).eps
    assert budget(torch.bfloat16, "high", (0.25, 0.5)) == (0.5 + 2 * eps, 1 + 2 * eps)
    assert budget(torch.float32, "high", (1.0, 1.0)) == (1e-5, 2e-5)
    assert budget(torch.float32, "tf32", (1.0, 1.0)) == (1e-3, 2e-3)
    assert within((1e-5, 1e-5), Errors(1e-5, 2e-5))
    assert not within((1e-5, 3e-5), Errors(1e-5, 2e-5))
    assert not within((math.nan, 0.0), Errors(1.0, 1.0))
