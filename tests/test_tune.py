"""`sepconv tune`: what it measures, keeps and prints, how it goes on after an interruption, and the fit of the cost model."""

import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from sepconv import cli, ops, settings
from sepconv.backends.cpu import CpuBackend
from sepconv.bench import rig, workloads
from sepconv.device import describe
from sepconv.errors import CompilerError
from sepconv.jit.compilers import find_compiler
from sepconv.tuning import model, records
from sepconv.tuning.config import CpuConfig
from sepconv.tuning.search import STAGES, Outcome

ONE = ("--in", 5, "--out", 7, "--size", "11x6", "--padding", 1, "--bias", "--pointwise-activation", "relu")
CPU = describe(torch.device("cpu"))
ROUNDS = sum(rounds for rounds, _ in STAGES)


def _no_compiler() -> bool:
    try:
        find_compiler()
    except CompilerError:
        return True
    return False


pytestmark = pytest.mark.skipif(_no_compiler(), reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of the records; every setting is the default."""
    monkeypatch.setenv("COLUMNS", "200")
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)
    monkeypatch.setattr(records, "folder", lambda: tmp_path / "tuning")
    ops.forget_plans()
    yield tmp_path / "tuning"
    ops.forget_plans()
    records.forget()


def tune(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli.app, ["tune", "--device", "cpu", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def facts_of(*args: object, code: int = 0) -> dict[str, Any]:
    return json.loads(tune(*args, "--json", code=code).stdout)


def explained() -> str:
    ops.forget_plans()
    result = CliRunner().invoke(cli.app, ["explain", "--device", "cpu", *map(str, ONE)])
    assert result.exit_code == 0, result.output
    return result.stdout


# --- what it measures and keeps


def test_a_tuned_problem_runs_as_measured(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The clock says that the model's last choice is the fastest: the search finds it, and later calls use it."""
    seen: list[CpuConfig | None] = []

    def run(self: rig.Rig, choice: CpuConfig | None) -> float:
        seen.append(choice)
        self._result(choice)
        return 1.0 if choice == wanted and self._case.problem == problem else 3.0

    assert "(chosen by model)" in explained()
    problem = workloads.WORKLOADS["tiny"][3].problem
    wanted = model.ranked(problem, CPU)[-1]
    monkeypatch.setattr(rig.Rig, "run", run)
    text = " ".join(tune("--workload", "tiny").stdout.split())
    assert {*model.ranked(problem, CPU), None} <= {*seen}
    found = records.lookup(problem, CPU)
    assert found is not None
    assert (found.config, found.ms, found.model_ms, found.eager_ms) == (wanted, 1.0, 3.0, 3.0)
    assert "200.0 %" in text
    assert "1.316 times as long as the best: the geometric mean of 4 problems" in text
    assert str(next(folder.glob("*.json"))) in "".join(text.split())


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tune(*ONE).stdout
    for word in (
        "1x5x11x6 -> 7",
        "model's choice",
        "best",
        "PyTorch ms",
        "gain",
        "times as long as the best",
        str(CPU),
    ):
        assert word in text
    monkeypatch.setenv("COLUMNS", "80")
    text = tune(*ONE).stdout
    assert not [line for line in text.splitlines() if len(line.rstrip()) > 80 and " " in line.strip()]
    assert "record" in explained()


def test_json_has_every_time(folder: Path) -> None:
    facts = facts_of(*ONE)
    assert facts["torch"] == torch.__version__
    assert facts["file"] == str(next(folder.glob("*.json")))
    assert (facts["skipped"], facts["wrong"], facts["interrupted"]) == ([], [], False)
    (problem,) = facts["problems"]
    assert problem["measured"]
    assert problem["problem"]["out_channels"] == 7
    assert len(problem["candidates"]) > 1
    assert any(len(timed["times"]) == ROUNDS for timed in problem["candidates"])
    assert all(ms > 0 for timed in (*problem["candidates"], problem["eager"]) for ms in timed["times"])
    assert problem["model_ms"] == problem["candidates"][0]["ms"]
    assert {"config": problem["config"], "ms": problem["ms"]} in [
        {"config": timed["config"], "ms": timed["ms"]} for timed in problem["candidates"]
    ]
    assert facts["model_over_best"] == pytest.approx(problem["model_ms"] / problem["ms"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_dtypes_and_layouts(dtype: str, layout: str) -> None:
    (problem,) = facts_of(*ONE, "--dtype", dtype, "--layout", layout)["problems"]
    assert (problem["problem"]["dtype"], problem["problem"]["layout"]) == (dtype, layout)
    assert problem["ms"] > 0


def test_a_workload_in_a_dtype_and_layout() -> None:
    words = ("--workload", "tiny@4", "--dtype", "bfloat16", "--layout", "channels_last")
    problems = [problem["problem"] for problem in facts_of(*words)["problems"]]
    assert {(p["batch"], p["dtype"], p["layout"]) for p in problems} == {(4, "bfloat16", "channels_last")}
    assert len(problems) == 4


# --- it goes on where it ended


def refuse(*_: object) -> Outcome:
    raise AssertionError("measured again")


def test_what_has_a_record_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts_of(*ONE)["problems"][0]
    with monkeypatch.context() as patch:
        patch.setattr(rig, "search", refuse)
        after = facts_of(*ONE)["problems"][0]
        assert "1 of 1 have a record already; --again" in tune(*ONE).stdout
    assert [after[name] for name in ("config", "ms", "model_ms", "eager_ms")] == [
        before[name] for name in ("config", "ms", "model_ms", "eager_ms")
    ]
    assert (after["measured"], after["candidates"]) == (False, [])
    assert facts_of(*ONE, "--again")["problems"][0]["measured"]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_run_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    search, count = rig.search, iter(range(9))

    def interrupted(*args: Any) -> Outcome:
        if next(count) == 2:
            raise KeyboardInterrupt
        return search(*args)

    with monkeypatch.context() as patch:
        patch.setattr(rig, "search", interrupted)
        result = tune("--workload", "tiny", *["--json"] * as_json, code=130)
    assert "interrupted: 2 of 4 done; the same command goes on from there" in result.stderr
    if as_json:
        facts = json.loads(result.stdout)
        assert facts["interrupted"]
        assert len(facts["problems"]) == 2
    else:
        assert "the geometric mean of 2 problems" in " ".join(result.stdout.split())
    measured = [problem["measured"] for problem in facts_of("--workload", "tiny")["problems"]]
    assert measured == [False, False, True, True]


def test_an_interruption_before_the_first_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(rig, "search", interrupted)
    assert "interrupted: 0 of 1 done" in tune(*ONE, code=130).stderr
    assert facts_of(*ONE, code=130)["model_over_best"] is None


# --- the gate


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Sequence[CpuConfig] | None, by: float) -> None:
    """The kernel's results with these configurations (None: with all) are off by a share of their largest value."""
    forward = CpuBackend.forward

    def spoiled(self: CpuBackend, problem: Any, config: Any, *rest: Any) -> torch.Tensor:
        y = forward(self, problem, config, *rest)
        if wrong is None or config in wrong:
            y.flatten()[0] += by * y.abs().max()
        return y

    monkeypatch.setattr(CpuBackend, "forward", spoiled)


def test_a_wrong_candidate_is_told_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(*ONE)
    configs = [CpuConfig(**timed["config"]) for timed in facts["problems"][0]["candidates"]]
    spoil(monkeypatch, configs[1:], by=1e-3)
    facts = facts_of(*ONE, "--again", code=1)
    assert len(facts["wrong"]) == len(configs) - 1
    assert [CpuConfig(**timed["config"]) for timed in facts["problems"][0]["candidates"]] == configs[:1]
    assert CpuConfig(**facts["problems"][0]["config"]) == configs[0]
    assert "is WRONG for" in tune(*ONE, "--again", code=1).stderr


def test_where_all_are_wrong_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, None, by=1e-3)
    assert "WRONG" in tune(*ONE, code=1).stdout
    facts = facts_of(*ONE, code=1)
    assert facts["model_over_best"] is None
    assert facts["problems"][0]["config"] is None
    assert "(chosen by model)" in explained()


def test_a_place_that_is_not_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, None, by=math.nan)
    assert facts_of(*ONE, code=1)["wrong"]


def test_a_rounding_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, None, by=2.0**-23)
    assert facts_of(*ONE)["wrong"] == []


# --- wrong calls, and what cannot be tuned


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--workload", "nothing"), "`workload` is 'nothing'; expected one of A, B"),
        (("--workload", "tiny", "--in", 3), "`--workload` is tiny, and the sizes of one convolution are given too"),
        (("--workload", "tiny", "--batch", 3), "the sizes of one convolution are given too"),
        (("--kernel", 5), "`--in` is missing; expected `--in`, `--out` and `--size`"),
        (("--in", 3, "--out", 4), "`--size` is missing"),
        ((*ONE, "--dtype", "int8"), "`--dtype` is 'int8'"),
        ((*ONE, "--layout", "nchw"), "`--layout` is 'nchw'"),
        ((*ONE, "--batch", 0), "nothing here can be tuned. 0x5x11x6 -> 7, kernel 3x3 is skipped: its result is empty"),
        ((*ONE, "--dtype", "float64"), "cpu computes float32, float16 and bfloat16, not float64"),
        (("--in", 3, "--out", 4, "--size", 9, "--rank", 3), "cpu computes 1-D and 2-D, not 3-D"),
    ],
)
def test_a_wrong_call(args: tuple[object, ...], words: str, folder: Path) -> None:
    assert words in tune(*args, code=2).stderr
    assert all(json.loads(file.read_text())["records"] == [] for file in folder.glob("*.json"))


def test_records_that_cannot_be_kept_end_the_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(rig, "search", refuse)
    folder.write_text("")
    text = tune(*ONE, code=2).stderr
    assert "cannot be written" in text
    assert f"Set `{settings.CACHE_DIR.name}`" in text


def test_one_problem_that_cannot_be_tuned_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = workloads.WORKLOADS["tiny"]
    unable = replace(entries[0], problem=replace(entries[0].problem, in_channels=2**24))
    monkeypatch.setitem(workloads.WORKLOADS, "mixed", (unable, entries[3]))
    result = tune("--workload", "mixed")
    assert "is skipped: cpu one row of the output takes more scratch memory" in result.stderr
    assert "3x7x13x6 -> 17" in result.stdout


def test_a_kernel_that_does_not_compile_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = CpuBackend.forward

    def failing(self: CpuBackend, problem: Any, *rest: Any) -> torch.Tensor:
        if problem.rank == 1:
            raise CompilerError("no luck")
        return forward(self, problem, *rest)

    monkeypatch.setattr(CpuBackend, "forward", failing)
    result = tune("--workload", "tiny", "--json")
    facts = json.loads(result.stdout)
    assert [len(problem["problem"]["in_size"]) for problem in facts["problems"]] == [2, 2]
    assert [text.endswith("is skipped: no luck") for text in facts["skipped"]] == [True, True]
    assert result.stderr.count("no luck") == 2


def test_a_problem_that_pytorch_runs_faster_can_be_tuned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.Rig, "run", lambda _, choice: 1.0 if choice is None else 2.0)
    facts_of(*ONE)
    assert "PyTorch's own kernels measured faster (1 ms, 2 ms)" in explained()
    monkeypatch.setattr(rig.Rig, "run", lambda _, choice: 2.0 if choice is None else 1.0)
    facts_of(*ONE, "--again")
    assert "backend cpu" in " ".join(explained().split())


# --- the fit of the cost model


@pytest.fixture(scope="module")
def model_fit() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "model_fit.py"
    spec = importlib.util.spec_from_file_location("model_fit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_fit"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_fit_reads_what_tune_prints(
    model_fit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranked = model.ranked(workloads.WORKLOADS["tiny"][3].problem, CPU)
    monkeypatch.setattr(rig.Rig, "run", lambda _, choice: 1.0 + (choice in ranked[:2]))
    (tmp_path / "times.json").write_text(tune("--workload", "tiny", "--json").stdout)
    measured = model_fit.read(tmp_path / "times.json")
    assert [one.problem for one in measured] == [entry.problem for entry in workloads.WORKLOADS["tiny"]]
    assert {one.device for one in measured} == {CPU}
    assert measured[3].choice(model.CONSTANTS) == ranked[0]
    assert (measured[3].loss(model.CONSTANTS), measured[3].rank(model.CONSTANTS)) == (2.0, len(ranked) - 1)
    assert model_fit.main([str(tmp_path / "times.json")]) == 0
    printed = capsys.readouterr().out
    assert f"3x7x13x6 -> 17, kernel 3x3: 2.000 times the best, rank {len(ranked) - 1} of {len(ranked)}" in printed
    assert "1.1892 times the best in the geometric mean of 4 problems" in printed
    (tmp_path / "times.json").write_text(tune("--workload", "tiny", "--json").stdout)
    assert model_fit.main([str(tmp_path / "times.json")]) == 1, "nothing was measured in the second run"


def test_the_fit_finds_constants_that_explain_the_times(
    model_fit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times out of the model itself, with other constants: those in use choose badly, those found nearly right."""
    device = replace(CPU, units=2, isa="avx512", cache=1 << 21)
    truth = replace(model.CONSTANTS, fits=0.05)
    measured = []
    for entry in (*workloads.WORKLOADS["mobilenet_v1"], *workloads.WORKLOADS["quartznet5x5"]):
        ranked = model.ranked(entry.problem, device)
        times = {config: model.clocks(entry.problem, config, device, truth) for config in ranked}
        measured.append(model_fit.Measured("one", entry.problem, device, times))
    before = model_fit.mean_loss(measured, model.CONSTANTS)
    assert before > 1.15
    assert model_fit.mean_loss(measured, truth) == 1.0
    found = model_fit.search(measured, 300, seed=0)
    after = model_fit.mean_loss(measured, found)
    assert after < 1 + (before - 1) / 2
    assert found == model_fit.search(measured, 300, seed=0), "the same seed, the same constants"
    monkeypatch.setattr(model_fit, "read", lambda _: measured)
    assert model_fit.main(["times.json", "--search", "300"]) == 0
    printed = capsys.readouterr().out
    assert f"{after:.4f} times the best" in printed
    assert f"fits: float = {found.fits:.4g}" in printed
