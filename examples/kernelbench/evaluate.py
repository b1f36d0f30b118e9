"""Check and time the ModelNew files of this folder the way their benchmarks do.

    python examples/kernelbench/evaluate.py [--device cuda] [--dtype float32] [--small]

For each problem, as the benchmarks do it: both models are made from one seed; in every trial both get the same random input, and
`torch.allclose` has to hold, with 1e-4 in float32 and 1e-2 in 16 bits, absolute and relative. Where a benchmark draws sizes anew
for each trial, so does this. Then both are timed in turn with autograd on and, on a GPU, the caches flushed before each call.

One thing differs. In float32 on a GPU the benchmarks' reference rounds to TF32, PyTorch's default, and lies further than 1e-4
from the right answer in many elements; so no right answer can keep their tolerance. Here the check is against the same reference
with TF32 off, which decides the exit code. How many elements the benchmarks' own check would refuse is printed too, for ModelNew
and for PyTorch's own convolutions without TF32. Both times are with TF32 allowed, as the benchmarks measure.
"""

import argparse
import random
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from problems import PROBLEMS, Problem
from torch import Tensor, nn

from sepconv.bench.timing import Timer
from sepconv.device import in_full_float32, is_float32_exact

HERE = Path(__file__).parent
SEED, TRIALS = 42, 5
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TOLERANCES}
JITTER = 0.15


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(PROBLEMS)}; all without one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=30, help="of the timing")
    parser.add_argument("--small", action="store_true", help="small inputs, for a quick look")
    asked = parser.parse_args(words)
    unknown = set(asked.problems) - set(PROBLEMS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(PROBLEMS)}")
    results = [evaluate(name, torch.device(asked.device), asked) for name in asked.problems or PROBLEMS]
    return 0 if all(results) else 1


def evaluate(name: str, device: torch.device, asked: argparse.Namespace) -> bool:
    """Whether ModelNew keeps the tolerance in every trial; prints what was found."""
    problem, dtype = PROBLEMS[name], DTYPES[asked.dtype]
    original, new = models(problem)
    original, new = original.to(device, dtype), new.to(device, dtype)
    print(f"{name}, {asked.dtype} on {device}")
    shape, worst = problem.small if asked.small else problem.shape, 0.0
    for trial in range(TRIALS):
        x = drawn(problem, shape, SEED + trial).to(device, dtype)
        worst = max(worst, trial_of(original, new, x, TOLERANCES[dtype]))
    torch.manual_seed(SEED)
    x = problem.draw(shape).to(device, dtype)
    times = Timer(device).in_turn({"reference": lambda: original(x), "ModelNew": lambda: new(x)}, asked.rounds)
    before, after = times["reference"].median, times["ModelNew"].median
    print(
        f"  time at {tuple(shape)}: reference {before:.3f} ms, ModelNew {after:.3f} ms, {before / after:.2f} times as fast"
    )
    print("  all trials right" if worst == 0 else f"  WRONG: up to {worst:.2%} of the elements are outside")
    return worst == 0


def models(problem: Problem) -> tuple[nn.Module, nn.Module]:
    """The reference and ModelNew, each made from the same seed; ModelNew has the very parameters, and loads the reference's."""
    torch.manual_seed(SEED)
    original = problem.reference()
    torch.manual_seed(SEED)
    new = runpy.run_path(str(HERE / problem.file))["ModelNew"](*problem.arguments)
    for (name, right), (other, found) in zip(original.named_parameters(), new.named_parameters(), strict=True):
        assert name == other, f"{name} is called {other}"
        assert torch.equal(right, found), f"{name} begins with other values"
    new.load_state_dict(original.state_dict(), strict=True)
    return original, new


def drawn(problem: Problem, shape: Sequence[int], seed: int) -> Tensor:
    """The input of a trial; jittered axes get a size within 15% of their own."""
    torch.manual_seed(seed)
    sizes, spread = list(shape), random.Random(seed)
    for axis in problem.jittered:
        sizes[axis] = spread.randint(max(1, int(sizes[axis] * (1 - JITTER))), int(sizes[axis] * (1 + JITTER)))
    return problem.draw(sizes)


def trial_of(original: nn.Module, new: nn.Module, x: Tensor, tolerance: float) -> float:
    """The share of elements of ModelNew's result that are outside of the tolerance against the reference without TF32."""
    with torch.no_grad():
        result, exact = new(x), in_full_float32(x.device.type, original, x)
        if x.dtype is torch.float32 and not is_float32_exact(x.device.type):
            rounded = original(x)
            found = (f"{outside(other, rounded, tolerance):.2%}" for other in (result, exact))
            text = "against a reference in TF32 {} of ModelNew's elements are outside, and {} of PyTorch's without TF32"
            print(f"  x {tuple(x.shape)}: {text.format(*found)}")
    return 0.0 if torch.allclose(exact, result, atol=tolerance, rtol=tolerance) else outside(result, exact, tolerance)


def outside(result: Tensor, right: Tensor, tolerance: float) -> float:
    """The share of elements that `torch.allclose` would not accept; all of them where the shapes differ."""
    if result.shape != right.shape:
        return 1.0
    return 1.0 - torch.isclose(result, right, atol=tolerance, rtol=tolerance).double().mean().item()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
