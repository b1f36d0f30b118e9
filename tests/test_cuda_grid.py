"""The grid on a GPU: what is in it, how it is measured in pieces, and its tables on rows whose figures are known."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from rows import ROW, read_from
from scripts import imported

from sepconv import dispatch
from sepconv.bench import measure, report
from sepconv.bench.report import GRAPH, Row
from sepconv.device import Device
from sepconv.errors import ArgumentValueError
from sepconv.jit import nvrtc
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 150 << 30)
CUDA = torch.device("cuda:0")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with imported("benchmarks", "grid", "cuda_grid", "grid_tables", "tables") as found:
        yield found


# --- what is in it


def test_every_pair_is_there_in_two_forms_and_a_quarter_in_a_third(scripts: dict[str, ModuleType]) -> None:
    items = scripts["grid"].items()
    problems = [item.entry.problem for item in items]
    pairs = 2 * (9 + 12 + 17 + 16 + 11 + 13 + 3)
    quarter = -(-pairs // 4)
    assert Counter(p.dtype for p in problems) == {
        torch.float32: pairs,
        torch.float16: pairs,
        torch.bfloat16: quarter,
    }
    assert len({item.key for item in items}) == len(items)
    for p in problems:
        last = p.rank == 2 and p.dtype is not torch.float32
        assert p.layout == (CHANNELS_LAST if last else CHANNELS_FIRST)
        assert p.precision == ("high" if p.dtype is torch.float32 else "ieee")
    assert Counter(p.batch for p in problems if p.rank == 2).keys() == {1, 64}
    assert Counter(p.batch for p in problems if p.rank == 1).keys() == {1, 32}


def test_every_problem_meets_eager_in_both_layouts_and_forty_meet_the_compiler(scripts: dict[str, ModuleType]) -> None:
    grid = scripts["grid"]
    compiled = []
    for item in grid.items():
        p = item.entry.problem
        other = ["eager_channels_first" if p.layout == CHANNELS_LAST else "eager_channels_last"] * (p.rank == 2)
        assert item.peers[: 1 + len(other)] == ("eager", *other)
        if "compile" in item.peers:
            compiled.append(item)
            assert p.batch > 1
            assert p.dtype is not torch.bfloat16
    assert len(compiled) == grid.COMPILED
    assert {item.workload.partition("@")[0] for item in compiled} == set(grid.BATCHES)
    of_dtype = Counter(item.entry.problem.dtype for item in compiled)
    assert min(of_dtype[torch.float32], of_dtype[torch.float16]) > 15


# --- its measurement


class Clock:
    """A clock that a measurement moves by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def asked(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[measure.Request]:
    """What was asked of `measure`, which takes a second a problem here and finds what ROW has."""
    script = scripts["cuda_grid"]
    requests: list[measure.Request] = []
    clock = Clock()

    def found(request, workload, entry, gauge, after_round):
        requests.append(request)
        clock.now += 1
        row = replace(ROW, workload=workload.name, problem=str(entry.problem), launch=request.launch)
        wrong = ("sepconv is WRONG",) if entry.problem.in_channels == 1024 else ()
        return measure.Measured((row,), (), wrong)

    monkeypatch.setattr(script.measure, "measure", found)
    monkeypatch.setattr(script, "time", clock)
    monkeypatch.setattr(script, "usable", lambda _: CUDA)
    monkeypatch.setattr(script, "describe", lambda _: H200)
    monkeypatch.setattr(script, "builds", lambda *_: [])
    monkeypatch.setattr(script, "Timer", lambda _: None)
    steady = SimpleNamespace(sample=lambda: "ceilings")
    monkeypatch.setattr(script.roofline, "Gauge", lambda *_: None)
    monkeypatch.setattr(script.roofline, "Steady", lambda _: steady)
    return requests


def test_a_measurement_stops_in_time_and_goes_on_with_what_is_missing(
    scripts: dict[str, ModuleType], asked: list[measure.Request], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = scripts["cuda_grid"], tmp_path / "rows.csv"
    words = ["--only", "xception@1", "conformer@1", "--missing", "--result", str(file)]
    total = sum(item.workload in words for item in scripts["grid"].items())
    assert script.main([*words, "--seconds", "4"]) == 0
    assert len(asked) == len(report.read_csv(file)) == 4
    assert {(request.launch, request.rounds, request.device) for request in asked} == {(GRAPH, script.ROUNDS, CUDA)}
    err = capsys.readouterr().err
    assert (
        "--- 1/32, 1.0 s: xception@1 1x64x147x147 -> 128, kernel 3x3, float32: sepconv 1.2500 ms [eager (default)]"
        in err
    )
    assert "left: 21 of xception@1, 7 of conformer@1; `--missing` goes on from there" in err
    assert script.main([*words, "--rounds", "3"]) == 1, "a result is wrong"
    assert len(asked) == len(report.read_csv(file)) == total == 32
    assert asked[-1].rounds == 3
    err = capsys.readouterr().err
    assert "sepconv is WRONG" in err
    assert "done; now `python benchmarks/tables.py`" in err
    assert script.main(words) == 0
    assert len(asked) == total, "nothing is missing"


def test_without_missing_the_rows_are_measured_again_and_those_of_no_problem_go(
    scripts: dict[str, ModuleType], asked: list[measure.Request], tmp_path: Path
) -> None:
    script, file = scripts["cuda_grid"], tmp_path / "rows.csv"
    words = ["--only", "conformer@1", "--result", str(file)]
    script.main(words)
    once = report.read_csv(file)
    report.write_csv([replace(ROW, workload="conformer@1", problem="of an older grid"), *once], file)
    script.main(words)
    assert report.read_csv(file) == once
    assert len(asked) == 2 * len(once)


def test_each_problem_is_measured_beside_its_peers(
    scripts: dict[str, ModuleType], asked: list[measure.Request], tmp_path: Path
) -> None:
    scripts["cuda_grid"].main(["--only", "conformer@32", "--result", str(tmp_path / "rows.csv")])
    wanted = [item.peers for item in scripts["grid"].items() if item.workload == "conformer@32"]
    assert [tuple(peer.name for peer in request.peers) for request in asked] == wanted
    assert ("eager", "compile") in wanted


def test_without_a_gpu_the_call_is_wrong(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_: object) -> None:
        raise ArgumentValueError("`device` is 'cuda', which cannot be used here")

    monkeypatch.setattr(scripts["cuda_grid"], "usable", none)
    with pytest.raises(SystemExit) as exit_:
        scripts["cuda_grid"].main([])
    assert exit_.value.code == 2
    assert "`device` is 'cuda', which cannot be used here" in capsys.readouterr().err


# --- its kernels


def test_each_kernel_is_compiled_once_whatever_the_batch(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, items = scripts["cuda_grid"], scripts["grid"].items()
    mobilenet = [item for item in items if item.workload.startswith("mobilenet_v1@")]
    monkeypatch.setattr(script.nvrtc, "missing", lambda: None)
    monkeypatch.setattr(script.nvrtc, "is_built", lambda build: False)
    dispatch.forget()
    monkeypatch.setenv("SEPCONV_BACKEND", "portable")
    try:
        found = script.builds(mobilenet, H200)
        problems = {replace(item.entry.problem, batch=1) for item in mobilenet}
        assert len(problems) <= len(found) <= 2 * len(problems), "as many as there are tiles for a batch"
        assert {build.name for build in found} == {"portable"}
        monkeypatch.setattr(script.nvrtc, "is_built", lambda build: True)
        assert script.builds(mobilenet, H200) == []
        dispatch.forget()
        monkeypatch.setenv("SEPCONV_BACKEND", "cpu")
        assert script.builds(mobilenet, H200) == [], "what nothing can run needs no kernel"
    finally:
        dispatch.forget()


@pytest.mark.skipif(nvrtc.missing() is not None, reason="cuda.core is not installed")
def test_kernels_are_compiled_by_other_processes_into_the_store(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "empty.cu"
    source.write_text('extern "C" __global__ void empty() { VALUE; }\n')
    right, wrong = (nvrtc.Build("empty", source, (("VALUE", value),), "sm_90a") for value in (1, "no_such_name"))
    scripts["cuda_grid"].compile_kernels([wrong, right])
    assert nvrtc.is_built(right)
    assert not nvrtc.is_built(wrong)
    err = capsys.readouterr().err
    assert "compiling 2 kernels in" in err
    assert "NVRTC cannot compile `empty` for sm_90a" in err


def test_where_every_kernel_is_on_disk_no_process_starts(
    scripts: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    scripts["cuda_grid"].compile_kernels([])
    assert capsys.readouterr().err == ""


# --- its tables


def rows_of(item: object, ours: float | None, peers: dict[str, float], **fields: object) -> list[Row]:
    problem = item.entry.problem
    own = replace(
        ROW, workload=item.workload, problem=str(problem), device="cuda:0 NVIDIA H200 (9.0, 132 SMs)", launch=GRAPH, pages="",
        dtype=str(problem.dtype).removeprefix("torch."), layout=problem.layout, precision=problem.precision, ms=ours,
        copy=4.2e12, arithmetic=780e12, arithmetic_name="bfloat16 matrix product", products=True, plan="cuda (default)",
        ratio_to_best_peer=None, **fields,
    )  # fmt: skip
    return [own, *(replace(own, provider=name, plan="", rejected="", ms=ms) for name, ms in peers.items())]


@pytest.fixture
def file(scripts: dict[str, ModuleType], tmp_path: Path) -> Path:
    """The first two problems of one model in one form, and one of another, which went to PyTorch."""
    items = scripts["grid"].items()
    v1 = [item for item in items if item.workload == "mobilenet_v1@64"][:2]
    conformer = next(item for item in items if item.workload == "conformer@32")
    eager = {"plan": "eager (default)", "rejected": "cuda: computes no silu; portable: not measured"}
    rows = [
        *rows_of(conformer, 1.0, {"eager": 0.97}),
        *rows_of(v1[0], 1.0, {"eager": 4.0, "eager_channels_last": 2.0}),
        *rows_of(v1[1], 1.0, {"eager": 8.0, "compile": 8.0}, error=1e-6, error_budget=1e-5),
    ]
    rows[0] = replace(rows[0], **eager)
    report.write_csv(rows, tmp_path / "cuda-grid.csv")
    return tmp_path / "cuda-grid.csv"


def test_the_goals_of_the_grid_are_figures_of_the_rows(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["grid_tables"]
    problems = tables.load(file)
    goals = {goal.what: goal for goal in tables.goals(problems)}
    assert goals["best peer / ours, geometric mean"].found == pytest.approx((2 * 8 * 0.97) ** (1 / 3))
    assert goals["best peer / ours, geometric mean"].is_reached
    assert goals["best peer / ours, least"].found == pytest.approx(0.97)
    assert goals["eager in the same layout / ours, least"].found == pytest.approx(0.97)
    assert not goals["eager in the same layout / ours, least"].is_reached
    assert goals["error / allowed, largest"].found == pytest.approx(0.5)
    assert tables.extent(problems) == "3 of 365 rows, 1 of 40 with torch.compile among the peers."


def test_each_model_has_a_row_at_each_batch_in_each_form(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["grid_tables"]
    lines = tables.model_table(tables.load(file)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2:] == [
        "| mobilenet_v1 | 64 | float32 high | channels first | 2 | 4.00 | 4.00 | 2.00 | 0 |",
        "| conformer | 32 | float32 high | channels first | 1 | 0.97 | 0.97 | 0.97 | 1 |",
        "| **all** |  |  |  | 3 | 2.49 | 0.97 | 0.97 | 1 |",
    ]


def test_rows_that_went_to_pytorch_are_named_with_the_reason(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["grid_tables"]
    problems = tables.load(file)
    text = tables.eager_table(problems)
    assert text.startswith("1 of 3 rows.\n\n| workload |")
    assert text.splitlines()[-1] == (
        "| conformer@32 | (32, 144, 400) -> 144, 31, residual | float32 high, channels first | "
        "cuda: computes no silu; portable: not measured | 1 | 0.97 |"
    )
    assert tables.eager_table(problems[:2]) == "0 of 2 rows."


def test_a_wrong_result_counts_as_nothing_gained(scripts: dict[str, ModuleType], file: Path) -> None:
    tables = scripts["grid_tables"]
    first, *others = tables.load(file)
    wrong = (replace(first.rows[0], ms=None, error=1.0, error_budget=0.0), *first.rows[1:])
    goals = {goal.what: goal.found for goal in tables.goals([replace(first, rows=wrong), *others])}
    assert goals["best peer / ours, geometric mean"] == goals["best peer / ours, least"] == 0.0
    assert goals["error / allowed, largest"] == float("inf")


def test_the_page_has_the_grid_once_it_was_measured(
    scripts: dict[str, ModuleType], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = scripts["tables"]
    read_from(file.parent, tables, monkeypatch)
    page = tables.wanted_files()[tables.PERFORMANCE]
    assert "3 of 365 rows" in page
    assert "copy 4200 GB/s, bfloat16 matrix product 780 TFLOP/s" in page
    assert "| conformer | 32 | float32 high |" in page
    file.unlink()
    page = tables.wanted_files()[tables.PERFORMANCE]
    assert "of 365 rows" not in page
    assert f"## By model\n\n<!-- grid-models: written by benchmarks/tables.py -->\n{tables.NOT_YET}\n" in page
