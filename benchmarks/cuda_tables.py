"""The tables, the goals and the picture of the forward pass on an NVIDIA GPU, from results/cuda-forward.csv."""

from collections.abc import Sequence
from pathlib import Path

from pictures import Point, roofline
from table_parts import NAMES, OURS, Goal, Problem, goal_table, in_short, markdown, number

from sepconv.bench.report import Row, read_csv
from sepconv.bench.roofline import PRODUCTS
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST

SECTIONS = ("cuda-environment", "cuda-goals", "cuda-rows")  # of docs/performance.md
LAYOUTS = {CHANNELS_FIRST: "channels first", CHANNELS_LAST: "channels last"}
FLOAT32, HALF = ("float32 high", "float32 tf32"), ("float16", "bfloat16")
# What the forward pass was to reach: workload, kinds, layouts, least efficiency.
EFFICIENCIES = (
    ("A", FLOAT32, (CHANNELS_FIRST,), 0.77),
    ("A", FLOAT32, (CHANNELS_LAST,), 0.80),
    ("A", ("float32 ieee",), (CHANNELS_FIRST, CHANNELS_LAST), 0.60),
    ("A", HALF, (CHANNELS_FIRST,), 0.70),
    ("A", HALF, (CHANNELS_LAST,), 0.75),
    ("B", ("float32 high",), (CHANNELS_FIRST,), 0.70),
    ("B", ("float32 ieee",), (CHANNELS_FIRST,), 0.60),
    ("B", HALF, (CHANNELS_FIRST,), 0.65),
)
# The same for the gain on a peer (None: on the best of them).
GAINS = (
    ("A", "float32 high", CHANNELS_FIRST, "eager", 3.4),
    ("B", "float32 high", CHANNELS_FIRST, "eager", 2.8),
    ("A", "float16", CHANNELS_LAST, None, 1.8),
    ("B", "float16", CHANNELS_FIRST, None, 2.6),
)


class Measured:
    """All rows of cuda-forward.csv, by workload, kind and layout; of one device."""

    def __init__(self, rows: Sequence[Row]) -> None:
        found: dict[tuple[str, str, str], list[Row]] = {}
        for row in rows:
            found.setdefault((row.workload, kind_of(row), row.layout), []).append(row)
        self._problems = {key: Problem(tuple(rows)) for key, rows in found.items()}
        self.rows = rows

    def of(self, workload: str, kind: str, layout: str) -> Problem | None:
        return self._problems.get((workload, kind, layout))

    def all(self) -> list[Problem]:
        return list(self._problems.values())


def load(file: Path) -> Measured:
    return Measured(read_csv(file))


def kind_of(row: Row) -> str:
    """Dtype, and the precision of float32."""
    return f"float32 {row.precision}" if row.dtype == "float32" else row.dtype


# --- what README and docs/performance.md hold


def readme_section(measured: Measured) -> str:
    """The part of the README on GPUs, with its heading: there is none before anything was measured."""
    head = ["problem", "", "layout", "sepconv", "eager", "best peer", "times as fast as the best peer", "efficiency"]
    rows = []
    for p in measured.all():
        ours, peers = p.ours, p.peers
        best = min(peers, key=lambda name: peers[name])
        numbers = [f"**{number(ours.ms)}**", number(peers.get("eager")), f"{number(peers[best])} ({NAMES[best]})"]
        numbers += [f"**{1 / p.ratio:.2f}**", f"{ours.efficiency or 0:.2f}"]
        rows.append([ours.workload, kind_of(ours), LAYOUTS[ours.layout], *numbers])
    parts = [
        "## What you gain on a GPU",
        "![How close sepconv and its best peer come to the ceilings](docs/pictures/cuda-roofline.svg)",
        f"{environment(measured.rows)} Milliseconds:",
        markdown(head, rows, left=3),
        "[Every row, and how it was measured](docs/performance.md#what-the-forward-pass-takes-on-an-nvidia-gpu). Repeat it with "
        "`python benchmarks/cuda_forward.py`, or\n`sepconv bench A B --device cuda --peers all`.\n",
    ]
    return "\n\n".join(parts)


def page_sections(measured: Measured) -> dict[str, str]:
    """What stands between the marks of docs/performance.md, by SECTIONS."""
    picture_line = "![Arithmetic intensity and rate, below the ceilings](pictures/cuda-roofline.svg)"
    return {
        "cuda-environment": f"{environment(measured.rows)}\n\n{picture_line}",
        "cuda-goals": goal_table(goals(measured)),
        "cuda-rows": problem_table(measured),
    }


def environment(rows: Sequence[Row]) -> str:
    """Where and with what the rows were measured, and the ceilings of their rounds, as a sentence."""
    ours = [row for row in rows if row.provider == OURS]
    libraries = dict.fromkeys(v for row in rows for v in row.versions.split("; "))
    copy = between([row.copy / 1e9 for row in ours], "GB/s")
    matrix = between([row.arithmetic / 1e12 for row in ours], "TFLOP/s")
    device = ours[0].device.removeprefix("cuda:0 ").removeprefix("cuda ")
    return f"{device}; {', '.join(libraries)}. Ceilings: copy {copy}, {ours[0].arithmetic_name} {matrix}."


def between(values: Sequence[float], unit: str) -> str:
    least, most = (f"{value:.0f}" for value in (min(values), max(values)))
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def problem_table(measured: Measured) -> str:
    """A row for each problem in each kind and layout, with all that was measured."""
    providers = [name for name in NAMES if name != OURS and any(name in p.peers for p in measured.all())]
    head = ["workload", "problem", "", "layout", "sepconv", "p20 to p80", *(NAMES[name] for name in providers)]
    head += ["eager / ours", "best / ours", "floor", "efficiency", "error", "error / allowed"]
    rows = []
    for p in measured.all():
        ours = p.ours
        numbers = [f"**{number(ours.ms)}**", f"{number(ours.ms_p20)} to {number(ours.ms_p80)}"]
        numbers += [number(p.peers.get(name)) for name in providers]
        numbers += [number(gain(p, "eager")), number(gain(p, None)), number(ours.floor_ms)]
        numbers += [f"**{ours.efficiency or 0:.2f}**", f"{ours.error:.1e}", f"{ours.error / ours.error_budget:.2f}"]
        rows.append([ours.workload, in_short(ours), kind_of(ours), LAYOUTS[ours.layout], *numbers])
    return markdown(head, rows, left=4)


# --- goals


def goals(measured: Measured) -> list[Goal]:
    """The goals of the forward pass on a GPU, with what was measured."""
    found = []
    for workload, kinds, layouts, least in EFFICIENCIES:
        for kind in kinds:
            for layout in layouts:
                p = measured.of(workload, kind, layout)
                what = f"{workload} {kind}, {LAYOUTS[layout]}: efficiency"
                found.append(Goal(what, p and (p.ours.efficiency or 0.0), least, at_most=False))
    for workload, kind, layout, peer, least in GAINS:
        p = measured.of(workload, kind, layout)
        what = f"{workload} {kind}, {LAYOUTS[layout]}: time of {peer or 'the best peer'} / ours"
        found.append(Goal(what, p and gain(p, peer), least, at_most=False))
    worst = max(p.ours.error / p.ours.error_budget for p in measured.all())
    return [*found, Goal("all rows: error / allowed, largest", worst, 1.0, at_most=True)]


def gain(problem: Problem, peer: str | None) -> float | None:
    """The time of a peer, or of the best one, over ours; None where one of both was not timed."""
    times = problem.peers
    time = min(times.values(), default=None) if peer is None else times.get(peer)
    return None if time is None or problem.ours.ms is None else time / problem.ours.ms


# --- the picture


def picture(measured: Measured) -> str:
    """A roofline: each problem by its FLOPs a byte, ours and the best peer below what the ceilings allow."""
    points = []
    for p in measured.all():
        ours = p.ours
        factor = PRODUCTS[ours.precision] if ours.products and ours.dtype == "float32" else 1
        name = f"{ours.workload} {kind_of(ours)}"
        for row, is_ours in ((ours, True), (best_peer(p), False)):
            if row is not None and row.ms:
                points.append(
                    Point(name, factor * ours.flops / ours.bytes, factor * ours.flops / row.ms * 1e3, is_ours)
                )
    first = measured.all()[0].ours
    return roofline("FLOP/s of products below the ceilings", first.copy, first.arithmetic, points)


def best_peer(problem: Problem) -> Row | None:
    timed = [row for row in problem.rows if row.provider in problem.peers]
    return min(timed, key=lambda row: row.ms or float("inf"), default=None)
