"""One problem after the other tuned: the backend's candidates and PyTorch's own kernels on real tensors, checked and timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import geometric_mean

import torch
from torch import Tensor

from sepconv.backends import Backend, backends_for
from sepconv.backends.eager import EagerBackend
from sepconv.bench import data
from sepconv.bench.baselines import yardstick
from sepconv.bench.budget import Errors, errors
from sepconv.bench.measure import check, leave_nan_behind
from sepconv.bench.timing import Timer
from sepconv.device import Device, describe
from sepconv.errors import CompilerError
from sepconv.problem import Problem
from sepconv.tuning import records
from sepconv.tuning.config import CpuConfig
from sepconv.tuning.records import Record
from sepconv.tuning.search import Choice, Outcome, search

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """One problem with its record, and the outcome of the search where it was measured now."""

    problem: Problem
    record: Record | None
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Run:
    """What a run has found so far: problems that have a record in `file` now, and why others have none."""

    device: Device
    file: Path
    tuned: list[Tuned] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """The candidates whose results are not right, in words."""
        outcomes = [tuned.outcome for tuned in self.tuned if tuned.outcome]
        return [f"{config} is WRONG for {found.problem}" for found in outcomes for config in found.wrong]

    @property
    def loss(self) -> float | None:
        """How many times as long the model's choices take as the fastest candidates: the geometric mean of all problems."""
        found = [tuned.record.model_ms / tuned.record.ms for tuned in self.tuned if tuned.record]
        return geometric_mean(found) if found else None


class Rig:
    """The tensors of one problem, and the calls that the search makes with them."""

    def __init__(self, problem: Problem, backend: Backend, timer: Timer, device: torch.device, tell: Tell) -> None:
        self._case = data.make(problem, device)
        self._backend, self._timer, self._tell = backend, timer, tell
        self._device = describe(device)
        self._calls = 0
        self._right: Tensor | None = None

    def run(self, choice: Choice) -> float:
        """Milliseconds of one call with this choice."""
        self._calls += 1
        self._tell(f"call {self._calls}")
        return self._timer.once(lambda: self._result(choice))

    def is_right(self, config: CpuConfig) -> bool:
        """Whether the result with this configuration keeps the error budget."""
        self._tell(f"checking {config}")
        leave_nan_behind(self._case)
        y = self._result(config)
        if self._right is not None and torch.equal(y, self._right):  # bit by bit a result that was checked before
            return True
        right, allowed = self._expected
        found = check(self._case, [y], [right], [allowed], self._case.problem.precision).is_right
        if found:
            self._right = y
        return found

    @cached_property
    def _expected(self) -> tuple[Tensor, Errors]:
        """The result in float64, and the errors of PyTorch's own kernels."""
        right = data.right(self._case)[0]
        return right, errors(yardstick(self._case)[0], right)

    def _result(self, choice: Choice) -> Tensor:
        case = self._case
        backend: Backend = EagerBackend() if choice is None else self._backend
        return backend.forward(case.problem, choice, case.operands, case.options, self._device)


def start(device: Device) -> Run:
    """A run that has found nothing yet. Raises StoreError or SettingError where records cannot be kept."""
    return Run(device, records.save((), device))


def tune(
    run: Run, problems: Sequence[Problem], device: torch.device, again: bool, tell: Callable[[str, float], None]
) -> None:
    """Tune every problem that has no record yet, or all of them `again`; a record is on disk before the next one begins.

    `tell` hears of each step, with the share that is done. A problem whose kernel does not compile is skipped. Raises
    StoreError.
    """
    timer = Timer(device)
    for number, problem in enumerate(problems):
        title, share = f"{number + 1}/{len(problems)} {label(problem)}", number / len(problems)
        _tune_one(run, problem, timer, device, again, partial(_tell_of, tell, title, share))


def _tell_of(tell: Callable[[str, float], None], title: str, share: float, step: str) -> None:
    tell(f"{title}: {step}", share)


def _tune_one(run: Run, problem: Problem, timer: Timer, device: torch.device, again: bool, tell: Tell) -> None:
    tell("starting")
    known = None if again else records.lookup(problem, run.device)
    if known is not None:
        run.tuned.append(Tuned(problem, known))
        return
    backend, reasons = tunable(problem, run.device)
    if backend is None:
        run.skipped.append(f"{label(problem)} is skipped: {'; '.join(reasons)}")
        return
    try:
        with torch.inference_mode():
            rig = Rig(problem, backend, timer, device, tell)
            outcome = search(problem, run.device, rig.run, rig.is_right)
    except CompilerError as error:
        run.skipped.append(f"{label(problem)} is skipped: {error}")
        return
    record = outcome.record() if outcome.timed else None
    if record is not None:
        records.save([record], run.device)
    run.tuned.append(Tuned(problem, record, outcome))


def tunable(problem: Problem, device: Device) -> tuple[Backend | None, list[str]]:
    """The first backend that runs a problem with something to choose, or None and every reason."""
    if 0 in problem.output_shape:
        return None, ["its result is empty"]
    reasons = []
    if not records.covers(device):
        return None, [f"kernels for {device.kind} have nothing to choose yet"]
    for backend in backends_for(device):
        found = backend.unavailable(device) or backend.reasons(problem, device)
        if not found and backend.configure(problem, device)[0] is not None:
            return backend, []
        reasons += [f"{backend.name} {reason}" for reason in found]
    return None, reasons


def label(problem: Problem) -> str:
    """The sizes of a problem in a few words."""
    size, kernel = ("x".join(map(str, axes)) for axes in (problem.in_size, problem.kernel_size))
    multiplier = f"*{problem.depth_multiplier}" if problem.depth_multiplier > 1 else ""
    words = [f"{problem.batch}x{problem.in_channels}{multiplier}x{size} -> {problem.out_channels}", f"kernel {kernel}"]
    words += [
        f"{name} {'x'.join(map(str, axes))}"
        for name, axes in (("stride", problem.stride), ("dilation", problem.dilation))
        if max(axes) > 1
    ]
    return ", ".join(words + ["residual"] * problem.epilogue.residual)
