"""The check that the other tests rest on can fail, in every way that it has."""

import math

import pytest
import torch
from budget import check
from cases import ALL, FORMS, laid_out, tensors_of
from torch import Tensor

RIGHT = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
EAGER = RIGHT.float()


def _with(t: Tensor, value: float) -> Tensor:
    t = t.clone()
    t[3] = value
    return t


def test_right_results_pass() -> None:
    check(EAGER, RIGHT, EAGER, torch.float32)
    check(EAGER * 1.000001, RIGHT, EAGER, torch.float32, "high")
    check(EAGER * 1.0001, RIGHT, EAGER, torch.float32, "tf32")
    check(EAGER * 1.0001, RIGHT, EAGER * 1.0001, torch.float32)
    for value in (math.nan, math.inf, -math.inf):
        check(_with(EAGER, value), _with(RIGHT, value), _with(EAGER, value), torch.float32)
    large = RIGHT * 1e5  # some of it overflows in float16
    check(large.half(), large, large.half(), torch.float16)
    check(EAGER[:0], RIGHT[:0], EAGER[:0], torch.float32)


@pytest.mark.parametrize(
    ("result", "right", "eager", "precision", "words"),
    [
        (EAGER * 1.0001, RIGHT, EAGER, "ieee", "norm"),
        (EAGER * 1.0001, RIGHT, EAGER, "high", "norm"),
        (EAGER * 1.01, RIGHT, EAGER, "tf32", "norm"),
        (_with(EAGER, EAGER[3].item() + 8e-3), RIGHT, EAGER, "tf32", "maximum"),
        (EAGER * 1.0001, RIGHT, _with(EAGER, math.nan), "ieee", "norm"),
        (_with(EAGER, math.nan), RIGHT, EAGER, "ieee", "NaN"),
        (EAGER, _with(RIGHT, math.nan), EAGER, "ieee", "NaN"),
        (_with(EAGER, math.inf), RIGHT, EAGER, "ieee", "infinities"),
        (_with(EAGER, -math.inf), _with(RIGHT, math.inf), EAGER, "ieee", "another sign"),
        (EAGER.double(), RIGHT, EAGER, "ieee", "dtype"),
        (EAGER[:-1], RIGHT, EAGER, "ieee", "shape"),
        (torch.full((3,), 1e-30), torch.zeros(3).double(), torch.zeros(3), "ieee", "norm"),
    ],
)
def test_wrong_results_fail(result: Tensor, right: Tensor, eager: Tensor, precision: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(result, right, eager, torch.float32, precision)


def test_fresh_memory_is_nan(nan_in_fresh_memory: None, device: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert torch.empty(5, dtype=dtype, device=device).isnan().all()
        assert torch.empty_like(torch.ones(5, dtype=dtype, device=device)).isnan().all()
        assert torch.ones(2, dtype=dtype, device=device).new_empty_strided((5,), (1,)).isnan().all()


def test_names_of_problems_are_unique() -> None:
    assert len({case.id for case in ALL}) == len(ALL)


@pytest.mark.parametrize("form", FORMS)
def test_layouts_keep_the_values(form: str) -> None:
    for case in (c for c in ALL if c.residual and "dp" in c.bias):
        plain, other = tensors_of(case), tensors_of(case, form=form)
        for a, b in zip(plain, other, strict=True):
            assert a.shape == b.shape
            if form != "expanded":
                assert torch.equal(a, b)
    x = torch.randn(2, 3, 4, 5)
    strides = {f: laid_out(x, f).stride() for f in FORMS}
    assert len({*strides.values()}) == len(FORMS) - 1  # a misaligned start alone leaves the strides as they are
    assert laid_out(x, "misaligned").storage_offset() == 1
