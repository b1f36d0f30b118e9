"""The command line: what each command prints, its JSON, its exit codes and its texts for a wrong call."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import sepconv
from sepconv import cli, doctor, settings
from sepconv.bench import loading, memory, timing, trial
from sepconv.bench.timing import Times

EXPLAIN = ["explain", "--in", "8", "--out", "16", "--size", "12"]
MODEL = """
import torch
from torch import nn
import neighbour

def pair():
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU()
    )

def sequence():
    return nn.Sequential(nn.Conv1d(4, 4, 5, padding=2, groups=4), nn.Conv1d(4, 6, 1))

def with_input():
    return pair(), torch.randn(2, 4, 9, 7)

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = pair()

    def forward(self, x):
        y = self.net(x)
        return {"y": y, "more": (y.mean((2, 3)), [y.argmax(1)])}

def overflow():
    class Overflow(nn.Module):
        def forward(self, x):
            return x * 1e30 * 1e30 * 1e-30 * 1e-30
    return Overflow()

def silent():
    class Silent(nn.Module):
        def forward(self, x):
            return 3
    return Silent()

def number():
    return 3

def fails():
    raise RuntimeError("no luck")

def takes(argument):
    return argument
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A file with functions that make models, beside a module that it imports."""
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "models.py").write_text(MODEL)
    return tmp_path / "models.py"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)


def call(*args: object, code: int = 0) -> str:
    """What a command prints on standard output, or on standard error where a code other than 0 and 1 is expected."""
    result = CliRunner().invoke(cli.app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stderr if code == 2 else result.stdout


def try_fast(source: object, *args: object, code: int = 0) -> str:
    return call("try", source, "--batch", 1, "--size", 16, "--device", "cpu", "--seconds", 0.1, *args, code=code)


def assert_narrow(text: str) -> None:
    long = [line for line in text.splitlines() if len(line.rstrip()) > 80 and " " in line.strip()]
    assert not long


# --- the whole


def test_help_lists_the_commands() -> None:
    text = call("--help")
    assert all(name in text for name in ("doctor", "explain", "try", "bench", "tune"))
    assert call("--version").strip() == sepconv.__version__


def test_import_stays_light() -> None:
    code = "import sepconv, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert "sepconv" in names
    assert not [name for name in names if name.split(".")[0] in ("typer", "rich") or "sepconv.bench" in name]


def test_bench_is_a_command_like_the_others() -> None:
    assert "--csv" in call("bench", "--help")
    assert "`dtype` has 'int8'" in call("bench", "--dtype", "int8", code=2)
    assert "no-such-workload" in call("bench", "no-such-workload", code=2)


# --- doctor


def test_doctor_prints_every_section_within_80_columns() -> None:
    text = call("doctor")
    for word in ("sepconv", "torch", "CUDA", "eager on cpu", "cache", "none found", *[s.name for s in settings.ALL]):
        assert word in text
    assert_narrow(text)


def test_doctor_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path))
    (tmp_path / "entry").write_bytes(b"12345")
    facts = json.loads(call("doctor", "--json"))
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cache"] == {"place": str(tmp_path), "exists": True, "bytes": 5, "problem": None}
    assert {"backend": "eager", "device": "cpu", "runs": True, "reasons": []} in facts["backends"]
    assert [s["name"] for s in facts["settings"]] == [s.name for s in settings.ALL]
    assert facts["problems"] == []


def test_doctor_reports_a_bad_setting_and_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "not a name")
    text = call("doctor", code=1)
    assert "not a name" in text
    assert "`SEPCONV_BACKEND` is 'not a name'" in text


def test_doctor_reports_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_CACHE_DIR", "/proc/sepconv/deep")
    monkeypatch.setattr(doctor.os, "access", lambda path, _: str(path) != "/proc")
    assert "cannot be written" in call("doctor", code=1)


def test_doctor_shows_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'clang version 99-test'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = json.loads(call("doctor", "--json"))["compiler"]
    state = f"clang version 99-test at {compiler}"
    assert facts == {"path": str(compiler), "version": "clang version 99-test", "state": state, "problem": None}
    assert "clang version 99-test" in call("doctor")


def test_doctor_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That the machine has none is a fact; that the one the user names is not there is a problem."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`PATH` has no C++ compiler" in call("doctor")
    monkeypatch.setenv("SEPCONV_CXX", "no-such-compiler")
    assert "`SEPCONV_CXX` is 'no-such-compiler'" in call("doctor", code=1)
    monkeypatch.setenv("SEPCONV_CXX", " ")
    assert json.loads(call("doctor", "--json", code=1))["problems"] == [
        "`SEPCONV_CXX` is ' '; expected the name or the path of a C++ compiler, such as 'g++-13'. Unset it to get the default."
    ]


def test_doctor_says_why_a_backend_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(name="fast", unavailable=lambda _: ["no compiler", "no luck"])
    monkeypatch.setattr(doctor, "all_backends", lambda: (backend,))
    assert "does not run: no compiler; no luck" in call("doctor")


@pytest.mark.parametrize(
    ("built", "core", "bindings", "flavour", "words", "wrong"),
    [
        (None, None, None, None, "built without CUDA", False),
        ("13.0", None, None, None, 'pip install "sepconv[cuda13]"', False),
        ("13.0", "1.2.0", "13.1.0", "cu13", "agree on CUDA 13", False),
        ("12.8", "1.2.0", "13.1.0", "cu13", 'pip install "sepconv[cuda12]"', True),
        ("12.8", "1.2.0", None, None, 'pip install "sepconv[cuda12]"', True),
    ],
)
def test_cuda_of_torch_against_the_extra(
    built: str | None, core: str | None, bindings: str | None, flavour: str | None, words: str, wrong: bool
) -> None:
    facts = doctor._compare_cuda(built, core, bindings)
    assert facts["flavour"] == flavour
    assert words in facts["state"]
    assert bool(facts["problem"]) is wrong


def test_python_m_sepconv() -> None:
    done = subprocess.run([sys.executable, "-m", "sepconv", "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["versions"]["sepconv"] == sepconv.__version__


# --- explain


def test_explain_allocates_nothing_and_fits_80_columns() -> None:
    text = call(
        "explain",
        "--in",
        4096,
        "--out",
        4096,
        "--size",
        "4096x4096",
        "--batch",
        4096,
        "--padding",
        "same",
        "--device",
        "cpu",
    )
    assert "(4096, 4096, 4096x4096) -> 4096" in text
    assert "backend   cpu (chosen by default)" in text
    assert "output pixels" in text
    assert_narrow(text)


def test_explain_equals_the_function() -> None:
    facts = json.loads(
        call(*EXPLAIN, "--stride", "2x1", "--padding", 1, "--bias", "--residual", "--device", "cpu", "--json")
    )
    assert facts["problem"]["output_shape"] == [1, 16, 6, 12]
    assert facts["problem"]["epilogue"]["residual"]
    assert facts["problem"]["epilogue"]["pointwise_bias"]
    assert {"config", "config_source"} <= facts.keys()
    x, depthwise, pointwise = torch.zeros(1, 8, 12, 12), torch.zeros(8, 1, 3, 3), torch.zeros(16, 8, 1, 1)
    text = sepconv.explain(x, depthwise, pointwise, stride=(2, 1), padding=1)
    assert call(*EXPLAIN, "--stride", "2x1", "--padding", 1, "--device", "cpu").split() == text.split()


def test_explain_on_meta_tensors_takes_the_device_of_the_call() -> None:
    tensors = (torch.zeros(1, 8, 12, 12), torch.zeros(8, 1, 3, 3), torch.zeros(16, 8, 1, 1))
    meta = [t.to("meta") for t in tensors]
    assert sepconv.explain(*meta, device="cpu") == sepconv.explain(*tensors)
    assert "meta" in sepconv.explain(*meta)
    with pytest.raises(ValueError, match="`device` is 'abacus'"):
        sepconv.explain(*meta, device="abacus")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_explain_knows_layouts_dtypes_and_activations(rank: int) -> None:
    words = [
        "--layout",
        "channels_last",
        "--dtype",
        "bfloat16",
        "--depth-multiplier",
        2,
        "--dilation",
        2,
        "--device",
        "cpu",
    ]
    activations = ["--depthwise-activation", "leaky_relu:0.2", "--pointwise-activation", "gelu:tanh"]
    facts = json.loads(call(*EXPLAIN, "--rank", rank, *words, *activations, "--json"))["problem"]
    assert (facts["layout"], facts["dtype"], facts["depth_multiplier"]) == ("channels_last", "bfloat16", 2)
    assert facts["in_size"] == [12] * rank
    assert facts["epilogue"]["depthwise_activation"] == "leaky_relu(0.2)"
    assert facts["epilogue"]["pointwise_activation"] == "gelu_tanh"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--size", "12x12x12", "`--size` is '12x12x12', with 3 numbers; expected 1 or 2"),
        ("--size", "big", "`--size` is 'big'; expected whole numbers"),
        ("--kernel", "15", "`x` has 12 elements"),
        ("--kernel", "0", "a kernel of 0"),
        ("--kernel", "-3", "`--kernel` is '-3'"),
        ("--size", "9" * 30, "expected one whose bytes PyTorch"),
        ("--size", "9" * 15, "expected one whose bytes PyTorch"),
        ("--stride", "0", "`stride` is (0, 0)"),
        ("--padding", "some", "`padding` is 'some'"),
        ("--dtype", "int8", "`--dtype` is 'int8'; expected one of float64, float32"),
        ("--layout", "nchw", "`--layout` is 'nchw'; expected one of channels_first, channels_last"),
        ("--precision", "low", "`precision` is 'low'"),
        ("--depthwise-activation", "swush", "`depthwise_activation` is 'swush'"),
        ("--pointwise-activation", "relu:3", "`pointwise_activation` is ('relu', 3.0)"),
        ("--device", "abacus", "`device` is 'abacus'"),
        ("--rank", "4", "--rank"),
    ],
)
def test_explain_refuses_a_wrong_call(option: str, value: str, words: str) -> None:
    text = call(*EXPLAIN, option, value, code=2)
    assert words in text
    assert "Traceback" not in text


def test_explain_needs_the_sizes() -> None:
    assert "`--out` is missing; expected `--in`, `--out` and `--size`" in call("explain", "--in", 8, code=2)


def test_a_device_that_is_not_here() -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    text = call(*EXPLAIN, "--device", "cuda", code=2)
    assert "`device` is 'cuda'" in text
    assert "sepconv doctor" in text


# --- try


def test_try_prints_the_report_errors_time_and_memory(models: Path) -> None:
    text = try_fast(f"{models}:pair")
    for word in (
        "1x4x16x16 float32",
        "max|e| / max|r|",
        "norm(e) / norm(r)",
        "allowed",
        "time, median of",
        "original in channels_last",
        "times as fast as the original in the faster memory format",
        "check passed",
    ):
        assert word in text
    assert_narrow(text)


def test_try_json(models: Path, tmp_path: Path) -> None:
    facts = json.loads(try_fast(f"{models}:pair", "--json", "-"))
    assert facts["ok"] is True
    assert facts["inputs"] == [[1, 4, 16, 16]]
    assert facts["time_ms"]["rounds"] >= 5
    times = facts["time_ms"]
    faster = min(times["original"]["median"], times["other"]["median"])
    assert facts["speedup"] == pytest.approx(faster / times["fused"]["median"])
    assert set(facts["memory"]) == {"original_bytes", "fused_bytes", "method"}
    assert facts["report"]
    try_fast(f"{models}:pair", "--check-only", "--json", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["time_ms"] is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_try_in_every_dtype_and_layout(models: Path, dtype: str, layout: str) -> None:
    words = ["--dtype", dtype, "--layout", layout, "--check-only", "--json", "-"]
    facts = json.loads(try_fast(f"{models}:pair", *words))
    assert facts["ok"], facts["checks"]
    assert (facts["dtype"], facts["layout"]) == (dtype, layout)
    assert facts["checks"][0]["original"]["maximum"] > 0


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_try_times_the_original_in_both_memory_formats(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(timing, "SECONDS_BEFORE", 0.0)
    strides: list[tuple[bool, bool]] = []

    def note(module: nn.Module, inputs: Any) -> None:
        last = {"memory_format": torch.channels_last}
        strides.append((inputs[0].is_contiguous(**last), module.weight.is_contiguous(**last)))

    torch.manual_seed(0)
    model = nn.Conv2d(4, 4, 3, padding=1)  # nothing to fuse: the copies keep the hook
    model.register_forward_pre_hook(note)
    request = trial.Request(torch.device("cpu"), layout=layout, batch=1, size=(6,), seconds=0.01)
    times = trial.run(loading.Loaded("here", nn.Sequential(model)), request).timing
    assert times is not None
    assert times.other is not None
    asked = layout == "channels_last"
    assert set(strides) == {(asked, asked), (not asked, not asked)}
    assert (
        sum(last != (asked, asked) for last in strides) == 2 * times.rounds + timing.WARM_UPS
    )  # a call untimed before each


def test_the_speedup_is_that_over_the_faster_original() -> None:
    slow, fast, fused = (Times(ms, ms, ms) for ms in (6.0, 4.0, 2.0))
    assert trial.Timing(slow, fused, fast, 5).speedup == 2
    assert trial.Timing(fast, fused, slow, 5).speedup == 2
    assert trial.Timing(slow, fused, None, 5).speedup == 3


def test_try_a_sequence_has_one_memory_format(models: Path) -> None:
    words = ["--shape", "4x33", "--device", "cpu", "--seconds", 0.1]
    text = call("try", f"{models}:sequence", *words, "--json", "-")
    assert json.loads(text)["time_ms"]["other"] is None
    assert "original in channels" not in call("try", f"{models}:sequence", *words)


def test_try_a_sequence_with_a_shape(models: Path) -> None:
    words = ["--batch", 2, "--shape", "4x33", "--layout", "channels_last", "--device", "cpu", "--check-only"]
    assert "input   2x4x33" in call("try", f"{models}:sequence", *words)


def test_try_with_the_files_own_input_and_nested_outputs(models: Path) -> None:
    assert "2x4x9x7" in call("try", f"{models}:with_input", "--check-only", "--device", "cpu")
    assert "check passed" in try_fast(f"{models}:Many", "--check-only")
    text = call("try", f"{models}:with_input", "--batch", 3, "--device", "cpu", code=2)
    assert "`--batch` came" in text


def test_try_pytorchcv() -> None:
    pytest.importorskip("pytorchcv")
    text = call("try", "pytorchcv:mobilenet_w1", "--batch", 1, "--device", "cpu", "--check-only")
    assert "1x3x224x224" in text
    assert "check passed" in text


def broken(damage: Any) -> Any:
    """A `sepconv.fuse` that damages the model."""

    def fuse(model: nn.Module) -> Any:
        damage(model)
        return SimpleNamespace(as_dict=dict, __str__=lambda: "broken")

    return fuse


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda m: m[0].weight.data.mul_(1.001), "FAILED"),
        (lambda m: m[1].weight.data.fill_(float("nan")), "FAILED"),
        (lambda m: m.add_module("end", nn.Flatten()), "gives outputs of shapes"),
        (lambda m: m.add_module("end", nn.Linear(1, 1)), "the fused model raised RuntimeError"),
    ],
)
def test_a_broken_fuse_exits_1(models: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, words: str) -> None:
    monkeypatch.setattr(trial, "fuse", broken(damage))
    assert words in " ".join(try_fast(f"{models}:pair", "--check-only", code=1).split())
    assert json.loads(try_fast(f"{models}:pair", "--json", "-", code=1))["ok"] is False


def test_an_original_that_overflows_is_no_pass(models: Path) -> None:
    text = try_fast(f"{models}:overflow", code=1)
    assert "not finite" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("mobilenet", "`source` is 'mobilenet'; expected pytorchcv:NAME"),
        ("gluon:mobilenet", "with the library 'gluon'; expected pytorchcv:NAME"),
        ("pytorchcv:mobilnet_w1", "no model 'mobilnet_w1'; expected one of"),
        ("pytorchcv:mobilnet_w1", "mobilenet_w1"),
        ("nowhere.py:f", "there is no file 'nowhere.py'"),
        ("{models}:absent", "has no function 'absent'"),
        ("{models}:absent", "It has: pair, sequence"),
        ("{models}:number", "returned a value of type int; expected a torch.nn.Module"),
        ("{models}:fails", "raised RuntimeError: no luck (models.py, line"),
        ("{models}:takes", "raised TypeError"),
        ("{models}:silent", "without a floating-point output"),
        ("{broken}:f", "raised SyntaxError"),
    ],
)
def test_try_refuses_a_wrong_source(models: Path, source: str, words: str) -> None:
    broken_file = models.parent / "broken.py"
    broken_file.write_text("def f(:\n")
    text = try_fast(source.format(models=models, broken=broken_file), code=2)
    assert words in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--dtype", "float64"], "`--dtype` is 'float64'; expected one of float32, float16, bfloat16"),
        (["--layout", "nhwc"], "`--layout` is 'nhwc'"),
        (["--device", "abacus"], "`device` is 'abacus'"),
        (["--device", "meta"], "`device` is 'meta'; expected cpu, cuda"),
        (["--shape", "4xx"], "`--shape` is '4xx'"),
        (["--shape", "5x16x16"], "does not take an input of 1x5x16x16"),
        (["--json", "/nowhere/at/all.json"], "`--json` is '/nowhere/at/all.json'"),
    ],
)
def test_try_refuses_a_wrong_option(models: Path, args: list[str], words: str) -> None:
    text = try_fast(f"{models}:pair", *args, code=2)
    assert words in text
    assert "Traceback" not in text


def test_try_names_the_size_that_a_model_names() -> None:
    text = call("try", "pytorchcv:mobilenet_w1", "--batch", 1, "--size", 64, "--device", "cpu", code=2)
    assert "does not take an input of 1x3x64x64" in text
    assert "names the size 224x224" in text


@pytest.mark.parametrize("package", ["timm", "torchvision", "pytorchcv"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def absent(_: str) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(loading.importlib, "import_module", absent)
    text = try_fast(f"{package}:mobilenet", code=2)
    assert f"{package} is not installed" in text
    assert f"pip install {package}" in text


def test_a_package_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(_: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(loading.importlib, "import_module", unfit)
    text = try_fast("timm:mobilenet", code=2)
    assert "timm cannot be imported (RuntimeError: operator torchvision::nms does not exist)" in text
    assert "that fit together" in text


def test_timm_and_torchvision_never_download(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def segmentation(*, weights: Any = "x", weights_backbone: Any = "x") -> nn.Module:
        seen.append((weights, weights_backbone))
        return nn.Conv2d(3, 3, 1)

    def create(_: str, **words: Any) -> nn.Module:
        seen.append(words)
        return nn.Conv2d(3, 3, 1)

    fake = SimpleNamespace(list_models=lambda: ["seg"], get_model_builder=lambda _: segmentation, create_model=create)
    monkeypatch.setattr(loading.importlib, "import_module", lambda _: fake)
    loading.load("torchvision:seg")
    loading.load("timm:seg")
    assert seen == [(None, None), {"pretrained": False}]


# --- rooms


def test_the_shape_of_an_example_follows_the_model() -> None:
    plain, sequence = nn.Sequential(nn.Conv2d(5, 4, 1)), nn.Sequential(nn.Conv1d(64, 4, 1))
    assert trial.example_shape(nn.ReLU()) == (3, 224, 224)
    assert trial.example_shape(plain) == (5, 224, 224)
    assert trial.example_shape(plain, (16,)) == (5, 16, 16)
    assert trial.example_shape(plain, (16, 8), (2, 2)) == (2, 2)
    assert trial.example_shape(sequence) == (64, 512)
    plain.in_size, plain.in_channels = (299, 299), 3
    assert trial.example_shape(plain) == (3, 299, 299)
    sequence.default_cfg = {"input_size": (3, 77)}
    assert trial.example_shape(sequence) == (64, 77)


def test_peak_growth_sees_a_calls_memory() -> None:
    peak = memory.peak_growth(lambda: torch.ones(8_000_000).sum(), torch.device("cpu"))
    if peak.bytes is None:
        pytest.skip(peak.method)
    assert 30e6 < peak.bytes < 60e6
    assert "VmHWM" in peak.method


def test_peak_growth_on_cuda_is_the_allocators_own_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("synchronize", None), ("reset_peak_memory_stats", None), ("memory_allocated", 100)):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 350)
    assert memory.peak_growth(lambda: None, torch.device("cuda")) == memory.Peak(250, memory.CUDA_METHOD)


def test_float32_on_cuda_is_checked_with_and_without_tf32() -> None:
    def settings_of(kind: str, dtype: torch.dtype) -> int:
        return len(list(trial._precision_settings(trial.Request(torch.device(kind), dtype))))

    assert settings_of("cuda", torch.float32) == 2
    assert settings_of("cuda", torch.float16) == 1
    assert settings_of("cpu", torch.float32) == 1


def test_peak_growth_says_so_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "write_text", refuse)
    peak = memory.peak_growth(lambda: None, torch.device("cpu"))
    assert peak.bytes is None
    assert "not measured" in peak.method
