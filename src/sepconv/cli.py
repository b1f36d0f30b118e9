"""The command line: doctor, explain, try, bench and tune.

Exit codes: 0, 1 for a failed check, 2 for a wrong call, 130 for an interrupted `tune`. Results go to standard output, errors
and progress to standard error.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import torch
import typer
from rich.table import Table

from sepconv import __version__, dispatch
from sepconv.bench import trial
from sepconv.bench.command import bench
from sepconv.bench.loading import EXPECTED, load
from sepconv.bench.tune import tune_command
from sepconv.console import print_json, print_rows, print_section, print_table, print_wrapped, progress
from sepconv.doctor import examine
from sepconv.errors import ArgumentValueError, SepconvError
from sepconv.problem import CHANNELS_FIRST, Problem
from sepconv.words import LAYOUTS, Asked, asking, device_of, numbers, one_of

P = ParamSpec("P")
app = typer.Typer(
    name="sepconv",
    help="Depthwise-separable convolutions for PyTorch as one operation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """The entry point of the `sepconv` command."""
    app()


def _refusing(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with every SepconvError as one line on standard error and exit code 2."""

    @functools.wraps(command)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SepconvError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None

    return refusing


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


# --- doctor


@app.command()
@_refusing
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show versions, devices, backends, compiler, cache and settings, and what is wrong with them (exit code 1)."""
    facts = examine()
    if as_json:
        print_json(facts)
    else:
        _print_doctor(facts)
    if facts["problems"]:
        raise typer.Exit(1)


def _print_doctor(facts: dict[str, Any]) -> None:
    cuda, cache = facts["cuda"], facts["cache"]
    print_section("versions")
    print_rows([(name, value or "not installed") for name, value in facts["versions"].items()])
    print_section("CUDA")
    extra = cuda["flavour"] or "no extra installed"
    print_rows(
        [
            ("of torch", cuda["torch"] or "none"),
            ("cuDNN", str(cuda["cudnn"] or "none")),
            ("of cuda-core", extra),
            ("together", cuda["state"]),
        ]
    )
    print_section("devices")
    print_rows([(device["device"], _device_text(device)) for device in facts["devices"]])
    print_section("backends")
    print_rows([(f"{b['backend']} on {b['device']}", _backend_text(b)) for b in facts["backends"]])
    print_section("C++ compiler")
    print_rows([("found", facts["compiler"]["state"])])
    print_section("cache")
    size = f"{cache['bytes'] / 1e6:.1f} MB" if cache["exists"] else "not there yet; made at the first need"
    print_rows([("place", cache["place"] or "unknown"), ("size", size)])
    print_section("settings (environment variables)")
    print_rows([(setting["name"], _setting_text(setting)) for setting in facts["settings"]])
    print_section("problems")
    print_rows([("", problem) for problem in facts["problems"]] or [("", "none found")])


def _device_text(device: dict[str, Any]) -> str:
    if device["capability"]:
        parts = [f"compute capability {device['capability']}", f"{device['units']} SMs"]
    else:
        parts = [device["isa"] or "", f"{device['units']} threads" if device["units"] else ""]
    parts.append(f"{device['memory_bytes'] / 2**30:.0f} GiB" if device["memory_bytes"] else "")
    return ", ".join([device["name"], *filter(None, parts)])


def _backend_text(backend: dict[str, Any]) -> str:
    return "runs" if backend["runs"] else f"does not run: {'; '.join(backend['reasons'])}"


def _setting_text(setting: dict[str, Any]) -> str:
    value = setting["value"] if setting["set"] else "not set"
    return f"{value} - {setting['meaning']}"


# --- explain


@app.command()
@_refusing
@asking
def explain(asked: Asked, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show which backend would run a convolution, with what, and why; nothing is allocated or computed."""
    problem, device = asked.problem_and_device()
    if as_json:
        print_json(_plan_facts(dispatch.plan(problem, device)))
    else:
        print_wrapped(dispatch.explain(problem, device), 10)


def _plan_facts(plan: dispatch.Plan) -> dict[str, Any]:
    """A plan as plain data for JSON."""
    return {
        "problem": _problem_facts(plan.problem),
        "device": dataclasses.asdict(plan.device),
        "backend": plan.backend.name,
        "source": plan.source,
        "config": None if plan.config is None else str(plan.config),
        "config_source": plan.config_source,
        "rejected": {name: list(reasons) for name, reasons in plan.rejected},
    }


def _problem_facts(problem: Problem) -> dict[str, Any]:
    facts = dataclasses.asdict(problem)
    facts["dtype"] = str(problem.dtype).removeprefix("torch.")
    for step in ("depthwise_activation", "pointwise_activation"):
        facts["epilogue"][step] = str(getattr(problem.epilogue, step))
    return {**facts, "output_shape": problem.output_shape, "flops": problem.flops, "bytes": problem.bytes}


# --- try


@app.command("try")
@_refusing
def try_model(
    source: Annotated[str, typer.Argument(help=f"The model: {EXPECTED}.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size; 8 by default.")] = None,
    size: Annotated[str | None, typer.Option(help="Input size, as 224 or 192x256; the model's own by default.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one example with channels, as 64x512.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default the fastest here.")] = None,
    layout: Annotated[str, typer.Option(help="channels_first or channels_last.")] = CHANNELS_FIRST,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for the timing.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, statistics and input.")] = 0,
    check_only: Annotated[bool, typer.Option("--check-only", help="Leave out time and memory.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")] = None,
) -> None:
    """Fuse a model and show what changed: errors against float64, time and memory. Exit code 1: the result is wrong."""
    request = trial.Request(
        device=device_of(device),
        dtype=one_of("--dtype", dtype, trial.DTYPES),
        layout=one_of("--layout", layout, LAYOUTS),
        batch=batch,
        size=None if size is None else numbers("--size", size),
        shape=None if shape is None else numbers("--shape", shape),
        seconds=seconds,
        seed=seed,
        check_only=check_only,
    )
    _check_writable(json_file)
    torch.manual_seed(seed)
    with progress() as tell:
        tell("loading the model", 0)
        outcome = trial.run(load(source), request, tell)
    if json_file is None or str(json_file) != "-":
        _print_trial(outcome)
    if json_file is not None:
        print_json(outcome.as_dict(), json_file)
    if not outcome.ok:
        raise typer.Exit(1)


def _check_writable(file: Path | None) -> None:
    if file is not None and str(file) != "-" and not file.absolute().parent.is_dir():
        raise ArgumentValueError(
            f"`--json` is {str(file)!r}, but there is no such folder; expected a file, or - to print."
        )


def _print_trial(outcome: trial.Trial) -> None:
    """The outcome for people: what was fused, then a table of both models, then the verdict."""
    facts = outcome.as_dict()
    shapes = " and ".join("x".join(map(str, shape)) for shape in outcome.shapes)
    print_section(outcome.source)
    print_rows([("input", f"{shapes} {facts['dtype']} {facts['layout']}"), ("device", facts["device"])])
    print_section("fused and left alone")
    print_wrapped(str(outcome.report), 4)
    print_section("original and fused")
    table = Table("", "original", "fused", "", box=None, pad_edge=False)
    for row in (*_error_rows(outcome), *_time_rows(outcome), *_memory_rows(outcome)):
        table.add_row(*row)
    print_table(table)
    for note in _notes(outcome):
        print_wrapped(note, 2)
    for check in outcome.checks:
        if check.problem:
            print_wrapped(f"{check.setting}: {check.problem}", 4)
    typer.echo("check passed" if outcome.ok else "check FAILED: the fused model is outside of its error budget")


def _notes(outcome: trial.Trial) -> Iterator[str]:
    """What the numbers of the table are."""
    seed = outcome.request.seed
    yield f"errors: against float64, the largest of all outputs; weights, BatchNorm and input random, seed {seed}"
    yield "allowed: twice the original's error + 2 eps"
    if outcome.timing is not None:
        yield f"fused is {outcome.timing.speedup:.2f} times as fast as the original in the faster memory format"
        before = "caches flushed before each" if outcome.request.device.type == "cuda" else "each after one of its own"
        yield f"time: one forward pass, all in turn, {before}"
    if outcome.memory is not None:
        yield f"memory: {outcome.memory[0].method}"


def _error_rows(outcome: trial.Trial) -> Iterator[tuple[str, ...]]:
    names = {"maximum": "max|e| / max|r|", "norm": "norm(e) / norm(r)"}
    for check in outcome.checks:
        for field, name in names.items():
            before, after, allowed = (getattr(e, field) for e in (check.original, check.fused, check.allowed))
            ratio = f"{after / before:.2f} times, " if before else ""
            setting = "" if len(outcome.checks) == 1 else f", {check.setting}"
            yield f"{name}{setting}", f"{before:.2e}", f"{after:.2e}", f"{ratio}allowed {allowed:.2e}"


def _time_rows(outcome: trial.Trial) -> Iterator[tuple[str, ...]]:
    timing = outcome.timing
    if timing is not None:
        for name, field in ((f"time, median of {timing.rounds}", "median"), ("time, 20th percentile", "p20")):
            before, after = getattr(timing.original, field), getattr(timing.fused, field)
            yield name, f"{before:.2f} ms", f"{after:.2f} ms", f"{before / after:.2f} times as fast"
        if timing.other is not None:
            name, other = f"original in {trial.other_layout(outcome.request.layout)}", timing.other.median
            yield name, f"{other:.2f} ms", "", f"fused: {other / timing.fused.median:.2f} times as fast"


def _memory_rows(outcome: trial.Trial) -> Iterator[tuple[str, ...]]:
    if outcome.memory is None:
        return
    before, after = (peak.bytes for peak in outcome.memory)
    if before is not None and after is not None:
        ratio = f"{after / before:.2f} times" if before else ""
        yield "peak memory", f"{before / 1e6:.1f} MB", f"{after / 1e6:.1f} MB", ratio


app.command()(_refusing(bench))
app.command("tune")(_refusing(tune_command))
