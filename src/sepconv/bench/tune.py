"""The command behind `sepconv tune`."""

import dataclasses
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from sepconv.arguments import canonical_precision
from sepconv.bench import workloads
from sepconv.bench.rig import Run, Tuned, label, start, tune
from sepconv.console import print_json, print_section, print_table, print_wrapped, progress
from sepconv.device import describe, resolve_precision
from sepconv.errors import ArgumentValueError, UnsupportedError
from sepconv.problem import DTYPE_NAMES, Problem
from sepconv.tuning import model
from sepconv.tuning.facts import Facts, device_facts, problem_facts
from sepconv.tuning.search import Outcome, Timed
from sepconv.words import LAYOUTS, Asked, asking, device_of, one_of

INTERRUPTED = 130  # the exit code of shells for it

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help=f"Any of {', '.join(workloads.WORKLOADS)}, with @ and a batch behind (mobilenet_v1@8); may be repeated. "
        "Without it, and without --in, --out and --size: A/16 and B/16 on the CPU, A and B on CUDA.",
        show_default=False,
    ),
]


@asking
def tune_command(
    asked: Asked,
    names: Names = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what has a record already, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every time that was measured.")] = False,
) -> None:
    """Measure how to run convolutions fastest on this machine, and keep that for later calls.

    Tuned are the convolutions of a workload, or the one whose sizes are given.
    Every result is checked against float64 before it is timed. What was found
    before an interruption is kept, and the same command goes on from there. Ends
    with 1 if a result is wrong, with 2 for a wrong call, and with 130 if it is
    interrupted.
    """
    device = device_of(asked.device)
    problems = _problems(asked, names, device)
    run, interrupted = start(describe(device)), False
    try:
        with progress() as tell:
            tune(run, problems, device, again, tell)
    except KeyboardInterrupt:
        interrupted = True
    if run.skipped and not run.tuned and not interrupted:
        raise UnsupportedError(f"nothing here can be tuned. {'. '.join(run.skipped)}.")
    if as_json:
        print_json(_facts(run, interrupted))
    else:
        _print(run)
    for note in (*run.skipped, *run.wrong):
        typer.echo(note, err=True)
    if interrupted:
        typer.echo(
            f"interrupted: {len(run.tuned)} of {len(problems)} done; the same command goes on from there", err=True
        )
    if interrupted or run.wrong:
        raise typer.Exit(INTERRUPTED if interrupted else 1)


def _problems(asked: Asked, names: list[str] | None, device: torch.device) -> list[Problem]:
    """What is to be tuned, each once."""
    if asked.names_a_convolution:
        if names:
            raise ArgumentValueError(
                f"`--workload` is {', '.join(names)}, and the sizes of one convolution are given too; expected one of both."
            )
        return [asked.problem_and_device()[0]]
    dtype, layout = one_of("--dtype", asked.dtype, DTYPE_NAMES), one_of("--layout", asked.layout, LAYOUTS)
    precision = resolve_precision(canonical_precision(asked.precision), dtype, device.type)
    wanted = [workloads.workload(n, dtype, layout, precision) for n in names or workloads.default_names(device.type)]
    return list(dict.fromkeys(entry.problem for workload in wanted for entry in workload.entries))


# --- for people


def _print(run: Run) -> None:
    print_section(str(run.device))
    table = Table("problem", "model's choice", "ms", "best", "ms", "PyTorch ms", "gain", box=None, pad_edge=False)
    for column in (2, 4, 5, 6):
        table.columns[column].justify = "right"
    for tuned in run.tuned:
        table.add_row(*_row(tuned, run))
    print_table(table)
    known = sum(tuned.outcome is None for tuned in run.tuned)
    if known:
        print_wrapped(f"{known} of {len(run.tuned)} have a record already; --again measures them anew", 2)
    if run.loss is not None:
        count = sum(tuned.record is not None for tuned in run.tuned)
        mean = f"the geometric mean of {count} problem{'s' * (count > 1)}"
        print_wrapped(f"the model's choices take {run.loss:.3f} times as long as the best: {mean}", 2)
    print_wrapped(f"kept in {run.file}", 2)


def _row(tuned: Tuned, run: Run) -> tuple[str, ...]:
    record = tuned.record
    if record is None:
        return label(tuned.problem), "WRONG", "", "", "", "", ""
    chosen = str(tuned.outcome.chosen.choice if tuned.outcome else model.best(tuned.problem, run.device))
    best = str(record.config)
    gain = f"{(record.model_ms / record.ms - 1) * 100:.1f} %"
    same = "the same" if best == chosen else best
    times = [f"{ms:.3f}" for ms in (record.model_ms, record.ms, record.eager_ms)]
    return label(tuned.problem), chosen, times[0], same, times[1], times[2], gain


# --- for programs


def _facts(run: Run, interrupted: bool) -> Facts:
    return {
        "device": device_facts(run.device),
        "torch": torch.__version__,
        "file": str(run.file),
        "problems": [_tuned_facts(tuned) for tuned in run.tuned],
        "skipped": run.skipped,
        "wrong": run.wrong,
        "model_over_best": run.loss,
        "interrupted": interrupted,
    }


def _tuned_facts(tuned: Tuned) -> Facts:
    record = dataclasses.asdict(tuned.record) if tuned.record else {}
    return {
        "problem": problem_facts(tuned.problem),
        "label": label(tuned.problem),
        "measured": tuned.outcome is not None,
        **{name: record.get(name) for name in ("config", "ms", "model_ms", "eager_ms")},
        **(_outcome_facts(tuned.outcome) if tuned.outcome else {"candidates": [], "wrong": [], "eager": None}),
    }


def _outcome_facts(outcome: Outcome) -> Facts:
    return {
        "candidates": [_timed_facts(timed) for timed in outcome.timed],
        "wrong": [dataclasses.asdict(config) for config in outcome.wrong],
        "eager": _timed_facts(outcome.eager),
    }


def _timed_facts(timed: Timed) -> dict[str, Any]:
    config = None if timed.choice is None else dataclasses.asdict(timed.choice)
    return {"config": config, "ms": timed.ms, "times": timed.times}
