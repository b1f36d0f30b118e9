"""The CPU backend: what it runs and why not, every instruction set, every configuration, and the memory that it touches."""

import ctypes
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from calls import same_bits, separable
from cases import ACTIVATED, ENDINGS, FORMS, TABLE, Case, grad_of, tensors_of
from hypothesis import given
from hypothesis import strategies as st
from kernels import (
    BACKEND,
    CPU,
    DTYPES,
    HAS_AVX512,
    LAYOUTS,
    bits_of,
    check_result,
    configs_of,
    options_of,
    plan_of,
    problem_of,
    run,
)
from test_properties import cases
from torch import Tensor

import sepconv
from sepconv import dispatch, ops
from sepconv.backends import cpu
from sepconv.backends.threads import Threads
from sepconv.device import describe
from sepconv.errors import UnsupportedError
from sepconv.jit import cxx
from sepconv.problem import Operands
from sepconv.reference import ACTIVATIONS
from sepconv.tuning.config import CpuConfig, legal, rows_and_columns

ISAS = [
    pytest.param("avx512", marks=pytest.mark.skipif(not HAS_AVX512, reason="this CPU has no AVX-512")),
    "avx2",
    "generic",
    pytest.param("", id="own"),
]
pytestmark = pytest.mark.usefixtures("terms_for_any_size")
FLAT = [case for case in (*TABLE, *ENDINGS, *ACTIVATED) if case.rank < 3]
SMALL = [case for case in TABLE if case.rank < 3 and torch.Size((case.N, case.C, *case.L)).numel() < 10_000]
ODD = [
    Case("1d-rows", 5, 7, 11, (37,), (3,), padding=1, bias="dp"),
    Case("1d-long-row", 2, 5, 9, (143,), (5,), stride=2, padding=2, residual=True),
    Case("2d-images", 3, 5, 10, (7, 11), (3, 3), padding=1, bias="dp", residual=True),
    Case("2d-images-valid", 3, 5, 10, (7, 11), (3, 3)),
    Case("2d-wide", 2, 17, 7, (3, 61), (3, 3), stride=(1, 1), padding=1),
    Case("2d-any-window", 2, 4, 13, (9, 23), (2, 4), m=2, stride=(2, 3), padding=2, dilation=(1, 2)),
]
by_dtype = {"ids": lambda value: str(value).removeprefix("torch.")}
by_hand = pytest.mark.by_hand
CLANG = shutil.which("clang++")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has kernels compiled for an instruction set, through the setting that users have."""

    def force(isa: str) -> None:
        monkeypatch.setenv("SEPCONV_ISA", isa)
        ops.forget_plans()

    yield force
    monkeypatch.undo()
    ops.forget_plans()


# --- what runs, and why not


@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("case", ODD, ids=str)
def test_it_runs_what_it_should(case: Case, dtype: torch.dtype) -> None:
    tensors = tensors_of(case, dtype)
    plan = plan_of(tensors, case)
    assert (plan.backend.name, plan.source, plan.rejected) == ("cpu", "default", ())
    assert plan.config in configs_of(tensors, case)
    text = sepconv.explain(*tensors[:5], residual=tensors[5], **case.arguments)
    assert "backend   cpu (chosen by default)" in text
    assert f"config    {plan.config} (chosen by model)" in text


def test_its_kernel_computes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(cpu.Kernel, "run", lambda kernel, operands, y: ran.append(y) or True)
    y = separable(tensors_of(ODD[2]), ODD[2])
    assert len(ran) == 1
    assert ran[0].data_ptr() == y.data_ptr()


REFUSED = [
    (Case("3d", 1, 2, 3, (4, 4, 4), (3, 3, 3)), torch.float32, "computes 1-D and 2-D, not 3-D"),
    (ODD[0], torch.float64, "computes float32, float16 and bfloat16, not float64"),
    (
        Case("large", 1, 1 << 19, 2, (16,), (1,)),
        torch.float32,
        "one row of the output takes more scratch memory than a thread may have",
    ),
]


@pytest.mark.parametrize(("case", "dtype", "reason"), REFUSED, ids=str)
def test_it_says_what_it_cannot_run(case: Case, dtype: torch.dtype, reason: str) -> None:
    tensors = [None if t is None else t.to("meta") for t in tensors_of(case, dtype)]
    text = sepconv.explain(*tensors[:5], residual=tensors[5], device="cpu", **case.arguments)
    assert "backend   eager (chosen by default)" in text
    assert f"not cpu: {reason}" in text.splitlines()


def test_gradients_are_computed_by_pytorch() -> None:
    tensors = tensors_of(ODD[2])
    backward = replace(problem_of(tensors, ODD[2]), direction="backward")
    plan = dispatch.plan(backward, describe(CPU))
    assert plan.backend.name == "eager"
    assert plan.rejected == (("cpu", ("computes the forward pass only",)),)
    grad, options = grad_of(ODD[2]), options_of(tensors, ODD[2])
    mine, theirs = (
        b.gradients(backward, grad, Operands(*tensors), options, [True] * 5) for b in (BACKEND, plan.backend)
    )
    assert all(map(same_bits, mine, theirs))


def test_it_may_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "cpu")
    ops.forget_plans()
    try:
        check_result(separable(tensors_of(ODD[2]), ODD[2]), tensors_of(ODD[2]), ODD[2])
        with pytest.raises(UnsupportedError, match="not float64"):
            separable(tensors_of(ODD[2], torch.float64), ODD[2])
    finally:
        monkeypatch.undo()
        ops.forget_plans()


def test_it_is_ready_once_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tensors_of(ODD[2])
    separable(tensors, ODD[2])
    problem = problem_of(tensors, ODD[2])
    assert BACKEND.is_ready(problem, describe(CPU))
    monkeypatch.setattr(cpu, "COMMON_FLAGS", (*cpu.COMMON_FLAGS, "-DNEVER_BUILT"))
    assert not BACKEND.is_ready(problem, describe(CPU))


# --- instruction sets


def _check_public(case: Case, dtype: torch.dtype, form: str) -> None:
    tensors = tensors_of(case, dtype, form=form)
    assert plan_of(tensors, case).backend.name == "cpu"
    check_result(separable(tensors, case), tensors, case)


@pytest.mark.usefixtures("nan_in_fresh_memory", "few_builds")
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("isa", ISAS)
def test_the_table_on_other_instruction_sets(
    isa: str, dtype: torch.dtype, form: str, forced: Callable[[str], None]
) -> None:
    forced(isa)
    for case in FLAT:
        if dtype in case.dtypes:
            _explained(lambda case=case: _check_public(case, dtype, form), case)


@pytest.mark.skipif(CLANG is None, reason="no clang++ on the PATH")
@pytest.mark.usefixtures("nan_in_fresh_memory", "few_builds")
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("isa", ISAS)
def test_another_compiler(
    isa: str, dtype: torch.dtype, form: str, forced: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcc and clang have other names for some of what a CPU can do; on matrix units clang's results were wrong once."""
    monkeypatch.setenv("SEPCONV_CXX", str(CLANG))
    forced(isa)
    for case in ODD:
        _explained(lambda case=case: _check_public(case, dtype, form), case)


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("isa", ISAS)
def test_a_known_window_on_other_instruction_sets(
    isa: str, dtype: torch.dtype, form: str, forced: Callable[[str], None], few_builds: set[tuple[int, ...]]
) -> None:
    few_builds.add((3, 3))
    forced(isa)
    for case in (c for c in FLAT if c.K == (3, 3) and (c.m, c.stride, c.dilation) == (1, 1, 1)):
        _explained(lambda case=case: _check_public(case, dtype, form), case)


@pytest.mark.usefixtures("nan_in_fresh_memory", "few_builds")
@pytest.mark.parametrize("form", ["misaligned", "gaps", "permuted"])
@pytest.mark.parametrize("isa", ISAS)
def test_any_layout_of_the_tensors_on_other_instruction_sets(
    isa: str, form: str, forced: Callable[[str], None]
) -> None:
    forced(isa)
    for case in SMALL:
        _explained(lambda case=case: _check_public(case, torch.float32, form), case)


@by_hand
@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("isa", ISAS)
def test_every_build_on_other_instruction_sets(
    isa: str, dtype: torch.dtype, form: str, forced: Callable[[str], None]
) -> None:
    test_the_table_on_other_instruction_sets(isa, dtype, form, forced)


def _explained(call: Callable[[], None], case: Case) -> None:
    try:
        call()
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


# --- configurations


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("case", ODD, ids=str)
def test_every_configuration_gives_the_same_bits(case: Case, dtype: torch.dtype, form: str) -> None:
    tensors = tensors_of(case, dtype, form=form)
    problem, device = problem_of(tensors, case), describe(CPU)
    rows, columns = rows_and_columns(problem)
    tiles = [(1, columns), (2, columns), (rows - 1, columns), (rows, columns), (1, 1), (1, 5), (1, columns - 1)]
    tried = [CpuConfig(*tile, shared) for tile in tiles for shared in (False, True)]
    tried = [*configs_of(tensors, case), *(config for config in tried if legal(problem, config, device))]
    assert len(tried) >= 12
    first = run(tensors, case, tried[0])
    check_result(first, tensors, case)
    for config in tried[1:]:
        assert same_bits(run(tensors, case, config), first), config


def _configs(rows: int, columns: int) -> st.SearchStrategy[CpuConfig]:
    whole = st.builds(CpuConfig, st.integers(1, rows), st.just(columns), st.booleans())
    return st.one_of(whole, st.builds(CpuConfig, st.just(1), st.integers(1, columns), st.booleans()))


def _guarded(tensors: list[Tensor | None], case: Case, config: CpuConfig) -> Tensor:
    """The result, written into the middle of memory that is NaN; nothing around it may change."""
    problem, guard = problem_of(tensors, case), 1000
    size = torch.Size(problem.output_shape).numel()
    memory = torch.full((size + 2 * guard,), float("nan"), dtype=problem.dtype)
    y = memory.as_strided(problem.output_shape, problem.output_strides, guard)
    operands = cpu._laid_out(problem, Operands(*tensors))
    if y.numel():
        cpu._kernel(problem, config, describe(CPU)).run(operands, y)
    untouched = torch.full_like(memory[:guard], float("nan"))
    assert same_bits(memory[:guard], untouched)
    assert same_bits(memory[guard + size :], untouched)
    return y


@pytest.mark.usefixtures("few_builds")
@pytest.mark.parametrize("rank", [1, 2])
def test_any_call_with_any_configuration(rank: int) -> None:
    @given(
        case=cases(rank),
        dtype=st.sampled_from(DTYPES),
        forms=st.lists(st.sampled_from(FORMS), min_size=6, max_size=6),
        data=st.data(),
    )
    def holds(case: Case, dtype: torch.dtype, forms: list[str], data: st.DataObject) -> None:
        _hold(case, dtype, forms, data)

    holds()


def test_any_known_window_with_any_configuration(few_builds: set[tuple[int, ...]]) -> None:
    few_builds.add((3, 3))

    @given(
        case=cases(2).map(lambda case: replace(case, K=(3, 3), m=1, stride=1, dilation=1, padding=1)),
        dtype=st.sampled_from(DTYPES),
        forms=st.lists(st.sampled_from(FORMS), min_size=6, max_size=6),
        data=st.data(),
    )
    def holds(case: Case, dtype: torch.dtype, forms: list[str], data: st.DataObject) -> None:
        _hold(case, dtype, forms, data)

    holds()


def _hold(case: Case, dtype: torch.dtype, forms: list[str], data: st.DataObject) -> None:
    plain = tensors_of(case, dtype)
    tensors = [
        None if t is None else tensors_of(case, dtype, form=f)[i]
        for i, (t, f) in enumerate(zip(plain, forms, strict=True))
    ]
    config = data.draw(_configs(*rows_and_columns(problem_of(tensors, case))))
    before = bits_of(tensors)
    y = _guarded(tensors, case, config)
    assert bits_of(tensors) == before
    check_result(y, tensors, case)


# --- memory


def test_huge_pages_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("huge", 1, 8, 40, (300, 300), (3, 3), padding=1)  # 14 MB of results
    tensors, found = tensors_of(case), []
    for switch in ("0", "1"):
        monkeypatch.setenv("SEPCONV_HUGE_PAGES", switch)
        ops.forget_plans()
        found.append(separable(tensors, case))
        (template,) = {cpu._kernel(problem_of(tensors, case), plan_of(tensors, case).config, describe(CPU)).template}
        assert cpu.Call.from_buffer_copy(template).huge_pages == int(switch)
    ops.forget_plans()
    assert same_bits(*found)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_large_results_past_the_caches(dtype: torch.dtype, form: str) -> None:
    """Each of 25 MB and more; some rows of them begin inside of a cache line."""
    case = Case("streamed", 1, 40, 48, (512, 510), (3, 3), padding=1, bias="p")
    tensors = tensors_of(case, dtype, form=form)
    check_result(separable(tensors, case), tensors, case)


# --- what Python and C++ both say


def test_the_records_of_python_and_of_the_kernel_are_alike() -> None:
    library = cxx.library(cpu.build(problem_of(tensors_of(ODD[2]), ODD[2]), describe(CPU).isa))
    sizes = (ctypes.c_long * 3)()
    library.sepconv_sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(record) for record in (cpu.Call, Threads, cpu.Activate)]


def test_the_activations_of_the_kernel_are_in_order() -> None:
    text = (cpu.SOURCES / "activation.h").read_text()
    names = text.split("enum class Activation {")[1].split("}")[0]
    assert tuple(name.strip() for name in names.split(",")) == (*ACTIVATIONS, "any")
