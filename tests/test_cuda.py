"""The fused kernel on a Hopper GPU: results against float64 under the budget, special values, streams and graphs."""

import pytest
import torch
from budget import check
from cuda_calls import check_all, reference
from cuda_calls import tensors_of as tensors_on
from cuda_cases import (
    A_LAST,
    GATHERED,
    PATCHES,
    PRECISIONS,
    SHAPES,
    SMALL_A,
    SMALL_A_LAST,
    SMALL_B,
    A,
    B,
    Shape,
    activation,
)
from torch import Tensor

import sepconv
from sepconv import dispatch, ops
from sepconv.backends import cuda
from sepconv.backends.cuda import CudaBackend
from sepconv.device import describe
from sepconv.errors import UnsupportedError

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.skipif(not HOPPER, reason="no Hopper GPU"),
    pytest.mark.usefixtures("nan_in_fresh_memory", "cuda_alone"),
]
GPU = torch.device("cuda")
F = torch.nn.functional
INF, NAN = float("inf"), float("nan")


@pytest.fixture
def cuda_alone(monkeypatch: pytest.MonkeyPatch):
    """No other backend stands in: a problem that this one cannot take is an error."""
    monkeypatch.setenv("SEPCONV_BACKEND", "cuda")
    dispatch.forget()
    yield
    monkeypatch.undo()
    dispatch.forget()


def tensors_of(shape: Shape, dtype: torch.dtype, positive: bool = False) -> list[Tensor | None]:
    return tensors_on(GPU, shape, dtype, positive)


def ours(shape: Shape, tensors: list[Tensor | None], precision: str) -> Tensor:
    call = (sepconv.separable_conv1d, sepconv.separable_conv2d)[len(shape.size) - 1]
    uneven = any(before != after for before, after in shape.padding)
    *operands, residual = tensors
    return call(
        *operands, shape.stride or 1, "same" if uneven else tuple(before for before, _ in shape.padding), shape.dilation or 1,
        depthwise_activation=activation(shape.activations[0]), pointwise_activation=activation(shape.activations[1]),
        precision=precision, residual=residual,
    )  # fmt: skip


def can(shape: Shape, dtype: torch.dtype, precision: str) -> bool:
    return not CudaBackend().reasons(shape.problem(dtype, precision), describe(torch.device("cuda", 0)))


@pytest.mark.parametrize("positive", [False, True], ids=["signed", "positive"])
@pytest.mark.parametrize(("dtype", "precision"), [*PRECISIONS, (torch.float32, "tf32")], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_results_keep_the_budget(shape: Shape, dtype: torch.dtype, precision: str, positive: bool) -> None:
    tensors = tensors_of(shape, dtype, positive=positive)
    before = [None if t is None else t.clone() for t in tensors]
    if not can(shape, dtype, precision):
        with pytest.raises(UnsupportedError):
            ours(shape, tensors, precision)
        return
    check_all(shape, tensors, precision, ours(shape, tensors, precision))
    assert all(a is None or torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize("shape", [SMALL_A, SMALL_A_LAST, SMALL_B], ids=str)
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
def test_the_same_bits_in_every_run_and_in_every_batch(shape: Shape, dtype: torch.dtype, precision: str) -> None:
    if not can(shape, dtype, precision):
        pytest.skip("the kernel does not take this problem yet")
    tensors = tensors_of(shape, dtype)
    y = ours(shape, tensors, precision)
    assert all(torch.equal(y, ours(shape, tensors, precision)) for _ in range(100))
    alone = [tensors[0][-1:].clone(), *tensors[1:]]
    assert torch.equal(y[-1:], ours(shape, alone, precision))
    other = [torch.cat([torch.randn_like(tensors[0]), tensors[0]]), *tensors[1:]]
    assert torch.equal(y, ours(shape, other, precision)[len(y) :])


@pytest.mark.parametrize("shape", [A, A_LAST, B], ids=str)
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
def test_the_same_bits_in_300_runs_of_many_tiles(shape: Shape, dtype: torch.dtype, precision: str) -> None:
    """Parts of a ring that were given back too early spoiled one tile of 300,000."""
    tensors = tensors_of(shape, dtype)
    y = ours(shape, tensors, precision)
    assert sum(not torch.equal(y, ours(shape, tensors, precision)) for _ in range(300)) == 0


@pytest.mark.parametrize("rows", [1, 7, 1 << 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [SMALL_A, SMALL_A_LAST, SMALL_B, SHAPES[1], SHAPES[10], SHAPES[21]], ids=str)
def test_input_that_stays_in_l2_gives_the_same(
    shape: Shape, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = "high" if dtype is torch.float32 else "ieee"
    assert can(shape, dtype, precision)
    tensors = tensors_of(shape, dtype)
    right = ours(shape, tensors, precision)
    monkeypatch.setattr(cuda, "_rows_that_stay", lambda *_: rows)
    ops.forget_plans()
    assert torch.equal(ours(shape, tensors, precision), right)
    ops.forget_plans()


@pytest.mark.parametrize("form", ["slice", "expanded", "misaligned", "transposed"])
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
def test_any_strides_of_the_tensors(form: str, dtype: torch.dtype, precision: str) -> None:
    shape = SHAPES[0]
    tensors = tensors_of(shape, dtype)
    x = tensors[0]
    if form == "slice":
        larger = torch.full((4, 70, 40, 208), NAN, dtype=dtype, device=GPU)
        larger[1:3, 3:67, 2:39, 5:205] = x
        tensors[0] = larger[1:3, 3:67, 2:39, 5:205]
    elif form == "expanded":
        tensors[0] = x[:1].expand(shape.batch, -1, -1, -1)
    elif form == "misaligned":
        tensors[0] = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    else:
        tensors[0] = x.transpose(2, 3).contiguous().transpose(2, 3)
        tensors[2] = tensors[2].transpose(0, 1).contiguous().transpose(0, 1)
    check_all(shape, tensors, precision, ours(shape, tensors, precision))


@pytest.mark.parametrize("where", ["x", "pointwise"])
@pytest.mark.parametrize("value", [INF, -INF, NAN, "largest"])
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[9], SHAPES[14], PATCHES, GATHERED], ids=str)
def test_special_values(shape: Shape, dtype: torch.dtype, precision: str, value: float | str, where: str) -> None:
    if not can(shape, dtype, precision):
        pytest.skip("the kernel does not take this problem yet")
    tensors = tensors_of(shape, dtype)
    value = torch.finfo(dtype).max / 8 if value == "largest" else value
    target = tensors[0 if where == "x" else 2]
    target.as_strided((target.numel(),), (1,))[target.numel() // 2 + 3] = value
    y = ours(shape, tensors, precision)
    right = reference(shape, [None if t is None else t.double() for t in tensors])
    rounded = right.to(dtype)
    assert torch.equal(y.isnan(), rounded.isnan())
    assert torch.equal(y[rounded.isinf()], rounded[rounded.isinf()])
    usual = rounded.isfinite() & (right.abs() < 1e3)
    eager = reference(shape, tensors)
    check(y[usual], right[usual], torch.where(eager.isfinite(), eager, 0)[usual], dtype, precision)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[10], SHAPES[14], PATCHES, GATHERED], ids=str)
def test_padding_multiplies_no_weight(
    shape: Shape, dtype: torch.dtype, precision: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the CPU, where tests hold it against sums tap by tap."""
    if not can(shape, dtype, precision):
        pytest.skip("the kernel does not take this problem yet")
    tensors = tensors_of(shape, dtype, positive=True)
    tensors[1].view(shape.channels, -1)[0, 0] = value
    y = ours(shape, tensors, precision)
    monkeypatch.setenv("SEPCONV_BACKEND", "cpu")
    dispatch.forget()
    right = ours(shape, [None if t is None else t.cpu() for t in tensors], "ieee")
    assert torch.equal(y.isnan().cpu(), right.isnan())
    assert torch.equal(y.isinf().cpu(), right.isinf())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_numbers_are_no_zeros(dtype: torch.dtype) -> None:
    shape = SHAPES[0]
    tensors = tensors_of(shape, dtype)
    tensors[0].mul_(1e-30)
    check_all(shape, tensors, "ieee", ours(shape, tensors, "ieee"))


def test_an_empty_batch_gives_an_empty_result() -> None:
    tensors = tensors_of(SMALL_A, torch.float32)
    tensors[0] = tensors[0][:0]
    assert ours(SMALL_A, tensors, "high").shape == (0, 128, 64, 256)


@pytest.mark.parametrize("shape", [SMALL_A, SMALL_A_LAST, SMALL_B], ids=str)
def test_a_graph_and_a_side_stream_give_the_same(shape: Shape) -> None:
    tensors = tensors_of(shape, torch.float16)
    right = ours(shape, tensors, "ieee")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = ours(shape, tensors, "ieee")
    stream.synchronize()
    assert torch.equal(aside, right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ours(shape, tensors, "ieee")
    tensors[0].mul_(2)
    graph.replay()
    assert torch.equal(y, ours(shape, tensors, "ieee"))


@pytest.mark.skipif(not HOPPER or torch.cuda.device_count() < 2, reason="one GPU")
def test_a_second_gpu_gives_the_same() -> None:
    tensors = tensors_of(SMALL_A, torch.float32)
    right = ours(SMALL_A, tensors, "high")
    there = ours(SMALL_A, [None if t is None else t.to("cuda:1") for t in tensors], "high")
    assert there.device == torch.device("cuda", 1)
    assert torch.equal(there.cpu(), right.cpu())
