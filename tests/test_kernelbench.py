"""The KernelBench examples: models that their benchmarks would accept, and an evaluator that notices wrong ones."""

import inspect
import re
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scripts import ROOT, imported
from torch import nn

FOLDER = ROOT / "examples" / "kernelbench"
MODELS = {"level1_86.py": nn.Conv2d, "level2_popcorn_7.py": nn.Conv1d}
QUICK = ["--small", "--device", "cpu", "--rounds", "1"]


@pytest.fixture
def evaluate() -> Iterator[ModuleType]:
    with imported("examples/kernelbench", "evaluate") as found:
        yield found["evaluate"]


def use_model(evaluate: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path, text: str) -> list[str]:
    """The words that evaluate a ModelNew with this text on the first problem."""
    file.write_text(text)
    name = "level1/86"
    monkeypatch.setitem(evaluate.PROBLEMS, name, replace(evaluate.PROBLEMS[name], file=str(file)))
    return [name, *QUICK]


CHANGED = """
import runpy
class ModelNew(runpy.run_path({original!r})["ModelNew"]):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        {first}
    def forward(self, x):
        return super().forward(x){behind}
"""


def changed(first: str = "...", behind: str = "") -> str:
    return CHANGED.format(original=str(FOLDER / "level1_86.py"), first=first, behind=behind)


@pytest.mark.parametrize("name", MODELS)
def test_a_source_has_nothing_that_the_benchmarks_forbid(name: str) -> None:
    assert not re.search(r"\btry\s*:|\bexcept\b|\bpass\b", (FOLDER / name).read_text())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("name", "convolution"), MODELS.items())
def test_a_model_has_the_benchmarks_signature_and_parameters(name: str, convolution: type, bias: bool) -> None:
    new = runpy.run_path(str(FOLDER / name))["ModelNew"]
    options = {"stride": 1, "padding": 0, **({"dilation": 1} if convolution is nn.Conv2d else {}), "bias": False}
    parameters = inspect.signature(new).parameters.values()
    assert [p.name for p in parameters] == ["in_channels", "out_channels", "kernel_size", *options]
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == options
    torch.manual_seed(3)
    right = nn.ModuleDict(
        {"depthwise": convolution(6, 6, 3, groups=6, bias=bias), "pointwise": convolution(6, 9, 1, bias=bias)}
    )
    torch.manual_seed(3)
    found = new(6, 9, 3, bias=bias)
    assert list(found.state_dict()) == list(right.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), right.parameters(), strict=True))
    right.load_state_dict(found.state_dict(), strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_both_models_are_right(evaluate: ModuleType, capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    assert evaluate.main([*QUICK, "--dtype", dtype]) == 0
    printed = capsys.readouterr().out
    assert printed.count("all trials right") == printed.count("times as fast") == 2
    assert "in TF32" not in printed


def test_a_wrong_result_ends_with_1(
    evaluate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(use_model(evaluate, monkeypatch, tmp_path / "same.py", changed())) == 0
    assert evaluate.main(use_model(evaluate, monkeypatch, tmp_path / "off.py", changed(behind=" * 1.01"))) == 1
    assert evaluate.main(use_model(evaluate, monkeypatch, tmp_path / "cut.py", changed(behind="[1:]"))) == 1
    assert capsys.readouterr().out.count("WRONG: up to") == 2


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ("self.pointwise.weight.data *= 2", "pointwise.weight begins with other values"),
        ("self.step = self.__dict__['_modules'].pop('pointwise')", "pointwise.weight is called step.weight"),
    ],
)
def test_other_parameters_are_an_error(
    evaluate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str, error: str
) -> None:
    with pytest.raises(AssertionError, match=error):
        evaluate.main(use_model(evaluate, monkeypatch, tmp_path / "other.py", changed(first)))


def test_sizes_are_drawn_anew_where_the_benchmark_does(evaluate: ModuleType) -> None:
    fixed, drawn = (evaluate.PROBLEMS[name] for name in ("level1/86", "level2/popcorn/7"))
    assert {evaluate.drawn(fixed, fixed.small, seed).shape for seed in range(5)} == {fixed.small}
    shapes = [evaluate.drawn(drawn, drawn.small, seed).shape for seed in range(20)]
    assert len(set(shapes)) > 10
    assert {shape[1] for shape in shapes} == {256}
    assert all(61 <= shape[2] <= 82 for shape in shapes)


def test_in_float32_on_a_gpu_the_benchmarks_own_check_is_reported(
    evaluate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "is_float32_exact", lambda _: False)
    assert evaluate.main(["level2/popcorn/7", *QUICK]) == 0
    text = "against a reference in TF32 0.00% of ModelNew's elements are outside, and 0.00% of PyTorch's without TF32"
    assert capsys.readouterr().out.count(text) == evaluate.TRIALS


def test_an_unknown_problem_is_named(evaluate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["level9/1"])
    assert "unknown: level9/1; expected some of level1/86, level2/popcorn/7" in capsys.readouterr().err
