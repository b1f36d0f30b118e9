"""The benchmark: budgets, the check before the time, arithmetic, files, wrong calls, and a run with all peers."""

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from rows import ROW
from typer.testing import CliRunner, Result

from sepconv import reference
from sepconv.bench import baselines, data, measure, onnx_peers, pages, report, roofline, timing
from sepconv.bench.budget import errors
from sepconv.bench.command import bench
from sepconv.bench.roofline import Ceilings
from sepconv.bench.workloads import WORKLOADS, Workload
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Activation, Epilogue

CPU = torch.device("cpu")
CEILINGS = Ceilings(copy=1e9, arithmetic=1e12, arithmetic_name="a float32 matrix product", products=False)
app = typer.Typer()
app.command()(bench)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's switch as it was before the test; the command sets it."""
    monkeypatch.setenv(pages.SWITCH, "0")


class FixedGauge:
    """A gauge that measures nothing."""

    def __init__(self, *_: object) -> None:
        self.timer = timing.Timer(CPU)

    def sample(self) -> Ceilings:
        return CEILINGS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that need no measuring."""
    monkeypatch.setattr(roofline, "Gauge", FixedGauge)


def call(*words: str) -> Result:
    """The command with these words, on the CPU where they do not say."""
    device = [] if "--device" in words else ["--device", "cpu"]
    return CliRunner().invoke(app, [*words, *device])


class Scaled(baselines.Eager):
    """A peer whose result, or whose last gradient in training, is off by a factor; it counts its calls."""

    name = "scaled"
    version = "scaled 1.0"

    def __init__(self, factor: float = 1.001) -> None:
        self.factor, self.calls = factor, 0

    def prepare(self, case):
        right = super().prepare(case)

        def run():
            self.calls += 1
            *others, last = right()
            return (*others, last * self.factor)

        return run


class Raising(Scaled):
    name = "raising"

    def prepare(self, case):
        raise RuntimeError("no such kernel\nand a second line")


def request(*peers, ours=None, training=False, workload="tiny") -> measure.Request:
    found = Workload(workload, WORKLOADS[workload])
    return measure.Request((found,), CPU, training, ours or baselines.OURS, tuple(peers), 2, 0)


def measured(asked: measure.Request, index: int = 0) -> measure.Measured:
    workload = asked.workloads[0]
    return measure.measure(asked, workload, workload.entries[index], FixedGauge(), lambda: None)


# --- the check before the time


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("training", [False, True])
def test_a_wrong_result_is_named_and_not_timed(training: bool) -> None:
    peer = Scaled()
    found = measured(request(peer, baselines.Eager(), training=training))
    wrong = next(row for row in found.rows if row.provider == "scaled")
    assert peer.calls == 1
    assert (wrong.ms, wrong.ms_p20, wrong.ms_p80, wrong.efficiency) == (None,) * 4
    assert wrong.error > wrong.error_budget > 0
    assert not wrong.is_right
    place = "gradient of residual" if training else "result"
    assert len(found.wrong) == 1
    assert f"scaled is WRONG: error 0.001 in the {place}" in found.wrong[0]
    assert all(row.ms for row in found.rows if row.provider != "scaled")


@pytest.mark.usefixtures("small")
def test_a_wrong_result_ends_the_command_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(baselines.PEERS, "scaled", Scaled())
    out = call("tiny", "--peers", "scaled", "--rounds", "1", "--csv", str(tmp_path / "rows.csv"))
    assert out.exit_code == 1
    assert "WRONG" in out.stdout
    rows = report.read_csv(tmp_path / "rows.csv")
    assert [row.is_right for row in rows] == [True, False] * len(WORKLOADS["tiny"])
    assert all(row.ratio_to_best_peer is None for row in rows)


@pytest.mark.usefixtures("small")
def test_a_peer_that_raises_is_skipped_and_ours_is_wrong() -> None:
    found = measured(request(Raising()))
    assert found.skipped == ("raising is skipped: it raised RuntimeError: no such kernel",)
    assert [row.provider for row in found.rows] == ["sepconv"]
    assert not found.wrong
    found = measured(request(baselines.Eager(), ours=Raising()))
    assert "raising is WRONG: error inf in the call, which raised RuntimeError: no such kernel," in found.wrong[0]
    assert found.rows[0].plan == ""


@pytest.mark.usefixtures("small")
def test_missing_gradients_are_wrong() -> None:
    class Forgetful(Scaled):
        def prepare(self, case):
            right = baselines.Eager().prepare(case)
            return lambda: right()[:1]

    assert "number of results, 1 for 7" in measured(request(Forgetful(), training=True)).wrong[0]


def test_no_gradient_hangs_on_a_rounding_at_a_kink() -> None:
    """With ReLU after both steps, float32 and float64 agree on which elements pass: exactly before, by a gap after."""
    problem = replace(WORKLOADS["mobilenet_v1"][5].problem, in_channels=64, out_channels=64)
    case = data.make(problem, CPU, training=True)
    middle = case.options._replace(depthwise_activation="identity", pointwise_activation="identity")
    one = torch.eye(64).view(64, 64, 1, 1)
    operands = case.operands._replace(pointwise_weight=one, pointwise_bias=None)
    exact = reference.forward(operands, middle)
    assert torch.equal(exact.double(), reference.forward(data.cast(operands, torch.float64), middle))
    after = reference.forward(case.operands, case.options._replace(pointwise_activation="identity"))
    assert case.grad is not None
    assert after[case.grad != 0].abs().min() > 0.03
    assert (case.grad != 0).float().mean() > 0.9


# --- arithmetic


def test_floors() -> None:
    assert roofline.floor_ms(10**9, 10**9, "ieee", torch.float32, CEILINGS) == 1000
    assert roofline.floor_ms(1, 10**12, "ieee", torch.float32, CEILINGS) == 1000
    cuda = replace(CEILINGS, products=True)
    for precision, factor in (("ieee", 6), ("high", 3), ("tf32", 2)):
        assert roofline.floor_ms(1, 10**12, precision, torch.float32, cuda) == 1000 * factor
    assert roofline.floor_ms(1, 10**12, "ieee", torch.bfloat16, cuda) == 1000


def test_training_counts_forward_and_backward() -> None:
    problem = WORKLOADS["A/16"][0].problem
    assert roofline.work(problem, training=False) == (problem.bytes, problem.flops)
    backward = replace(problem, direction="backward")
    assert roofline.work(problem, training=True) == (problem.bytes + backward.bytes, 3 * problem.flops)


def test_times_are_median_and_percentiles() -> None:
    assert timing.summary([5.0, 1.0, 2.0, 4.0, 3.0, 6.0]) == timing.Times(3.5, 2.0, 5.0)
    assert timing.summary([2.0]) == timing.Times(2.0, 2.0, 2.0)


def test_providers_are_called_in_turn_each_after_a_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS_BEFORE", 0.0)
    called: list[str] = []
    timer = timing.Timer(CPU)
    functions = {name: (lambda n=name: called.append(n)) for name in "ab"}
    found = timer.in_turn(functions, 3, lambda: called.append("|"))
    warm = ["a"] * timing.WARM_UPS + ["b"] * timing.WARM_UPS
    assert called == [*warm, *"aabb|", *"bbaa|", *"aabb|"], "each round begins with another one"
    assert all(times.p20 <= times.median <= times.p80 for times in found.values())


def test_a_short_call_is_timed_after_many_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(timing, "SECONDS_BEFORE", 4.5)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    called: list[str] = []
    assert timing.Timer(CPU).once(lambda: called.append("call")) == 1e3
    assert len(called) == 6


@pytest.mark.usefixtures("small")
def test_efficiency_and_ratio_on_fixed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = {"sepconv": 3.0, "eager": 6.0, "scaled": 4.0}
    monkeypatch.setattr(
        timing.Timer, "in_turn", lambda _, calls, *__: {name: timing.Times(fixed[name], 1.0, 9.0) for name in calls}
    )
    rows = measured(request(baselines.Eager(), Scaled(1.0))).rows
    assert [row.provider for row in rows] == ["sepconv", "eager", "scaled"]
    assert [row.ratio_to_best_peer for row in rows] == [0.75, None, None]
    assert [row.efficiency for row in rows] == [row.floor_ms / fixed[row.provider] for row in rows]
    assert rows[0].floor_ms == 1e3 * max(rows[0].bytes / 1e9, rows[0].flops / 1e12)
    assert rows[0].plan
    assert [row.versions.split("; ")[-1] for row in rows][1:] == [f"torch {torch.__version__}", "scaled 1.0"]


# --- files


BAD = replace(
    ROW, provider="eager", plan="", ms=None, ms_p20=None, ms_p80=None, efficiency=None, error=math.inf,
    ratio_to_best_peer=None,
)  # fmt: skip


def test_csv_and_json_give_the_rows_back(tmp_path: Path) -> None:
    rows = [ROW, BAD, replace(ROW, products=True)]
    report.write_csv(rows, tmp_path / "new" / "rows.csv")
    assert report.read_csv(tmp_path / "new" / "rows.csv") == rows
    assert (tmp_path / "new" / "rows.csv").read_text().splitlines()[0] == ",".join(report.FIELDS)
    report.write_json(rows, tmp_path / "rows.json")
    assert report.read_json(tmp_path / "rows.json") == rows
    assert "Infinity" not in (tmp_path / "rows.json").read_text()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    report.write_csv([ROW], path)

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(report.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        report.write_csv([ROW, BAD], path)
    assert report.read_csv(path) == [ROW]
    assert list(tmp_path.iterdir()) == [path]


def test_new_rows_take_the_place_of_old_ones_about_the_same() -> None:
    newer, others = (
        replace(ROW, ms=7.0),
        [replace(ROW, workload="B"), replace(ROW, device="y"), replace(ROW, pages="small")],
    )
    assert report.merged([ROW, BAD], [newer, *others]) == [newer, BAD, *others]


def test_the_name_of_a_result_file() -> None:
    path = report.default_path(CPU)
    assert path.parent == Path("benchmarks/results")
    assert path.name.endswith(f"-torch{torch.__version__}-sepconv0.1.0.csv")
    assert not set(path.name) & set(" ()/")


@pytest.mark.usefixtures("small")
def test_save_writes_there_and_keeps_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = report.default_path(CPU)
    report.write_csv([ROW], path)
    assert call("tiny", "--peers", "none", "--rounds", "1", "--save").exit_code == 0
    rows = report.read_csv(path)
    assert rows[0] == ROW
    assert len(rows) == 1 + len(WORKLOADS["tiny"])


@pytest.mark.usefixtures("small")
def test_what_could_not_be_written_is_refused_before_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = call("tiny", "--csv", str(tmp_path))
    assert (out.exit_code, out.stdout) == (2, "")
    assert "a folder; expected the name of a file" in out.stderr
    monkeypatch.chdir(tmp_path)
    report.write_at_once(report.default_path(CPU), "other,columns\n1,2\n")
    out = call("tiny", "--save")
    assert (out.exit_code, out.stdout) == (2, "")
    assert "has other columns than workload, problem" in out.stderr


# --- the command


@pytest.mark.usefixtures("small")
def test_all_installed_peers_run_on_small_odd_problems(tmp_path: Path) -> None:
    out = call("tiny", "--rounds", "1", "--json", str(tmp_path / "rows.json"))
    assert out.exit_code == 0, out.output
    lines = out.stdout.splitlines()
    assert lines[1].startswith("copy: 1.0 GB/s; arithmetic: a float32 matrix product")
    assert max(map(len, lines[2:])) <= 100
    assert "eager_channels_last is skipped: it is for 2-D, the problem is 1-D" in out.stderr
    assert "All pairs of a model together" in out.stdout
    rows = report.read_json(tmp_path / "rows.json")
    installed = {"onnxruntime", "openvino"} if onnx_peers._version("onnx") else set()
    installed = {name for name in installed if onnx_peers._version(name)}
    assert {row.provider for row in rows} == {"sepconv", "eager", "eager_channels_last", "compile"} | installed
    assert "eager_channels_first is skipped: the problem is in channels_first itself: that is `eager`" in out.stderr
    assert all(row.is_right and row.ms for row in rows)
    assert all((row.ratio_to_best_peer is None) == (row.provider != "sepconv") for row in rows)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("direction", ["forward", "training"])
def test_every_dtype_and_direction_in_channels_last(dtype: str, direction: str) -> None:
    out = call(
        "tiny", "--dtype", dtype, "--direction", direction, "--layout", CHANNELS_LAST, "--rounds", "1",
        "--peers", "eager,onnxruntime,eager_channels_last",
    )  # fmt: skip
    assert out.exit_code == 0, out.output
    assert "onnxruntime is skipped: it" in out.stderr
    assert "eager_channels_last is skipped: the problem is in channels_last itself" in out.stderr


@pytest.mark.parametrize(("layout", "other"), [(CHANNELS_FIRST, CHANNELS_LAST), (CHANNELS_LAST, CHANNELS_FIRST)])
def test_eager_in_the_other_layout_takes_part(layout: str, other: str) -> None:
    problem = replace(WORKLOADS["tiny"][2].problem, layout=layout)
    own, peer = (baselines.PEERS[f"eager_{name}"] for name in (layout, other))
    assert peer.reasons(problem, CPU, training=False) == []
    assert own.reasons(problem, CPU, training=False) == [f"the problem is in {layout} itself: that is `eager`"]
    assert peer.reasons(WORKLOADS["tiny"][0].problem, CPU, training=False)[0].startswith("it is for 2-D")
    case = data.make(problem, CPU)
    (found,), (right,) = peer.prepare(case)(), baselines.Eager().prepare(case)()
    torch.testing.assert_close(found, right)
    assert found.is_contiguous(memory_format=torch.channels_last) == (other == CHANNELS_LAST)


@pytest.mark.usefixtures("small")
def test_torch_compile_in_training() -> None:
    found = measured(request(baselines.Compile(), baselines.EagerIn(CHANNELS_LAST), training=True), index=3)
    assert [row.provider for row in found.rows] == ["sepconv", "compile", "eager_channels_last"]
    # On some CPUs a peer rounds a little worse than the budget, which comes from eager PyTorch in the same layout.
    assert not [words for words in found.wrong if words.startswith(baselines.OURS.name)]
    assert not found.skipped


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_onnx_peers_compute_every_activation(name: str, activation: str) -> None:
    peer = baselines.PEERS[name]
    problem = WORKLOADS["tiny"][3].problem
    value = Activation(activation, 0.1 if activation == "leaky_relu" else 0.0)
    problem = replace(problem, epilogue=Epilogue(True, value, True, value, True))
    if not onnx_peers._version(name) or not onnx_peers._version("onnx"):
        pytest.skip("; ".join(peer.reasons(problem, CPU, training=False)))
    case = data.make(problem, CPU)
    right = data.right(case)
    peer_errors = [errors(baselines.yardstick(case)[0], right[0])]
    assert measure.check(case, peer.prepare(case)(), right, peer_errors, "ieee").is_right


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_peers, "_version", lambda _: "")
    reasons = baselines.PEERS["openvino"].reasons(WORKLOADS["A"][0].problem, CPU, training=False)
    assert reasons == ["openvino is not installed", "onnx, which builds its model, is not installed"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["mobilenet_v9"],
            "`workload` is 'mobilenet_v9'; expected one of A, B, A/16, B/16, layer56, layer14, mobilenet_v1",
        ),
        (
            ["--peers", "eager,jax"],
            "`peers` has 'jax'; expected all, none, or some of eager, eager_channels_last, "
            "eager_channels_first, compile",
        ),
        (["--dtype", "int8"], "`dtype` has 'int8'; expected all, or some of float64, float32, float16, bfloat16"),
        (["--layout", "nhwc"], "`layout` has 'nhwc'; expected all, or some of channels_first, channels_last"),
        (["--direction", "backward"], "`direction` is 'backward'; expected one of forward, training"),
        (["--precision", "half"], "`precision` has 'half'; expected all, or some of ieee, high, tf32"),
        (["--device", "tpu"], "`device` is 'tpu'; this machine has cpu"),
        (["--device", "cuda:99"], "`device` is 'cuda:99'; this machine has cpu"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_what_is_known(words: list[str], text: str) -> None:
    out = call(*words)
    assert out.exit_code == 2
    assert text in out.stderr
    assert out.stdout == ""


def test_numbers_of_the_options_are_checked() -> None:
    assert call("tiny", "--rounds", "0").exit_code == 2
    assert call("tiny", "--seed", "x").exit_code == 2


@pytest.mark.usefixtures("small")
def test_a_row_is_held_against_the_ceilings_of_its_own_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge, rates = FixedGauge(), iter([7e9, 1e9, 2e9])
    monkeypatch.setattr(gauge, "sample", lambda: replace(CEILINGS, copy=next(rates)))
    asked = request()
    workload = asked.workloads[0]
    (row,) = measure.measure(asked, workload, workload.entries[0], gauge, lambda: None).rows
    assert (row.copy, row.arithmetic, row.arithmetic_name) == (2e9, 1e12, CEILINGS.arithmetic_name)
    assert row.floor_ms == 1e3 * row.bytes / 2e9


@pytest.mark.usefixtures("small")
def test_the_rows_say_in_which_pages_they_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pages, "ask_for", asked.append)
    monkeypatch.setattr(pages, "found", lambda: pages.SMALL)
    for words, note in (([], "huge ones were asked for"), (["--default-allocator"], "")):
        out = call("tiny", "--peers", "none", "--rounds", "1", "--csv", str(tmp_path / "rows.csv"), *words)
        assert out.exit_code == 0
        assert note in out.stderr
        assert "PyTorch's tensors in small pages" in out.stdout
        assert {row.pages for row in report.read_csv(tmp_path / "rows.csv")} == {pages.SMALL}
    assert asked == [pages.HUGE, pages.SMALL]
    monkeypatch.setenv("SEPCONV_KEEP_RESULTS", "0")
    assert pages.described() == "small; new results"
    assert pages.in_words(pages.described()) == "PyTorch's tensors in small pages, sepconv's results in new memory"


def test_a_model_is_summed_as_often_as_it_has_each_problem() -> None:
    rows = [replace(ROW, count=3, ms=2.0), replace(ROW, problem="other", count=1, ms=5.0)]
    table = report.total_table(rows)
    assert table is not None
    assert list(table.renderables[1].columns[3].cells) == ["11.000"]
    assert report.total_table(rows[:1]) is None
    assert report.total_table([rows[0], replace(rows[1], ms=None)]) is None


def test_importing_sepconv_imports_nothing_of_the_benchmark() -> None:
    code = "import sys, sepconv; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unwanted = ("rich", "typer", "onnx", "onnxruntime", "openvino", "sepconv.bench")
    assert not [m for m in out.stdout.split() if m.startswith(unwanted)]
