"""CUDA graphs in the benchmark, with graphs that only play what was captured: what is checked, timed, skipped and written."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from rows import ROW
from typer.testing import CliRunner

from sepconv import dispatch
from sepconv.backends.cpu import CpuBackend
from sepconv.bench import baselines, command, graphs, measure, report, timing
from sepconv.bench.report import CALL, GRAPH
from sepconv.bench.roofline import Ceilings
from sepconv.bench.workloads import WORKLOADS, Workload

CPU = torch.device("cpu")


class Gauge:
    """A gauge that measures nothing."""

    timer = timing.Timer(CPU)

    def sample(self) -> Ceilings:
        return Ceilings(1e9, 1e12, "FMA")


class FakeCuda:
    """What `captured` asks of torch.cuda, on the CPU. `play` is what a replay does; `told` is what happened, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.play: Callable[[], None] = lambda: None

    def Stream(self) -> "FakeCuda":  # noqa: N802
        return self

    current_stream = Stream

    def wait_stream(self, other: "FakeCuda") -> None:
        self.told.append("wait")

    @contextlib.contextmanager
    def stream(self, stream: "FakeCuda") -> Iterator[None]:
        self.told.append("on a stream")
        try:
            yield
        finally:
            self.told.append("back")

    def CUDAGraph(self) -> "FakeCuda":  # noqa: N802
        return self

    @contextlib.contextmanager
    def graph(self, graph: "FakeCuda", *, stream: "FakeCuda") -> Iterator[None]:
        self.told.append("capture")
        try:
            yield
        except RuntimeError:
            raise RuntimeError("a previous error during capture")  # noqa: B904  # as torch raises it
        self.told.append("captured")

    def replay(self) -> None:
        self.told.append("replay")
        self.play()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Stream", "current_stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


class Fixed(baselines.Eager):
    """Eager PyTorch whose replays write what the captured call gave, times a factor."""

    name = "fixed"

    def __init__(self, cuda: FakeCuda, factor: float | None = 1.0) -> None:
        self.cuda, self.factor = cuda, factor

    def prepare(self, case):
        right = super().prepare(case)

        def call():
            self.cuda.told.append("call")
            results = right()
            kept, factor = results[0].clone(), self.factor
            self.cuda.play = (lambda: None) if factor is None else lambda: results[0].copy_(kept * factor)
            return results

        return call


class Fresh(baselines.Eager):
    """A provider that refuses to be captured."""

    name = "fresh"

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def prepare(self, case):
        right = super().prepare(case)

        def call():
            if self.cuda.told[-1] == "capture":
                raise RuntimeError("operation not permitted when stream is capturing")
            return right()

        return call


def measured(ours: baselines.Provider, *peers: baselines.Provider) -> measure.Measured:
    workload = Workload("tiny", WORKLOADS["tiny"])
    asked = measure.Request((workload,), CPU, False, ours, peers, 2, 0, launch=GRAPH)
    return measure.measure(asked, workload, workload.entries[3], Gauge(), lambda: None)


def test_a_call_is_warmed_up_on_the_stream_that_it_is_captured_on(cuda: FakeCuda) -> None:
    result = torch.zeros(3)

    def call():
        cuda.told.append("call")
        return (result,)

    replay = graphs.captured(call)
    warm = ["wait", "on a stream", *["call"] * timing.WARM_UPS, "back", "wait"]
    assert cuda.told == [*warm, "on a stream", "capture", "call", "captured", "back"]
    assert result.isnan().all(), "what a replay leaves out has to show"
    cuda.play = lambda: result.fill_(5.0)
    assert replay()[0].tolist() == [5.0] * 3
    assert cuda.told[-1] == "replay"


def test_replays_are_checked_and_timed(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS_BEFORE", 0.0)
    found = measured(Fixed(cuda))
    (row,) = found.rows
    assert row.launch == GRAPH
    assert row.is_right
    assert row.ms is not None
    assert cuda.told.count("call") == timing.WARM_UPS + 1, "nothing but replays after the capture"
    assert cuda.told.count("replay") == 1 + timing.WARM_UPS + 2 * 2


@pytest.mark.parametrize("factor", [1.001, None])
def test_a_replay_with_another_result_than_the_call_is_wrong(cuda: FakeCuda, factor: float | None) -> None:
    found = measured(Fixed(cuda, factor))
    assert "fixed is WRONG" in found.wrong[0]
    assert found.rows[0].ms is None
    assert math.isinf(found.rows[0].error) == (factor is None)


def test_a_peer_that_cannot_be_captured_is_skipped_with_the_reason(cuda: FakeCuda) -> None:
    found = measured(Fixed(cuda), Fresh(cuda))
    assert found.skipped == (
        "fresh is skipped: it raised RuntimeError: operation not permitted when stream is capturing",
    )
    assert [row.provider for row in found.rows] == ["fixed"]
    assert cuda.told.count("on a stream") == cuda.told.count("back"), "the usual stream is the current one again"


def test_our_rows_say_what_other_backends_have_against_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "eager")
    dispatch.forget()
    workload = Workload("tiny", WORKLOADS["tiny"])
    asked = measure.Request((workload,), CPU, False, baselines.OURS, (baselines.Eager(),), 1, 0)
    forced = measure.measure(asked, workload, workload.entries[3], Gauge(), lambda: None).rows
    monkeypatch.delenv("SEPCONV_BACKEND")
    monkeypatch.setattr(CpuBackend, "unavailable", lambda *_: [])
    monkeypatch.setattr(CpuBackend, "reasons", lambda *_: ["one reason", "and another"])
    dispatch.forget()
    chosen = measure.measure(asked, workload, workload.entries[3], Gauge(), lambda: None).rows
    dispatch.forget()
    assert [(row.plan, row.rejected) for row in forced] == [("eager (setting)", ""), ("", "")]
    assert [(row.plan, row.rejected) for row in chosen] == [
        ("eager (default)", "cpu: one reason, and another"),
        ("", ""),
    ]


def test_graphs_are_refused_where_there_is_no_cuda() -> None:
    app = typer.Typer()
    app.command()(command.bench)
    out = CliRunner().invoke(app, ["tiny", "--device", "cpu", "--graphs"])
    assert (out.exit_code, out.stdout) == (2, "")
    assert "`graphs` is for CUDA, and `device` is 'cpu'" in out.stderr


def test_the_words_of_a_call_reach_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_device", lambda _: torch.device("cuda"))
    found = [
        command.parse(["tiny"], None, None, None, "forward", "none", None, 1, 0, asked).launch
        for asked in (True, False)
    ]
    assert found == [GRAPH, CALL]


def test_rows_of_another_launch_are_about_another_thing(tmp_path: Path) -> None:
    graph = replace(ROW, launch=GRAPH, rejected="cuda: no; portable: not yet")
    assert report.merged([ROW], [graph]) == [ROW, graph]
    assert report.merged([ROW, graph], [replace(graph, ms=9.0)]) == [ROW, replace(graph, ms=9.0)]
    report.write_csv([ROW, graph], tmp_path / "rows.csv")
    assert report.read_csv(tmp_path / "rows.csv") == [ROW, graph]
    tables = [report.problem_table([row]).renderables[0] for row in (ROW, graph)]
    assert ["CUDA graphs" in str(title) for title in tables] == [False, True]
