"""The loop: every provider checked against float64 first, then the right ones timed in turn."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

import sepconv
from sepconv import dispatch
from sepconv.backends import results
from sepconv.bench import data, roofline
from sepconv.bench.baselines import Call, Provider, yardstick
from sepconv.bench.budget import Errors, budget, errors
from sepconv.bench.data import Case
from sepconv.bench.graphs import captured
from sepconv.bench.report import CALL, GRAPH, Row
from sepconv.bench.roofline import Ceilings, Gauge, Steady
from sepconv.bench.timing import Times
from sepconv.bench.workloads import Entry, Workload
from sepconv.device import describe
from sepconv.ops import problem_of
from sepconv.problem import Problem


@dataclass(frozen=True)
class Request:
    """What is to be measured; `ours` and `peers` are the providers, `pages` what `pages.found` says of PyTorch's tensors.

    `launch`: CALL, or GRAPH on CUDA, where every call is captured once and its replays are checked and timed.
    """

    workloads: tuple[Workload, ...]
    device: torch.device
    training: bool
    ours: Provider
    peers: tuple[Provider, ...]
    rounds: int
    seed: int
    pages: str = ""
    launch: str = CALL

    @property
    def direction(self) -> str:
        """'forward' or 'training', which is forward and backward together."""
        return "training" if self.training else "forward"


@dataclass(frozen=True)
class Check:
    """The error that comes closest to its budget, or passes it furthest, and where it is."""

    error: float
    budget: float
    place: str

    @property
    def is_right(self) -> bool:
        """Whether every result and gradient keeps its budget."""
        return self.error <= self.budget


@dataclass(frozen=True)
class Measured:
    """The rows of one problem, who took no part in it and why, and what is wrong."""

    rows: tuple[Row, ...]
    skipped: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Entrant:
    """A provider with its call and what the check of it found."""

    provider: Provider
    call: Call | None
    check: Check


def measure(
    request: Request,
    workload: Workload,
    entry: Entry,
    gauge: Gauge | Steady,
    after_round: Callable[[], None],
) -> Measured:
    """One problem: all providers checked, the right ones timed, the ceilings too in each round, the result as rows."""
    case = data.make(entry.problem, request.device, seed=request.seed, training=request.training)
    context = torch.enable_grad() if request.training else torch.inference_mode()
    with context, peer_precision(entry.problem, request.device) as peer_float32:
        entrants, skipped = _check_all(request, case, peer_float32)
        calls = {e.provider.name: e.call for e in entrants if e.call is not None and e.check.is_right}
        samples = [gauge.sample()]

        def end_round() -> None:
            samples.append(gauge.sample())
            after_round()

        times = gauge.timer.in_turn(calls, request.rounds, end_round)
    ceilings = roofline.median(samples)
    rows = tuple(_row(request, workload, entry, case, ceilings, e, times) for e in entrants)
    wrong = [
        f"{e.provider.name} is WRONG: error {e.check.error:.2g} in the {e.check.place}, {e.check.budget:.2g} allowed"
        for e in entrants
        if not e.check.is_right
    ]
    return Measured(_with_ratios(rows, request.ours.name), tuple(skipped), tuple(wrong))


def check(
    case: Case, results: Sequence[Tensor], right: Sequence[Tensor], peer: Sequence[Errors], precision: str
) -> Check:
    """The results, and in training the gradients, against what is right, under the budget."""
    if len(results) != len(right):
        return Check(math.inf, 0.0, f"number of results, {len(results)} for {len(right)},")
    found = []
    for name, result, expected, yard in zip(case.names(), results, right, peer, strict=True):
        allowed = budget(case.problem.dtype, precision, yard)
        for metric, error, most in zip(("norm", "maximum"), errors(result, expected), allowed, strict=True):
            found.append(Check(error, most, f"{name} ({metric})"))
    return max(found, key=lambda c: c.error / c.budget)


@contextlib.contextmanager
def peer_precision(problem: Problem, device: torch.device) -> Iterator[str]:
    """PyTorch's TF32 switch set as the problem's precision asks; gives the precision that a peer's float32 result has.

    TF32 is allowed but where the problem asks for full float32, as a user of either would set it.
    """
    if device.type != "cuda" or problem.dtype is not torch.float32:
        yield "ieee"
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = problem.precision != "ieee"
    try:
        yield "tf32" if problem.precision != "ieee" else "ieee"
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _check_all(request: Request, case: Case, peer_float32: str) -> tuple[list[_Entrant], list[str]]:
    right = data.right(case)
    peer = [errors(result, expected) for result, expected in zip(yardstick(case), right, strict=True)]
    entrants, skipped = [], []
    for provider in (request.ours, *request.peers):
        ours = provider is request.ours
        reasons = provider.reasons(case.problem, request.device, training=request.training)
        if reasons:
            skipped.append(f"{provider.name} is skipped: {'; '.join(reasons)}")
            continue
        try:
            call = _prepared(request, provider, case)
            found = check(case, call(), right, peer, case.problem.precision if ours else peer_float32)
        except Exception as error:  # a peer that cannot run must not end the run of the others
            words = f"raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            if ours:
                entrants.append(_Entrant(provider, None, Check(math.inf, 0.0, f"call, which {words},")))
            else:
                skipped.append(f"{provider.name} is skipped: it {words}")
            continue
        entrants.append(_Entrant(provider, call, found))
    return entrants, skipped


def _prepared(request: Request, provider: Provider, case: Case) -> Call:
    """The call to check and to time, whose result will lie where NaN was."""
    call = provider.prepare(case)
    if request.launch == GRAPH:
        return captured(call)
    leave_nan_behind(case)
    return call


def leave_nan_behind(case: Case) -> None:
    """Free memory of the output's size full of NaN, which a fresh output is likely to get: unwritten places show.

    What was kept of earlier results is forgotten: there, what an earlier call wrote would look like this one's.
    """
    results.forget()
    poison = torch.full(case.problem.output_shape, math.nan, dtype=case.problem.dtype, device=case.device)
    del poison


def _row(
    request: Request,
    workload: Workload,
    entry: Entry,
    case: Case,
    ceilings: Ceilings,
    entrant: _Entrant,
    times: dict[str, Times],
) -> Row:
    provider, problem = entrant.provider, entry.problem
    traffic, flops = roofline.work(problem, training=request.training)
    floor = roofline.floor_ms(traffic, flops, problem.precision, problem.dtype, ceilings)
    time = times.get(provider.name)
    plan, rejected = _plan(case) if provider is request.ours and entrant.call else ("", "")
    libraries = (f"sepconv {sepconv.__version__}", f"torch {torch.__version__}", provider.version)
    return Row(
        workload=workload.name,
        problem=str(problem),
        count=entry.count,
        device=str(describe(request.device)),
        dtype=str(problem.dtype).removeprefix("torch."),
        layout=problem.layout,
        direction=request.direction,
        pages=request.pages,
        provider=provider.name,
        plan=plan,
        ms=time.median if time else None,
        ms_p20=time.p20 if time else None,
        ms_p80=time.p80 if time else None,
        bytes=traffic,
        flops=flops,
        **asdict(ceilings),
        floor_ms=floor,
        efficiency=floor / time.median if time else None,
        error=entrant.check.error,
        error_budget=entrant.check.budget,
        versions="; ".join(dict.fromkeys(filter(None, libraries))),
        precision=problem.precision,
        launch=request.launch,
        rejected=rejected,
    )


def _plan(case: Case) -> tuple[str, str]:
    """Which backend ran sepconv's calls, and who chose it; and what those that were asked before have against it.

    In training both with that of the backward, where it differs.
    """
    plans, rejected = [], []
    for direction in ("forward", "backward") if case.training else ("forward",):
        plan = dispatch.plan(problem_of(case.operands, case.options, direction), describe(case.device))
        plans.append(f"{plan.backend.name} ({plan.source})")
        rejected.append(dispatch.in_words(plan.rejected))
    both, against = (", backward ".join(dict.fromkeys(words)) for words in (plans, rejected))
    return both, against


def _with_ratios(rows: tuple[Row, ...], ours: str) -> tuple[Row, ...]:
    """The rows, ours with its time over that of the fastest peer, where both were timed."""
    peers = [row.ms for row in rows if row.provider != ours and row.ms is not None]
    if not peers:
        return rows
    best = min(peers)
    return tuple(
        replace(row, ratio_to_best_peer=row.ms / best) if row.provider == ours and row.ms is not None else row
        for row in rows
    )
