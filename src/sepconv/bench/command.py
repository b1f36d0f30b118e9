"""The command behind `sepconv bench`."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from sepconv.bench import baselines, measure, pages, report, roofline, timing, workloads
from sepconv.device import describe, resolve_precision
from sepconv.errors import ArgumentValueError
from sepconv.problem import CHANNELS_FIRST, DTYPE_NAMES, PRECISIONS, Problem
from sepconv.words import LAYOUTS, one_of, some_of

FUSED_DTYPES = ("float32", "float16", "bfloat16")  # what `all` means: those of the fused kernels
_DIRECTIONS = ("forward", "training")
_WIDTH = 100  # of a table that goes to no terminal


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        help=f"Any of {', '.join(workloads.WORKLOADS)}, with @ and a batch behind (mobilenet_v1@8). "
        "Without one: A/16 and B/16 on the CPU, A and B on CUDA.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N. Without it: cuda where there is one.", show_default=False)
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help=f"all ({', '.join(FUSED_DTYPES)}), or some of {', '.join(DTYPE_NAMES)}, with commas between. Without it: all on "
        "CUDA, float32 on the CPU.",
        show_default=False,
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        help=f"all (in 1-D, where PyTorch has one, channels_first), or some of {', '.join(LAYOUTS)}. Without it: all on CUDA, "
        "channels_first on the CPU.",
        show_default=False,
    ),
]
DirectionOption = Annotated[str, typer.Option(help="forward, or training: forward and backward with all gradients.")]
PeersOption = Annotated[
    str, typer.Option(help=f"all, none, or some of {', '.join(baselines.PEERS)}, with commas between.")
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help=f"Of float32 on CUDA: all, or some of {', '.join(PRECISIONS)}. Without it: all.", show_default=False
    ),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="How often each provider is timed.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the random tensors.")]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write the raw rows as CSV.", show_default=False)
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the raw rows as JSON.", show_default=False),
]
AllocatorOption = Annotated[
    bool,
    typer.Option(
        "--default-allocator",
        help=f"On the CPU: leave PyTorch's tensors in small pages. Without it they lie in huge pages ({pages.SWITCH}=1), which "
        "makes the peers faster.",
    ),
]
GraphsOption = Annotated[
    bool,
    typer.Option(
        "--graphs",
        help="On CUDA: capture each provider's call in a CUDA graph, and check and time its replays, without the host's time.",
    ),
]
SaveOption = Annotated[
    bool,
    typer.Option(
        "--save",
        help="Put the rows into benchmarks/results/ under the name of the device and the versions; rows about the same "
        "thing are replaced.",
    ),
]


def bench(
    names: Names = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    layout: LayoutOption = None,
    direction: DirectionOption = "forward",
    peers: PeersOption = "all",
    precision: PrecisionOption = None,
    rounds: RoundsOption = 15,
    seed: SeedOption = 0,
    csv_file: CsvOption = None,
    json_file: JsonOption = None,
    save: SaveOption = False,
    default_allocator: AllocatorOption = False,
    graphs: GraphsOption = False,
) -> None:
    """Measure sepconv beside what PyTorch users have today.

    Every result is checked against float64 first. Then all providers are timed
    in turn, in one loop. The floor under a time comes from ceilings that are
    measured in the same rounds. On CUDA every dtype, precision and layout is
    measured unless some are named. Ends with 1 if a result is wrong, and with 2
    for a wrong call.
    """
    try:
        request = parse(names or (), device, dtype, layout, direction, peers, precision, rounds, seed, graphs)
        _check_files(csv_file, json_file)
        path = report.default_path(request.device)
        old = _saved_rows(path) if save else []
    except ArgumentValueError as error:
        _refuse(str(error))
    if request.device.type == "cpu":
        request = replace(request, pages=_settle_pages(pages.SMALL if default_allocator else pages.HUGE))
    with torch.cuda.device(request.device) if request.device.type == "cuda" else contextlib.nullcontext():
        rows = _run(request)
    if csv_file is not None:
        report.write_csv(rows, csv_file)
    if json_file is not None:
        report.write_json(rows, json_file)
    if save:
        report.write_csv(report.merged(old, rows), path)
    if not all(row.is_right for row in rows):
        raise typer.Exit(1)


def parse(
    names: Sequence[str],
    device: str | None,
    dtype: str | None,
    layout: str | None,
    direction: str,
    peers: str,
    precision: str | None,
    rounds: int,
    seed: int,
    graphs: bool,
) -> measure.Request:
    """The request that the words of a call make; ArgumentValueError, with what is known, where one is unknown."""
    where = _device(device)
    if graphs and where.type != "cuda":
        raise ArgumentValueError(
            f"`graphs` is for CUDA, and `device` is {str(where)!r}. Leave it out, or name a CUDA device."
        )
    kinds = kinds_of(where.type, dtype, layout, precision)
    every_layout = (layout or _usual(where.type, CHANNELS_FIRST)) == "all"
    return measure.Request(
        workloads=_workloads(names or workloads.default_names(where.type), kinds, every_layout),
        device=where,
        training=one_of("direction", direction, {name: name == "training" for name in _DIRECTIONS}),
        ours=baselines.OURS,
        peers=baselines.peers(peers),
        rounds=rounds,
        seed=seed,
        launch=report.GRAPH if graphs else report.CALL,
    )


class Kind(NamedTuple):
    """In which form a workload is measured."""

    dtype: torch.dtype
    layout: str
    precision: str


def kinds_of(device: str, dtype: str | None, layout: str | None, precision: str | None) -> tuple[Kind, ...]:
    """The forms that the options name on a kind of device; precisions are of float32 on CUDA only."""
    dtypes = some_of("dtype", dtype or _usual(device, "float32"), tuple(DTYPE_NAMES), {"all": FUSED_DTYPES})
    layouts = some_of("layout", layout or _usual(device, CHANNELS_FIRST), tuple(LAYOUTS), {"all": tuple(LAYOUTS)})
    precisions = some_of("precision", precision or "all", PRECISIONS, {"all": ("high", "tf32", "ieee")})
    kinds = (
        Kind(DTYPE_NAMES[name], order, resolve_precision(exactness, DTYPE_NAMES[name], device))
        for order in layouts
        for name in dtypes
        for exactness in precisions
    )
    return tuple(dict.fromkeys(kinds))


def _usual(device: str, on_cpu: str) -> str:
    """What an option without a value means: on the CPU one form, which takes minutes by itself."""
    return "all" if device == "cuda" else on_cpu


def _workloads(names: Sequence[str], kinds: Sequence[Kind], every_layout: bool) -> tuple[workloads.Workload, ...]:
    """Each workload in each form; where every layout is asked for, 1-D problems come in the only one that PyTorch has."""
    found = []
    for name in dict.fromkeys(names):
        for kind in kinds:
            workload = workloads.workload(name, *kind)
            entries = workload.entries
            if every_layout and kind.layout != CHANNELS_FIRST:
                entries = tuple(entry for entry in entries if entry.problem.rank > 1)
            found.append(replace(workload, entries=entries))
    return tuple(workload for workload in found if workload.entries)


def _settle_pages(wanted: str) -> str:
    """Ask for these pages before PyTorch allocates anything; what came of it."""
    pages.ask_for(wanted)
    found = pages.described()
    if not found.startswith(wanted):
        typer.echo(f"note: PyTorch's tensors lie in {found or 'unknown'} pages; {wanted} ones were asked for", err=True)
    return found


def _run(request: measure.Request) -> list[report.Row]:
    """Measure and print; the tables go to the standard output, what was skipped and the progress to the other."""
    out = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    notes = Console(stderr=True, highlight=False)
    timer = timing.Timer(request.device)

    @cache
    def gauge_of(unit: torch.dtype) -> roofline.Gauge:
        return roofline.Gauge(request.device, unit, timer)

    def gauge_for(problem: Problem) -> roofline.Gauge:
        return gauge_of(roofline.unit_of(request.device, problem.dtype))

    first = gauge_for(request.workloads[0].entries[0].problem)
    memory = f", {pages.in_words(request.pages)}" if request.pages else ""
    head = f"{describe(request.device)}, torch {torch.__version__}{memory}\n{first.sample()}"
    out.print(head, soft_wrap=True, markup=False)
    rows: list[report.Row] = []
    told: set[str] = set()
    for workload in request.workloads:
        for number, entry in enumerate(workload.entries, 1):
            with Progress(
                console=notes, transient=True, disable=not notes.is_terminal, redirect_stdout=False
            ) as progress:
                task = progress.add_task(f"{workload.name} {number}/{len(workload.entries)}", total=request.rounds)
                advance = partial(progress.advance, task)
                found = measure.measure(request, workload, entry, gauge_for(entry.problem), advance)
            for note in (*(s for s in found.skipped if s not in told), *found.wrong):
                notes.print(note, markup=False, soft_wrap=True)
            told.update(found.skipped)
            out.print(report.problem_table(found.rows))
            rows += found.rows
    for table in (report.total_table(rows), report.overview(rows, request.ours.name)):
        if table is not None:
            out.print(table)
    return rows


def _check_files(csv_file: Path | None, json_file: Path | None) -> None:
    """Refuse before the measurement what could not be written after it."""
    for name, path in (("csv", csv_file), ("json", json_file)):
        if path is not None and path.is_dir():
            raise ArgumentValueError(f"`{name}` is {str(path)!r}, a folder; expected the name of a file.")


def _saved_rows(path: Path) -> list[report.Row]:
    if not path.exists():
        return []
    try:
        return report.read_csv(path)
    except (KeyError, ValueError):
        raise ArgumentValueError(
            f"`save` would add to {str(path)!r}, which has other columns than {', '.join(report.FIELDS)}. Move it away."
        ) from None


def _device(text: str | None) -> torch.device:
    known = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if text is None:
        return torch.device(known[1] if len(known) > 1 else "cpu")
    name = f"cuda:{torch.cuda.current_device()}" if text == "cuda" and len(known) > 1 else text
    if name not in known:
        raise ArgumentValueError(f"`device` is {text!r}; this machine has {', '.join(known)}.")
    return torch.device(name)


def _refuse(text: str) -> NoReturn:
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(2)
