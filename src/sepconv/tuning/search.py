"""The search: every candidate checked, then timed in turn with PyTorch's own kernels; the clearly slower drop out on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning import model
from sepconv.tuning.config import CpuConfig
from sepconv.tuning.records import Record

Choice = CpuConfig | None  # None: PyTorch's own kernels
# How many rounds, and how many times as long as the fastest one's median the fastest call of a candidate may take to stay.
# A call that something else on the machine slowed down drops nobody.
STAGES = ((2, 1.5), (3, 1.2), (4, 1.1), (8, 1.0))


@dataclass(frozen=True)
class Timed:
    """The milliseconds of the calls of one choice, in the order in which they were made."""

    choice: Choice
    times: tuple[float, ...]

    @property
    def ms(self) -> float:
        """The median in milliseconds."""
        return median(self.times)


@dataclass(frozen=True)
class Outcome:
    """What the search found for one problem.

    `timed` holds the right candidates in the model's order, `wrong` those whose result was not right, `eager` the times of
    PyTorch's own kernels. Where `timed` is empty there is nothing to choose, and nothing to record.
    """

    problem: Problem
    timed: tuple[Timed, ...]
    wrong: tuple[CpuConfig, ...]
    eager: Timed

    @property
    def chosen(self) -> Timed:
        """The times of the model's choice, or of its next one where that is wrong."""
        return self.timed[0]

    @property
    def best(self) -> Timed:
        """The times of the fastest candidate, among those that stayed to the end."""
        most = max(len(timed.times) for timed in self.timed)
        return min((timed for timed in self.timed if len(timed.times) == most), key=lambda timed: timed.ms)

    @property
    def loss(self) -> float:
        """How many times as long the model's choice takes as the fastest candidate."""
        return self.chosen.ms / self.best.ms

    def record(self) -> Record:
        """What is kept of it."""
        config = self.best.choice
        assert config is not None
        return Record(self.problem, config, self.best.ms, self.chosen.ms, self.eager.ms, torch.__version__)


def search(
    problem: Problem, device: Device, run: Callable[[Choice], float], is_right: Callable[[CpuConfig], bool]
) -> Outcome:
    """Find the fastest right candidate for a problem.

    `run` makes one call with a choice and gives its milliseconds; `is_right` says whether a candidate's result keeps the
    error budget, and is asked once for each before anything is timed. What either raises passes through.
    """
    ranked = model.ranked(problem, device)
    right = [config for config in ranked if is_right(config)]
    times = _times(right, run)
    timed = tuple(Timed(config, tuple(times[config])) for config in right)
    wrong = tuple(config for config in ranked if config not in right)
    return Outcome(problem, timed, wrong, Timed(None, tuple(times[None])))


def _times(right: Sequence[CpuConfig], run: Callable[[Choice], float]) -> dict[Choice, list[float]]:
    """The times of every candidate and of PyTorch's own kernels, called in turn, round by round."""
    found: dict[Choice, list[float]] = {choice: [] for choice in (*right, None)}
    staying = list(found)
    for rounds, limit in STAGES:
        for _ in range(rounds):
            for choice in staying:
                found[choice].append(run(choice))
        fastest = min((median(found[choice]) for choice in staying if choice is not None), default=0.0)
        staying = [choice for choice in staying if min(found[choice]) <= limit * fastest]
    return found
