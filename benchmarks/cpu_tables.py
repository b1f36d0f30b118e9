"""The tables, the goals and the picture of the forward pass on the CPU, from results/cpu-forward.csv and cpu-conditions.csv."""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean

from pictures import Bar, bars
from table_parts import NAMES, OURS, Goal, Problem, goal_table, in_short, markdown, number, of_all

from sepconv.bench import pages
from sepconv.bench.report import Row, read_csv

GRID = ("mobilenet_v1", "mobilenet_v1@8", "xception", "quartznet5x5")
PICTURED = ("A/16", "B/16", *GRID)
SECTIONS = ("environment", "goals", "workloads", "conditions", "rows")  # of docs/performance.md


class Measured:
    """All rows of cpu-forward.csv, by the condition that they were measured in."""

    def __init__(self, rows: Iterable[Row]) -> None:
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            found.setdefault((row.pages, row.dtype, row.workload, row.problem), []).append(row)
        self._problems = {key: Problem(tuple(rows)) for key, rows in found.items()}
        self.usual = Counter(key[0] for key in found).most_common(1)[0][0]
        self.first = next(iter(self._problems.values())).ours

    def of(self, workloads: Sequence[str], dtype: str = "float32", pages: str | None = None) -> list[Problem]:
        """The problems of these workloads; in the usual pages where no others are named."""
        wanted = self.usual if pages is None else pages
        found = self._problems.items()
        return [
            p for (in_pages, kind, name, _), p in found if name in workloads and (in_pages, kind) == (wanted, dtype)
        ]

    def names(self, dtype: str) -> list[str]:
        """The workloads that were measured in this dtype in the usual pages, in the order of the file."""
        return list(dict.fromkeys(key[2] for key in self._problems if key[:2] == (self.usual, dtype)))

    def dtypes(self) -> list[str]:
        return list(dict.fromkeys(key[1] for key in self._problems))

    def other_pages(self) -> list[str]:
        return [pages for pages in dict.fromkeys(key[0] for key in self._problems) if pages != self.usual]


def load(file: Path) -> Measured:
    return Measured(read_csv(file))


def environment(measured: Measured) -> str:
    """Where and with what the rows were measured, as a sentence."""
    libraries = dict.fromkeys(
        v for problem in measured.of(PICTURED) for row in problem.rows for v in row.versions.split("; ")
    )
    memory = f", {pages.in_words(measured.usual)}" if measured.usual else ""
    return f"{measured.first.device.removeprefix('cpu ')}; {', '.join(libraries)}{memory}."


# --- what README and docs/performance.md hold


def readme_section(measured: Measured) -> str:
    """The picture and the table of the README."""
    alt = "Milliseconds of sepconv and of its peers"
    parts = [f"![{alt}](docs/pictures/cpu-forward.svg)", environment(measured), workload_table(measured, "float32")]
    return "\n\n".join(parts)


def page_sections(measured: Measured, conditions: Sequence[dict[str, str]]) -> dict[str, str]:
    """What stands between the marks of docs/performance.md, by SECTIONS; what was not measured is left out."""
    workloads = [f"### {dtype}\n\n{workload_table(measured, dtype)}" for dtype in measured.dtypes()]
    rows = [f"### {dtype}\n\n{problem_table(measured, dtype)}" for dtype in measured.dtypes()]
    rows += [
        f"### float32, {pages.in_words(other)}\n\n{problem_table(measured, 'float32', other)}"
        for other in measured.other_pages()
    ]
    found = {
        "environment": environment(measured),
        "goals": goal_table(goals(measured, conditions)),
        "workloads": "\n\n".join(workloads),
        "rows": "\n\n".join(rows),
    }
    return found | ({"conditions": condition_table(conditions)} if conditions else {})


# --- what a workload takes


def total(problems: Sequence[Problem], provider: str) -> float | None:
    """Milliseconds of all pairs of a workload, each as often as it occurs; None where one was not timed."""
    times = [(row.count, row.ms) for p in problems for row in p.rows if row.provider == provider]
    if len(times) < len(problems) or any(ms is None for _, ms in times):
        return None
    return sum(count * (ms or 0.0) for count, ms in times)


def gain(problems: Sequence[Problem]) -> float:
    """How many times as fast as the fastest peer of each problem: the geometric mean."""
    return 1 / geometric_mean(p.ratio for p in problems)


def efficiency(problems: Sequence[Problem]) -> float:
    return geometric_mean(p.ours.efficiency or 1e-9 for p in problems)


def workload_table(measured: Measured, dtype: str) -> str:
    """A row for each workload: milliseconds of each provider, our gain on the fastest peer, our efficiency."""
    providers = [p for p in NAMES if any(total(measured.of([name], dtype), p) for name in measured.names(dtype))]
    head = ["milliseconds", *(NAMES[p] for p in providers), "times as fast as the best peer", "efficiency"]
    rows = []
    for name in measured.names(dtype):
        problems = measured.of([name], dtype)
        numbers = [number(total(problems, p)) for p in providers]
        numbers[0] = f"**{numbers[0]}**"
        rows.append([name, *numbers, f"**{gain(problems):.2f}**", f"{efficiency(problems):.2f}"])
    return markdown(head, rows)


def problem_table(measured: Measured, dtype: str, pages: str | None = None) -> str:
    """A row for each problem, with all that was measured."""
    names = (
        measured.names(dtype)
        if pages is None
        else sorted({p.ours.workload for p in measured.of(PICTURED, dtype, pages)})
    )
    problems = measured.of(names, dtype, pages)
    providers = [p for p in NAMES if p != OURS and any(p in problem.peers for problem in problems)]
    head = ["workload", "problem", "sepconv", "p20 to p80", *(NAMES[p] for p in providers)]
    head += ["ours / best", "floor", "efficiency", "error / allowed"]
    rows = []
    for p in problems:
        ours = p.ours
        numbers = [number(ours.ms), f"{number(ours.ms_p20)} to {number(ours.ms_p80)}"]
        numbers += [number(p.peers.get(name)) for name in providers]
        numbers += [f"{p.ratio:.2f}", number(ours.floor_ms), f"{ours.efficiency or 0:.2f}"]
        rows.append([ours.workload, in_short(ours), *numbers, f"{ours.error / ours.error_budget:.2f}"])
    return markdown(head, rows, left=2)


# --- the picture


def picture(measured: Measured) -> str:
    """Bars of all providers for a handful of workloads."""
    groups = {}
    for name in PICTURED:
        problems = measured.of([name])
        times = {p: total(problems, p) for p in NAMES} if problems else {}
        group = [Bar(ms, f"{NAMES[p]} {number(ms)} ms", p == OURS) for p, ms in times.items() if ms is not None]
        if group:
            groups[name] = group
    return bars("Milliseconds of the forward pass on a CPU, float32", groups)


# --- goals


def goals(measured: Measured, conditions: Sequence[dict[str, str]]) -> list[Goal]:
    """The goals of the CPU's forward pass, with what was measured."""
    grid = measured.of(GRID)
    found = [
        Goal(f"{name}: time / best peer", of_all(measured.of([name]), lambda ps: ps[0].ratio), limit, True)
        for name, limit in (("A/16", 0.85), ("B/16", 0.75))
    ]
    found += [
        Goal("models: time / best peer, geometric mean", of_all(grid, lambda ps: 1 / gain(ps)), 0.85, True),
        Goal("models: time / best peer, largest", of_all(grid, lambda ps: max(p.ratio for p in ps)), 1.05, True),
    ]
    found += [
        Goal(f"{name}: efficiency", of_all(measured.of([name]), efficiency), limit, False)
        for name, limit in (("B/16", 0.80), ("A/16", 0.50), ("layer56", 0.70), ("layer14", 0.70))
    ]
    for memory in measured.other_pages():
        found += memory_goals(memory, measured.of(["A/16"], pages=memory))
    found.append(Goal("models: efficiency, geometric mean", of_all(grid, efficiency), 0.60, False))
    for dtype in ("bfloat16", "float16"):
        what = f"models in {dtype}: time / best PyTorch peer, geometric mean"
        found.append(Goal(what, of_all(measured.of(GRID, dtype), lambda ps: 1 / gain(ps)), 1.0, True))
    every = [p for dtype in measured.dtypes() for p in measured.of(measured.names(dtype), dtype)]
    found.append(
        Goal("all rows: error / allowed, largest", max(p.ours.error / p.ours.error_budget for p in every), 1.0, True)
    )
    return found + condition_goals(conditions)


def memory_goals(memory: str, problems: Sequence[Problem]) -> list[Goal]:
    """The goals of A/16 where memory is not what it usually is."""
    if memory.endswith(pages.NEW_RESULTS):
        what = "A/16, results in new memory"
        return [
            Goal(f"{what}: time / best peer", of_all(problems, lambda ps: ps[0].ratio), 0.85, True),
            Goal(f"{what}: efficiency", of_all(problems, efficiency), 0.50, False),
        ]
    if memory.endswith(pages.KEPT):
        return [Goal("A/16, pages present: efficiency", of_all(problems, efficiency), 0.70, False)]
    return [Goal("A/16, default allocator: eager time / ours", of_all(problems, against_eager), 8.0, False)]


def against_eager(problems: Sequence[Problem]) -> float:
    return problems[0].peers["eager"] / (problems[0].ours.ms or float("inf"))


# --- other conditions: threads, alternation, memory


def read_conditions(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def by_workload(conditions: Sequence[dict[str, str]], kind: str) -> dict[str, dict[str, float]]:
    """The values of one kind of condition: for each workload, by case."""
    found: dict[str, dict[str, float]] = {}
    for row in conditions:
        if row["kind"] == kind:
            found.setdefault(row["workload"], {})[row["case"]] = float(row["value"])
    return found


def scratch(values: dict[str, float]) -> float:
    """MiB that a call takes beyond its result and a packed copy of its weights."""
    return (values["peak"] - values["result"] - values["weights"]) / 2**20


def loss(values: dict[str, float]) -> float:
    """The time of fused and eager layers in turn over that of as many by themselves."""
    return values["in turn"] / ((values["fused"] + values["eager"]) / 2)


def condition_goals(conditions: Sequence[dict[str, str]]) -> list[Goal]:
    found = [
        Goal(f"{name}: one thread's time / two threads'", values["1 thread"] / values["2 threads"], 1.8, False)
        for name, values in by_workload(conditions, "threads").items()
    ]
    alone = by_workload(conditions, "alternation, one thread")
    found += [
        Goal(
            f"{name}: loss of fused and eager in turn, two threads' / one's",
            loss(values) / loss(alone[name]),
            1.05,
            True,
        )
        for name, values in by_workload(conditions, "alternation").items()
    ]
    memory = by_workload(conditions, "memory")
    if all("peak" in values for values in memory.values()) and memory:
        most = max(scratch(values) for values in memory.values())
        found.append(Goal("memory of a call beyond result and weights, MiB, largest", most, 8.0, True))
    return found


def condition_table(conditions: Sequence[dict[str, str]]) -> str:
    """The values themselves, a row for each workload and condition."""
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in conditions):
        for name, values in by_workload(conditions, kind).items():
            unit, scale = ("MiB", 2**20) if kind == "memory" else ("ms", 1)
            cases = ", ".join(f"{case}: {number(value / scale)} {unit}" for case, value in values.items())
            rows.append([kind, name, cases])
    return markdown(["condition", "workload", "measured"], rows, left=3)
