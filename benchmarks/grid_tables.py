"""The tables and goals of the grid on an NVIDIA GPU, from results/cuda-grid.csv."""

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from cuda_tables import LAYOUTS, environment, gain, kind_of
from grid import BATCHES, COMPILED, items
from table_parts import Goal, Problem, goal_table, in_short, markdown, number, of_all

from sepconv.bench.report import Row, read_csv

SECTIONS = ("grid-environment", "grid-goals", "grid-models", "grid-eager")  # of docs/performance.md
PICKED = "eager ("  # how the plan of a row begins where sepconv gave the problem to PyTorch


def load(file: Path) -> list[Problem]:
    """The problems of the file, in the order of the grid."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in read_csv(file):
        found.setdefault((row.workload, row.problem), []).append(row)
    return [Problem(tuple(found[item.key])) for item in items() if item.key in found]


def page_sections(problems: Sequence[Problem]) -> dict[str, str]:
    """What stands between the marks of docs/performance.md, by SECTIONS."""
    return {
        "grid-environment": f"{environment([row for p in problems for row in p.rows])} {extent(problems)}",
        "grid-goals": goal_table(goals(problems)),
        "grid-models": model_table(problems),
        "grid-eager": eager_table(problems),
    }


def extent(problems: Sequence[Problem]) -> str:
    """How much of the grid was measured, as a sentence."""
    compiled = sum("compile" in p.peers for p in problems)
    return f"{len(problems)} of {len(items())} rows, {compiled} of {COMPILED} with torch.compile among the peers."


def goals(problems: Sequence[Problem]) -> list[Goal]:
    """The goals of the grid, with what was measured."""
    worst = max(p.ours.error / p.ours.error_budget if p.ours.error_budget else float("inf") for p in problems)
    return [
        Goal("best peer / ours, geometric mean", of_all(gains(problems, None), mean), 1.8, at_most=False),
        Goal("eager in the same layout / ours, least", of_all(gains(problems, "eager"), min), 0.98, at_most=False),
        Goal("best peer / ours, least", of_all(gains(problems, None), min), 0.8, at_most=False),
        Goal("error / allowed, largest", worst, 1.0, at_most=True),
    ]


def gains(problems: Sequence[Problem], peer: str | None) -> list[float]:
    """The times of a peer, or of the best one, over ours, where it was timed; 0 where our result was wrong."""
    wanted = [p for p in problems if (p.peers if peer is None else peer in p.peers)]
    return [gain(p, peer) or 0.0 for p in wanted]


def mean(gains: Sequence[float]) -> float:
    return geometric_mean(gains) if all(gains) else 0.0


def model_table(problems: Sequence[Problem]) -> str:
    """A row for each model at each batch in each form, and one for all."""
    head = ["model", "batch", "", "layout", "rows", "best / ours, mean", "eager / ours, least", "best / ours, least"]
    head.append("eager picked")
    rows = []
    for model, batches in BATCHES.items():
        for batch in batches:
            of_model = [p for p in problems if p.ours.workload == f"{model}@{batch}"]
            for kind, layout in dict.fromkeys((kind_of(p.ours), p.ours.layout) for p in of_model):
                found = [p for p in of_model if (kind_of(p.ours), p.ours.layout) == (kind, layout)]
                rows.append([model, str(batch), kind, LAYOUTS[layout], *figures(found)])
    return markdown(head, [*rows, ["**all**", "", "", "", *figures(problems)]], left=4)


def figures(problems: Sequence[Problem]) -> list[str]:
    best, eager = gains(problems, None), gains(problems, "eager")
    found = [of_all(best, mean), of_all(eager, min), of_all(best, min)]
    picked = sum(is_eager(p) for p in problems)
    return [str(len(problems)), *("-" if figure is None else f"{figure:.2f}" for figure in found), str(picked)]


def eager_table(problems: Sequence[Problem]) -> str:
    """Every problem that sepconv gave to PyTorch's own kernels, and what each fused kernel has against it."""
    rows = []
    picked = [p for p in problems if is_eager(p)]
    for p in picked:
        ours = p.ours
        where = [ours.workload, in_short(ours), f"{kind_of(ours)}, {LAYOUTS[ours.layout]}"]
        rows.append([*where, ours.rejected or ours.plan, number(ours.ms), number(gain(p, None))])
    count = f"{len(picked)} of {len(problems)} rows."
    head = ["workload", "problem", "", "why", "ms", "best / ours"]
    return f"{count}\n\n{markdown(head, rows, left=4)}" if rows else count


def is_eager(problem: Problem) -> bool:
    return problem.ours.plan.startswith(PICKED)
