"""The portable kernel for GPUs without a GPU: run by a CPU, its threads as fibers, and compiled for what it is made for."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from budget import check
from calls import same_bits, separable
from cases import ACTIVATION_WORDS, BY_ID, Case, double, pair, tensors_of
from emulator import Emulator, in_place_of_a_gpu, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import DTYPES, bits_of, words
from torch import Tensor

from sepconv import ops
from sepconv.arguments import canonical
from sepconv.backends import portable
from sepconv.backends.portable import PortableBackend
from sepconv.device import Device
from sepconv.jit import nvrtc
from sepconv.problem import Operands, Problem
from sepconv.tuning.portable import PortableConfig, configuration, shared_bytes

SMALL_GPU = Device("cuda", "a GPU", 0, (8, 0), 4, 40 << 30)
FORMS = ("plain", "channels_last", "gaps", "expanded")
INF, NAN = float("inf"), float("nan")
HAS_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
TYPES = [(torch.float32, "high"), (torch.float32, "ieee"), (torch.float16, "ieee"), (torch.bfloat16, "ieee")]
CASES = [
    *(
        BY_ID[name]
        for name in ("1d-prime", "1d-same-even-dilated", "1d-residual-activated", "1d-one-token", "2d-prime")
    ),
    *(BY_ID[name] for name in ("2d-mixed", "2d-multiplier-3", "2d-stride-over-kernel", "2d-residual-activated")),
    *(BY_ID[name] for name in ("2d-kernel-over-map", "2d-map-under-padding", "2d-tall-kernel")),
    Case("blocks", 2, 40, 300, (7, 7), (3, 3), padding=1, bias="dp"),
]
BLOCKS = CASES[-1]
# Of BLOCKS, by the layout of y: with channels last a run may be of one pixel.
CONFIGS = [
    PortableConfig(tile, columns, run, block, stages, resident, 1, splits)
    for (tile, columns, run), block, stages, resident, splits in [
        ((128, 7, 8), 128, 1, True, 1), ((128, 7, 4), 32, 2, False, 2), ((64, 4, 2), 128, 3, True, 2),
        ((64, 7, 4), 64, 0, True, 1), ((64, 7, 8), 32, 3, False, 1), ((32, 4, 4), 64, 2, True, 3),
        ((32, 7, 2), 128, 1, False, 2), ((16, 7, 8), 128, 2, True, 1), ((16, 4, 4), 128, 0, False, 2),
        ((16, 5, 2), 128, 3, False, 1),
    ]
]  # fmt: skip
by_dtype: dict[str, Any] = {"ids": lambda value: str(value).removeprefix("torch.")}
needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason="cuda.core is not installed")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


Run = Callable[..., Tensor]


@pytest.fixture
def run(emulator: Emulator, nan_in_fresh_memory: None) -> Iterator[Run]:
    """run(tensors, case, precision, config): the result by the backend on a GPU that is none."""
    with in_place_of_a_gpu(emulator):
        yield run_emulated


def problem_of(tensors: Sequence[Tensor | None], case: Case, precision: str | None = None) -> Problem:
    options = canonical(case.rank, Operands(*tensors), words(case))
    return ops.problem_of(Operands(*tensors), options._replace(precision=precision), kind="cuda")


def run_emulated(
    tensors: Sequence[Tensor | None], case: Case, precision: str | None = None, config: PortableConfig | None = None
) -> Tensor:
    problem, options = problem_of(tensors, case, precision), canonical(case.rank, Operands(*tensors), words(case))
    backend = PortableBackend()
    config = config or backend.configure(problem, SMALL_GPU)[0]
    return backend.forward(problem, config, Operands(*tensors), options, SMALL_GPU)


def check_run(run: Run, tensors: Sequence[Tensor | None], case: Case, precision: str = "ieee", **how: Any) -> None:
    before = bits_of(tensors)
    y = run(tensors, case, precision, **how)
    assert y.stride() == problem_of(tensors, case).output_strides
    assert bits_of(tensors) == before, "an input was changed"
    check(y, pair(double(tensors), case), pair(tensors, case), tensors[0].dtype, precision)


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_results_keep_the_budget(run: Run, case: Case, dtype: torch.dtype, form: str) -> None:
    tensors = tensors_of(case, dtype, form=form)
    check_run(run, tensors, case)
    if dtype is torch.float32:
        check_run(run, tensors, case, "high")


@needs_compiler
@pytest.mark.parametrize("form", ["plain", "channels_last"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], **by_dtype)
def test_every_configuration_gives_the_same(run: Run, dtype: torch.dtype, config: PortableConfig, form: str) -> None:
    tensors = tensors_of(BLOCKS, dtype, form=form)
    check_run(run, tensors, BLOCKS, config=config)
    assert same_bits(run(tensors, BLOCKS, config=config), run(tensors, BLOCKS))


@needs_compiler
@pytest.mark.parametrize("word", ACTIVATION_WORDS, ids=str)
def test_every_activation(run: Run, word: Any) -> None:
    for both in ((word, None), (None, word)):
        case = Case("activated", 1, 3, 5, (4, 6), (3, 3), padding=1, bias="dp", activations=both)
        for dtype in (torch.float32, torch.float16):
            check_run(run, tensors_of(case, dtype), case)


@needs_compiler
@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("where", range(6))
def test_a_special_value_in_any_operand(run: Run, dtype: torch.dtype, where: int, value: float) -> None:
    case = replace(BY_ID["2d-residual-activated"], bias="dp", padding=0, L=(6, 9))
    tensors = tensors_of(case, dtype)
    tensors[where].view(-1)[-1] = value
    check_run(run, tensors, case)


@needs_compiler
def test_an_image_has_the_same_bits_in_every_batch(run: Run) -> None:
    tensors = tensors_of(BLOCKS)
    y = run(tensors, BLOCKS)
    last = [tensors[0][-1:], *tensors[1:]]
    assert same_bits(run(last, replace(BLOCKS, N=1)), y[-1:])


@needs_compiler
@pytest.mark.parametrize(("form", "first", "between", "is_dense"), [
    ("plain", 0, 0, True), ("plain", 1, 0, True), ("plain", 0, 3, False),
    ("channels_last", 0, 0, True), ("channels_last", 8, 0, True), ("channels_last", 1, 0, False), ("channels_last", 0, 8, False),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], **by_dtype)
def test_an_x_that_is_dense_and_not(
    run: Run, emulator: Emulator, dtype: torch.dtype, form: str, first: int, between: int, is_dense: bool
) -> None:
    """x begins so many elements into a larger tensor, and between two of its pixels, or rows, there are so many others."""
    tensors = tensors_of(BLOCKS, dtype, form=form)
    last = form == "channels_last"
    x = tensors[0].permute(0, 2, 3, 1) if last else tensors[0]
    *sizes, n = x.shape
    larger = torch.full((x.numel() // n * (n + between) + first,), NAN, dtype=dtype)
    inside = larger[first:].view(*sizes, n + between)[..., :n].copy_(x)
    tensors[0] = inside.permute(0, 3, 1, 2) if last else inside
    for columns, run_of in ((7, 4), (4, 2)):
        check_run(run, tensors, BLOCKS, config=PortableConfig(64, columns, run_of, 128, 2, True, 1, 1))
        assert bool(portable.Call.from_buffer_copy(emulator.parameter).x_in_pieces) is is_dense


@needs_compiler
@pytest.mark.parametrize("case", [BLOCKS, BY_ID["2d-residual-activated"]], ids=str)
def test_a_direct_call_is_for_operands_that_lie_as_the_kernel_reads_them(run: Run, case: Case) -> None:
    tensors = tensors_of(case)
    problem, options = problem_of(tensors, case, "ieee"), canonical(case.rank, Operands(*tensors), words(case))
    backend = PortableBackend()
    how = (problem, backend.configure(problem, SMALL_GPU)[0], Operands(*tensors), options, SMALL_GPU)
    direct = backend.direct_call(*how)
    assert direct is not None
    for factor in (1, -3):
        tensors[0] = tensors[0] * factor
        y = direct(Operands(*tensors))
        assert y is not None
        assert same_bits(y, run(tensors, case, "ieee"))
    tensors[1] = tensors[1].repeat_interleave(2, dim=2)[:, :, ::2]
    assert backend.direct_call(*how[:2], Operands(*tensors), *how[3:]) is None


@needs_compiler
def test_weights_that_lie_off_whole_vectors(run: Run) -> None:
    for dtype in (torch.float32, torch.float16):
        tensors = tensors_of(BLOCKS, dtype)
        tensors[2] = torch.cat([tensors[2].flatten()[:1], tensors[2].flatten()])[1:].view_as(tensors[2])
        check_run(run, tensors, BLOCKS)


@needs_compiler
@pytest.mark.parametrize("case", [
    replace(BLOCKS, K=(7, 9), padding=4), replace(BLOCKS, K=(1, 70), L=(3, 90)), replace(BLOCKS, K=(1, 17), padding=8),
    replace(BLOCKS, K=(3, 3), dilation=12, padding=12, L=(5, 30)), replace(BLOCKS, K=(2, 3), stride=9, L=(19, 40)),
], ids=str)  # fmt: skip
def test_windows_of_many_taps(run: Run, case: Case) -> None:
    for dtype in (torch.float32, torch.float16):
        check_run(run, tensors_of(case, dtype), case)


def numbers(*values: int) -> st.SearchStrategy[int]:
    return st.sampled_from(values)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(numbers(1, 2))
    kernel, stride, dilation, padding, size = (
        tuple(draw(strategy) for _ in range(rank))
        for strategy in (numbers(1, 2, 3, 5), numbers(1, 2, 3), numbers(1, 2), numbers(0, 1, 3), numbers(1, 3, 7, 14))
    )
    reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    return Case(
        "drawn", draw(numbers(0, 1, 3)), draw(numbers(1, 2, 5, 31, 33)), draw(numbers(1, 7, 129)),
        tuple(max(pair) for pair in zip(size, reach, strict=True)), kernel, draw(numbers(1, 2, 3)), stride, padding, dilation,
        draw(st.sampled_from(["", "d", "p", "dp"])), (None, draw(st.sampled_from([None, "relu"]))), draw(st.booleans()),
    )  # fmt: skip


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_arguments(emulator: Emulator, data: st.DataObject) -> None:
    case, dtype, form = data.draw(cases()), data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(FORMS))
    with in_place_of_a_gpu(emulator):
        check_run(run_emulated, tensors_of(case, dtype, form=form), case)


# --- on the GPUs themselves


@pytest.mark.skipif(not HAS_GPU, reason="no GPU of compute capability 8.0 or later")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "precision"), TYPES, **by_dtype)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpu_keeps_the_budget(
    case: Case,
    dtype: torch.dtype,
    precision: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    nan_in_fresh_memory: None,
) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "portable")
    ops.forget_plans()
    tensors = tensors_of(case, dtype, "cuda", form)
    y = separable(tensors, case, precision=precision)
    check(y, pair(double(tensors), case), pair(tensors, case), dtype, precision)
    assert same_bits(y, separable(tensors, case, precision=precision))
    monkeypatch.undo()
    ops.forget_plans()


# --- for the GPUs

TARGETS = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@needs_nvrtc
@pytest.mark.parametrize(
    "case", [BY_ID["2d-residual-activated"], BLOCKS, Case("deep", 1, 900, 200, (7, 7), (3, 3))], ids=str
)
@pytest.mark.parametrize(("dtype", "precision"), TYPES, **by_dtype)
@pytest.mark.parametrize("capability", TARGETS, ids=str)
def test_every_target_compiles_well(
    capability: tuple[int, int], dtype: torch.dtype, precision: str, case: Case, tmp_path: Path
) -> None:
    device = replace(SMALL_GPU, capability=capability)
    problem = problem_of(tensors_of(case, dtype), case, precision)
    assert PortableBackend().reasons(problem, device) == []
    config = configuration(problem, device)
    code, log = nvrtc.compiled(nvrtc.artifact(portable.build(problem, config, device)), tmp_path)
    assert code[:4] == b"\x7fELF"
    assert set(re.findall(r"(\d+) bytes (?:spill|stack)", log)) == {"0"}, log


@pytest.mark.parametrize("capability", TARGETS, ids=str)
@pytest.mark.parametrize("channels", [1, 64, 2000, 100_000])
def test_shared_memory_has_room(channels: int, capability: tuple[int, int]) -> None:
    device = replace(SMALL_GPU, capability=capability)
    for precision in ("high", "ieee"):
        problem = Problem(1, channels, 512, 1, (14, 14), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), precision=precision)
        config = configuration(problem, device)
        room = {(8, 0): 163, (9, 0): 227, (10, 0): 227}.get(capability, 99) << 10
        assert shared_bytes(problem, config) <= room
        assert (shared_bytes(problem, config) + 1024) * config.blocks_of_sm <= room + 1024


def test_few_tiles_are_split_among_the_sms() -> None:
    problem = Problem(1, 64, 512, 1, (14, 14), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    config = configuration(problem, replace(SMALL_GPU, units=132))
    assert config.splits == 512 // config.block
    assert configuration(replace(problem, batch=1000), replace(SMALL_GPU, units=132)).splits == 1


def test_it_says_what_it_cannot() -> None:
    problem = Problem(1, 4, 4, 1, (6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    older = replace(SMALL_GPU, capability=(7, 5))
    assert PortableBackend().reasons(problem, older) == ["needs compute capability 8.0 or later"]
    changes = {"dtype": torch.float64, "direction": "backward"}
    for name, value in changes.items():
        assert re.search("computes", PortableBackend().reasons(replace(problem, **{name: value}), SMALL_GPU)[0])
    assert PortableBackend().unavailable(Device("cpu", "a CPU"))
    assert "SEPCONV_BACKEND" in PortableBackend().slower(problem, SMALL_GPU)[0]
