"""The kernel for Hopper without a GPU: a CPU runs it, with its barriers, copies and matrix products (emulator.py)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from calls import same_bits
from cuda_calls import check_all, reference, tensors_of
from cuda_cases import GATHERED, PATCHES, PRECISIONS, SHAPES, Shape
from emulator import MULTIPROCESSORS, Emulator, in_place_of_a_gpu, needs_compiler
from torch import Tensor

from sepconv.backends import cuda
from sepconv.backends.cuda import CudaBackend
from sepconv.device import Device
from sepconv.problem import CHANNELS_LAST, Operands
from sepconv.tuning import hopper, hopper_candidates, patches
from sepconv.tuning.hopper import CudaConfig

pytestmark = needs_compiler
CPU = torch.device("cpu")
HOPPER = Device("cuda", "a GPU", 0, (9, 0), MULTIPROCESSORS, 40 << 30)
UNITS = 40  # so that one image of some problems is spread, and two are not
LONGEST = 8  # rows of a two-dimensional map: more of them only take longer
SMALL = [
    shape if len(shape.size) == 1 else replace(shape, size=(min(shape.size[0], LONGEST), shape.size[1]))
    for shape in SHAPES
]
FEW = [
    SMALL[0],
    SMALL[9],
    SMALL[18],
    PATCHES,
    GATHERED,
]  # rows that are kept, weights that stream, channels last; patches
INF, NAN = float("inf"), float("nan")

Run = Callable[[Shape, list[Tensor | None], str], Tensor]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def run(emulator: Emulator, nan_in_fresh_memory: None) -> Iterator[Run]:
    def compute(shape: Shape, tensors: list[Tensor | None], precision: str) -> Tensor:
        problem = shape.problem(tensors[0].dtype, precision)
        reasons = CudaBackend().reasons(problem, HOPPER)
        if reasons:
            pytest.skip("; ".join(reasons))  # which problems have one is held by test_hopper.py and test_nvrtc.py
        config = hopper_candidates.configuration(problem, UNITS)
        assert config is not None
        return cuda._kernel(problem, config, 0).compute(Operands(*tensors))

    with in_place_of_a_gpu(emulator):
        yield compute


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_the_results_keep_the_budget(run: Run, shape: Shape, dtype: torch.dtype, precision: str) -> None:
    tensors = tensors_of(CPU, shape, dtype)
    before = [None if t is None else t.clone() for t in tensors]
    check_all(shape, tensors, precision, run(shape, tensors, precision))
    assert all(a is None or torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", FEW, ids=str)
def test_the_same_bits_in_every_batch(run: Run, shape: Shape, dtype: torch.dtype, precision: str) -> None:
    tensors = tensors_of(CPU, shape, dtype)
    y = run(shape, tensors, precision)
    last = [tensors[0][-1:].clone(memory_format=torch.preserve_format), *tensors[1:]]
    assert same_bits(run(replace(shape, batch=1), last, precision), y[-1:])


@pytest.mark.parametrize("where", [0, 2], ids=["x", "pointwise"])
@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", FEW, ids=str)
def test_special_values(run: Run, shape: Shape, dtype: torch.dtype, precision: str, value: float, where: int) -> None:
    tensors = tensors_of(CPU, shape, dtype)
    target = tensors[where]
    target.as_strided((target.numel(),), (1,))[target.numel() // 2 + 3] = value
    y = run(shape, tensors, precision)
    right = reference(shape, [None if t is None else t.double() for t in tensors]).to(dtype)
    assert torch.equal(y.isnan(), right.isnan())
    assert torch.equal(y[right.isinf()], right[right.isinf()])


@pytest.mark.parametrize("form", ["slice", "misaligned"])
@pytest.mark.parametrize("shape", FEW, ids=str)
def test_any_strides_of_x(run: Run, shape: Shape, form: str) -> None:
    tensors = tensors_of(CPU, shape, torch.float32)
    x = tensors[0]
    if form == "slice":
        larger = torch.full((x.shape[0], x.shape[1] + 3, *x.shape[2:]), NAN)
        larger[:, 2:-1] = x
        tensors[0] = larger[:, 2:-1]
    else:
        tensors[0] = torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape)
    check_all(shape, tensors, "high", run(shape, tensors, "high"))


def kinds_of(shape: Shape, dtype: torch.dtype, precision: str) -> list[CudaConfig]:
    """One legal configuration of each kind that the problem can have."""
    problem, found = shape.problem(dtype, precision), {}
    for config in hopper_candidates.candidates(problem, UNITS):
        kind = (
            config.cluster,
            config.outputs,
            config.rolls,
            config.weight_stages > 0,
            config.beside,
            config.gathers,
            config.tile,
            patches.flows(config.patch, config.tile),
        )
        if hopper.legal(problem, config):
            found.setdefault(kind, config)
    return list(found.values())


@pytest.mark.parametrize(
    ("shape", "dtype", "precision"),
    [
        (Shape(1, 64, 384, (72,), (9,), ((4, 4),)), torch.float16, "ieee"),
        (Shape(2, 40, 130, (9, 14), (3, 3), ((1, 1), (1, 1))), torch.float32, "high"),
        (Shape(2, 40, 130, (14, 9), (3, 3), ((1, 1), (1, 1))), torch.float32, "high"),
        (
            replace(Shape(2, 24, 72, (19, 37), (5, 3), ((2, 2), (1, 1)), stride=(2, 1)), residual=True),
            torch.float32,
            "high",
        ),
        (Shape(2, 136, 136, (9, 9), (3, 3), ((1, 1), (1, 1)), layout=CHANNELS_LAST), torch.float16, "ieee"),
        # A cluster of three has two chunks of 64 channels that do not exist, in stages that nobody has written to.
        (Shape(1, 256, 136, (7, 7), (3, 3), ((1, 1), (1, 1)), layout=CHANNELS_LAST), torch.float16, "ieee"),
    ],
    ids=str,
)
def test_the_same_bits_with_any_configuration(
    emulator: Emulator, nan_in_fresh_memory: None, shape: Shape, dtype: torch.dtype, precision: str
) -> None:
    """Since a configuration may hang on the batch, an image would else have other bits in another batch."""
    problem, tensors = shape.problem(dtype, precision), tensors_of(CPU, shape, dtype)
    configs = kinds_of(shape, dtype, precision)
    with in_place_of_a_gpu(emulator):
        results = [cuda._kernel(problem, config, 0).compute(Operands(*tensors)) for config in configs]
    check_all(shape, tensors, precision, results[0])
    assert len(configs) > 3
    assert [config for config, y in zip(configs, results, strict=True) if not same_bits(y, results[0])] == []
