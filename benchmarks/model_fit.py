"""The cost model against what `sepconv tune` measured: for each problem its choice and the best; and constants that fit better.

    sepconv tune --workload mobilenet_v1 --again --json > times.json
    python benchmarks/model_fit.py times.json [MORE.json ...] [--search STEPS] [--seed SEED]

Prints how many times as long the model's choice takes as the fastest candidate, its rank among all of them, and the geometric
mean. With `--search`, constants are then varied at random from those in use, and a change that does not raise the geometric
mean is kept; the best are printed as they stand in `sepconv.tuning.model`.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean

from rich.progress import track

from sepconv.device import Device
from sepconv.problem import Problem
from sepconv.tuning.config import CpuConfig
from sepconv.tuning.facts import device_from, problem_from
from sepconv.tuning.model import CONSTANTS, Constants, clocks

SPREADS = (0.1, 0.3, 1.0)  # of the logarithm of a constant in one step


@dataclass(frozen=True)
class Measured:
    """One problem on one device, with the milliseconds of each candidate."""

    label: str
    problem: Problem
    device: Device
    times: dict[CpuConfig, float]

    def choice(self, constants: Constants) -> CpuConfig:
        """The candidate that the model picks with these constants."""
        return min(self.times, key=lambda config: clocks(self.problem, config, self.device, constants))

    def loss(self, constants: Constants) -> float:
        """How many times as long that takes as the fastest."""
        return self.times[self.choice(constants)] / min(self.times.values())

    def rank(self, constants: Constants) -> int:
        """The place of the choice among all candidates, 1 for the fastest."""
        return 1 + sum(ms < self.times[self.choice(constants)] for ms in self.times.values())


def read(file: Path) -> list[Measured]:
    """The problems of a file that `sepconv tune --json` wrote, without those that were not measured in that run."""
    facts = json.loads(file.read_text())
    device = device_from(facts["device"])
    return [
        Measured(
            label=entry["label"],
            problem=problem_from(entry["problem"]),
            device=device,
            times={CpuConfig(**timed["config"]): timed["ms"] for timed in entry["candidates"]},
        )
        for entry in facts["problems"]
        if entry["candidates"]
    ]


def mean_loss(measured: Sequence[Measured], constants: Constants) -> float:
    """The geometric mean of the losses of all problems."""
    return geometric_mean(one.loss(constants) for one in measured)


def search(measured: Sequence[Measured], steps: int, seed: int, start: Constants = CONSTANTS) -> Constants:
    """The constants with the lowest mean loss that a random walk of this many steps comes to.

    The walk goes on over constants that are as good, since the loss is flat where no choice changes; of those that are as good
    it gives the first, which are the nearest to where it began.
    """
    draw, here, best = random.Random(seed), start, start
    least = mean_loss(measured, start)
    for _ in track(range(steps), "varying the constants", transient=True, disable=not sys.stderr.isatty()):
        tried = _varied(here, draw)
        loss = mean_loss(measured, tried)
        if loss < least:
            best, least = tried, loss
        if loss <= least:
            here = tried
    return best


def _varied(constants: Constants, draw: random.Random) -> Constants:
    """Some of the constants, one at least, larger or smaller by a random factor."""
    names = draw.sample([field.name for field in fields(constants)], draw.randint(1, 4))
    spread = draw.choice(SPREADS)
    return replace(constants, **{name: getattr(constants, name) * draw.lognormvariate(0, spread) for name in names})


def show(measured: Sequence[Measured], constants: Constants, say: Callable[[str], None] = print) -> None:
    """Each problem with the model's choice against the best, and the geometric mean of all."""
    for one in measured:
        choice, best = one.choice(constants), min(one.times, key=one.times.__getitem__)
        say(f"{one.label}: {one.loss(constants):.3f} times the best, rank {one.rank(constants)} of {len(one.times)}")
        say(f"    model  {one.times[choice]:.3f} ms  {choice}")
        say(f"    best   {one.times[best]:.3f} ms  {best}")
    say(f"{mean_loss(measured, constants):.4f} times the best in the geometric mean of {len(measured)} problems")


def main(words: Sequence[str]) -> int:
    """The exit code: 1 where the files hold no measured problem."""
    parser = argparse.ArgumentParser(description="The cost model against what `sepconv tune --json` measured.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--search", type=int, default=0, metavar="STEPS", help="how many random changes to try")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    measured = [one for file in asked.files for one in read(file)]
    if not measured:
        print("no problem in these files was measured; expected the output of `sepconv tune --again --json`")
        return 1
    show(measured, CONSTANTS)
    if asked.search:
        found = search(measured, asked.search, asked.seed)
        print()
        show(measured, found)
        for field in fields(found):
            print(f"    {field.name}: float = {getattr(found, field.name):.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
