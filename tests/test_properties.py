"""Whatever shapes, arguments, dtypes and layouts come: the result and every gradient keep the budget."""

from typing import Any

import pytest
import torch
from calls import check_case
from cases import ACTIVATION_WORDS, FLOATS, FORMS, Case, grad_of, laid_out, tensors_of
from hypothesis import given
from hypothesis import strategies as st

AXES = {1: 24, 2: 10, 3: 6}  # the longest axis that is drawn for each rank
pytestmark = pytest.mark.usefixtures("nan_in_fresh_memory")


@st.composite
def cases(draw: Any, rank: int) -> Case:
    """A right call of this rank."""

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(rank))

    K, dilation = each(1, 4 if rank < 3 else 3), each(1, 3)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, K, strict=True)]
    if draw(st.integers(0, 4)) == 0:
        padding: Any = draw(st.sampled_from(["same", "valid"]))
        stride: Any = 1 if padding == "same" else each(1, 4)
        pads = (0,) * rank if padding == "valid" else tuple(r - 1 for r in reach)
    else:
        padding, stride = each(0, 4), each(1, 4)
        pads = tuple(2 * p for p in padding)
    L = tuple(draw(st.integers(max(1, r - p), max(AXES[rank], r))) for r, p in zip(reach, pads, strict=True))
    words = st.one_of(st.none(), st.sampled_from(ACTIVATION_WORDS))
    return Case(
        "drawn",
        draw(st.integers(0, 3)),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
        L,
        K,
        m=draw(st.sampled_from([1, 1, 2, 3])),
        stride=stride,
        padding=padding,
        dilation=dilation,
        bias=draw(st.sampled_from(["", "d", "p", "dp"])),
        activations=(draw(words), draw(words)),
        residual=draw(st.booleans()),
        positive=draw(st.booleans()),
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_any_right_call(rank: int, device: str) -> None:
    @given(
        case=cases(rank),
        dtype=st.sampled_from(FLOATS),
        forms=st.lists(st.sampled_from(FORMS), min_size=7, max_size=7),
        seed=st.integers(0, 99),
    )
    def holds(case: Case, dtype: torch.dtype, forms: list[str], seed: int) -> None:
        tensors = tensors_of(case, dtype, device, seed=seed)
        tensors = [None if t is None else laid_out(t, form) for t, form in zip(tensors, forms, strict=False)]
        check_case(tensors, case, laid_out(grad_of(case, dtype, device, seed=seed + 1), forms[6]))

    holds()
