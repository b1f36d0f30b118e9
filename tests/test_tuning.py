"""How a kernel would run a problem: which configurations are legal, what the model picks, what the search finds, who decides."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sepconv import dispatch, ops
from sepconv.backends.cpu import CpuBackend
from sepconv.device import Device, describe
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Problem
from sepconv.tuning import model, records
from sepconv.tuning.candidates import candidates
from sepconv.tuning.config import MOST_SCRATCH, CpuConfig, legal, rows_and_columns, scratch
from sepconv.tuning.records import Record
from sepconv.tuning.search import STAGES, Choice, Outcome, search

DEVICE = Device("cpu", "Test CPU", units=4, isa="avx512", cache=1 << 20)
ONE_THREAD = replace(DEVICE, units=1, isa="generic", cache=1 << 15)


def problem(
    size: tuple[int, ...] = (30, 40),
    kernel: int = 3,
    *,
    batch: int = 2,
    channels: int = 16,
    outputs: int = 24,
    multiplier: int = 1,
    stride: int = 1,
    dilation: int = 1,
    layout: str = CHANNELS_FIRST,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """A problem that keeps the size of its input, but for the stride."""
    rank, zeros = len(size), dilation * (kernel - 1)
    return Problem(
        batch,
        channels,
        outputs,
        multiplier,
        size,
        (kernel,) * rank,
        (stride,) * rank,
        ((zeros // 2, zeros - zeros // 2),) * rank,
        (dilation,) * rank,
        dtype,
        layout,
    )


# --- candidates, and the model that ranks them


def check_choice(asked: Problem, device: Device) -> None:
    """All candidates are legal and different, the model ranks them all, and picks the first of its own ranking."""
    found = candidates(asked, device)
    assert all(legal(asked, config, device) for config in found)
    assert len(set(found)) == len(found)
    assert device.units > 1 or not any(config.shared for config in found)
    ranked = model.ranked(asked, device)
    assert sorted(map(str, ranked)) == sorted(map(str, found))
    times = [model.clocks(asked, config, device) for config in ranked]
    assert times == sorted(times)
    assert all(0 < time < math.inf for time in times)
    if found:
        assert model.best(asked, device) == ranked[0]


ODD = {
    "odd 2-D": problem((13, 7), channels=5, outputs=3),
    "odd 1-D": problem((19,), channels=1, outputs=7),
    "one pixel": problem((1, 1), kernel=1, batch=1, channels=1, outputs=1),
    "one row": problem((1, 500)),
    "one column": problem((500, 1)),
    "one frame": problem((1,), kernel=1),
    "no batch": problem(batch=0),
    "no batch, 1-D": problem((9,), batch=0),
    "a wide window": problem((64,), kernel=87, dilation=2),
    "a window past its input": problem((3, 3), kernel=9, dilation=3),
    "a long stride": problem((64, 64), stride=7),
    "many channels": problem((8, 8), channels=8192, outputs=4096),
    "multiplied channels": problem(multiplier=5),
    "a huge image": problem((2**20, 2**20), batch=2**12),
    "a huge row": problem((2**40,), batch=2**20),
}


@pytest.mark.parametrize("device", [DEVICE, ONE_THREAD], ids=["4 threads", "1 thread"])
@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize("name", ODD)
def test_the_model_chooses_for_every_kind_of_problem(name: str, layout: str, device: Device) -> None:
    asked = replace(ODD[name], layout=layout)
    check_choice(asked, device)
    assert candidates(asked, device)


@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize("isa", sorted(model.LANES))
def test_the_model_chooses_for_every_window(isa: str, layout: str) -> None:
    device = replace(DEVICE, isa=isa)
    for kernel, stride, dilation, rank in itertools.product((1, 2, 3, 5, 7, 33), (1, 2, 3), (1, 2), (1, 2)):
        asked = problem((37, 21)[:rank], kernel, stride=stride, dilation=dilation, layout=layout)
        check_choice(asked, device)
        assert candidates(asked, device)


@given(
    size=st.lists(st.integers(1, 2000), min_size=1, max_size=2),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 4),
    batch=st.integers(0, 9),
    channels=st.integers(1, 3000),
    outputs=st.integers(1, 3000),
    layout=st.sampled_from([CHANNELS_FIRST, CHANNELS_LAST]),
    units=st.integers(1, 64),
)
def test_the_model_never_fails(
    size: list[int], kernel: int, stride: int, batch: int, channels: int, outputs: int, layout: str, units: int
) -> None:
    asked = problem(tuple(size), kernel, batch=batch, channels=channels, outputs=outputs, stride=stride, layout=layout)
    check_choice(asked, replace(DEVICE, units=units))


def test_a_tile_that_no_thread_can_hold_has_no_candidate() -> None:
    asked = problem((64, 64), channels=2**24)
    check_choice(asked, DEVICE)
    assert candidates(asked, DEVICE) == []
    with pytest.raises(ValueError, match="empty"):
        model.best(asked, DEVICE)
    assert "scratch memory" in CpuBackend().reasons(asked, DEVICE)[0]


@pytest.mark.parametrize(
    ("rows", "columns"), [(0, 40), (1, 0), (61, 40), (1, 41), (2, 20), (-1, 40), (60, -1)], ids=str
)
def test_what_is_not_legal(rows: int, columns: int) -> None:
    asked = problem()
    assert rows_and_columns(asked) == (60, 40)
    assert legal(asked, CpuConfig(60, 40, False), DEVICE)
    assert legal(asked, CpuConfig(1, 20, True), DEVICE)
    assert not legal(asked, CpuConfig(rows, columns, False), DEVICE)


@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
def test_scratch_bounds_a_tile(layout: str) -> None:
    asked = problem((512, 512), channels=512, layout=layout)
    sizes = {
        config: scratch(asked, config, DEVICE.isa) for config in (CpuConfig(1, 512, False), CpuConfig(512, 512, False))
    }
    assert [size <= MOST_SCRATCH for size in sizes.values()] == [True, False]
    assert [legal(asked, config, DEVICE) for config in sizes] == [True, False]


def test_more_work_takes_longer() -> None:
    config = CpuConfig(2, 40, False)
    base = model.clocks(problem(), config, DEVICE)
    assert model.clocks(problem(batch=8), config, DEVICE) > base
    assert model.clocks(problem(kernel=5), config, DEVICE) > base
    assert model.clocks(problem(outputs=48), config, DEVICE) > base
    assert model.clocks(problem(), config, ONE_THREAD) > base


def test_constants_change_the_ranking() -> None:
    asked = problem((64, 64))
    unshared = [not config.shared for config in model.ranked(asked, DEVICE, model.Constants(meeting=1e12))]
    assert unshared == sorted(unshared, reverse=True)
    first = model.ranked(asked, DEVICE, model.Constants(tile=1e12, meeting=1e12))[0]
    assert first.tile_rows * DEVICE.units >= rows_and_columns(asked)[0], "one tile for each thread"
    assert unshared != [not config.shared for config in model.ranked(asked, DEVICE)]


# --- the search


class Clock:
    """Stands for calls on a machine: each choice takes the time that a test gives it, and every call is written down."""

    def __init__(self, times: Callable[[Choice], float]) -> None:
        self.times, self.calls = times, []

    def __call__(self, choice: Choice) -> float:
        self.calls.append(choice)
        return self.times(choice)


ASKED = problem((64, 64))
RANKED = model.ranked(ASKED, DEVICE)


def ask(times: Callable[[Choice], float], wrong: tuple[CpuConfig, ...] = ()) -> tuple[Outcome, list[Choice]]:
    clock = Clock(times)
    return search(ASKED, DEVICE, clock, lambda config: config not in wrong), clock.calls


@pytest.mark.parametrize("fastest", [0, 1, len(RANKED) // 2, len(RANKED) - 1])
def test_the_search_finds_the_fastest(fastest: int) -> None:
    outcome, _ = ask(lambda choice: 1.0 if choice == RANKED[fastest] else 1.05 if choice else 9.0)
    assert outcome.best.choice == RANKED[fastest]
    assert outcome.chosen.choice == RANKED[0]
    assert outcome.loss == (1.0 if fastest == 0 else 1.05)
    assert outcome.eager.ms == 9.0
    assert [timed.choice for timed in outcome.timed] == RANKED
    assert outcome.record() == Record(ASKED, RANKED[fastest], 1.0, outcome.loss, 9.0, torch.__version__)


def test_the_slower_drop_out_stage_by_stage() -> None:
    limits = iter((1.6, 1.3, 1.15, 1.05))
    slow = dict(zip(RANKED[1:5], limits, strict=True))
    outcome, calls = ask(lambda choice: slow.get(choice, 1.0 if choice == RANKED[0] else 2.0))
    rounds = list(itertools.accumulate(rounds for rounds, _ in STAGES))
    assert [len(outcome.timed[i].times) for i in range(5)] == [rounds[-1], *rounds]
    assert {len(timed.times) for timed in outcome.timed[5:]} == {rounds[0]}
    assert len(outcome.eager.times) == rounds[0]
    assert calls[: len(RANKED) + 1] == [*RANKED, None], "a round calls every choice once, in turn"
    assert len(calls) == sum(len(timed.times) for timed in (*outcome.timed, outcome.eager))


def test_a_disturbed_call_drops_nobody() -> None:
    """The fastest candidate is interrupted in its first call; one that is always a little slower must not win for that."""
    seen: set[Choice] = set()

    def times(choice: Choice) -> float:
        first = choice not in seen
        seen.add(choice)
        return 50.0 if first and choice == RANKED[3] else 1.0 if choice == RANKED[3] else 1.2

    assert ask(times)[0].best.choice == RANKED[3]


def test_one_that_dropped_out_is_not_the_best() -> None:
    """Two lucky calls in quiet rounds against many in busy ones."""
    counts: dict[Choice, int] = {}

    def times(choice: Choice) -> float:
        counts[choice] = counts.get(choice, 0) + 1
        if choice == RANKED[1]:
            return 1.6
        return 1.0 if counts[choice] <= 2 else 5.0

    outcome, _ = ask(times)
    assert outcome.timed[1].ms == 1.6
    assert outcome.best.choice != RANKED[1]


def test_a_wrong_candidate_is_never_timed() -> None:
    outcome, calls = ask(lambda choice: 1.0 if choice == RANKED[0] else 2.0, wrong=tuple(RANKED[:2]))
    assert outcome.wrong == tuple(RANKED[:2])
    assert not {*RANKED[:2]} & {*calls}
    assert outcome.chosen.choice == RANKED[2]
    nothing, calls = ask(lambda _: 1.0, wrong=tuple(RANKED))
    assert nothing.timed == ()
    assert set(calls) == {None}


def test_fast_kernels_of_pytorch_leave_the_candidates_their_rounds() -> None:
    outcome, _ = ask(lambda choice: 0.1 if choice is None else 1.0)
    assert len(outcome.best.times) == len(outcome.eager.times) == sum(rounds for rounds, _ in STAGES)


def test_what_a_call_raises_passes_through() -> None:
    def fail(choice: Choice) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(fail)


# --- who decides: dispatch


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Record]]:
    """Keeps a record for the problem at hand on this machine; every plan is made anew."""
    monkeypatch.delenv("SEPCONV_BACKEND", raising=False)
    monkeypatch.setattr(records, "folder", lambda: tmp_path / "tuning")
    monkeypatch.setattr(CpuBackend, "unavailable", lambda *_: [])

    def keep(ms: float, eager_ms: float, version: str = torch.__version__) -> Record:
        record = Record(ASKED, CpuConfig(3, 64, False), ms, 2 * ms, eager_ms, version)
        records.save([record], describe(torch.device("cpu")))
        ops.forget_plans()
        return record

    ops.forget_plans()
    yield keep
    ops.forget_plans()
    records.forget()


def plan() -> dispatch.Plan:
    return dispatch.plan(ASKED, describe(torch.device("cpu")))


def test_without_a_record_the_model_chooses(kept: Callable[..., Record]) -> None:
    assert (plan().backend.name, plan().config_source) == ("cpu", "model")
    assert plan().config == model.best(ASKED, plan().device)


def test_a_record_goes_before_the_model(kept: Callable[..., Record]) -> None:
    record = kept(1.0, 2.0)
    assert record.config != model.best(ASKED, plan().device)
    assert (plan().backend.name, plan().config, plan().config_source) == ("cpu", record.config, "record")
    assert "chosen by record" in dispatch.explain(ASKED, plan().device)
    other = replace(ASKED, batch=ASKED.batch + 1)
    assert dispatch.plan(other, plan().device).config_source == "model"


def test_pytorch_runs_where_it_measured_clearly_faster(
    kept: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(2.0, 1.5)
    assert plan().backend.name == "eager"
    reason = "PyTorch's own kernels measured faster (1.5 ms, 2 ms)"
    assert plan().rejected == (("cpu", (reason,)),)
    assert f"not cpu: {reason}" in dispatch.explain(ASKED, plan().device)
    monkeypatch.setenv("SEPCONV_BACKEND", "cpu")
    ops.forget_plans()
    assert (plan().backend.name, plan().config_source) == ("cpu", "record"), "a backend that is named is not asked"


@pytest.mark.parametrize("facts", [(2.0, 1.95), (2.0, 2.0), (2.0, 3.0), (2.0, 1.0, "another version")])
def test_pytorch_does_not_run_otherwise(kept: Callable[..., Record], facts: tuple[object, ...]) -> None:
    kept(*facts)
    assert plan().backend.name == "cpu"


def test_the_models_word_on_pytorch_counts_until_it_was_measured(
    kept: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "eager_is_faster", lambda *_: "a rule says so")
    assert plan().rejected == (("cpu", ("a rule says so",)),)
    kept(1.0, 2.0)
    assert plan().backend.name == "cpu"
