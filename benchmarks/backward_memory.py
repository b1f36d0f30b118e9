"""What autograd keeps between forward and backward: the plain pair against sepconv, per workload.

    python benchmarks/backward_memory.py

Bytes of every distinct storage that is saved for backward, summed over all pairs of the workload, in float32; without the
weights, and without the result, which the next layer keeps as its input. Counted on the meta device, so that nothing is
computed and the figures are the same on every machine.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import sepconv
from sepconv.bench.workloads import workload
from sepconv.problem import Activation, Problem

WORKLOADS = ("A", "B", "mobilenet_v1@32", "mobilenet_v2@32", "xception@32", "quartznet15x5@32", "conformer@32")
RESULT = Path(__file__).parent / "results" / "backward-memory.csv"
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}
OURS = {1: sepconv.separable_conv1d, 2: sepconv.separable_conv2d}
FUNCTIONS = {"identity": lambda t: t, "relu": F.relu, "relu6": F.relu6, "silu": F.silu}


def main() -> None:
    RESULT.parent.mkdir(exist_ok=True)
    with RESULT.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["workload", "pairs", "pair_bytes", "sepconv_bytes", "torch", "sepconv"])
        for name in WORKLOADS:
            entries = workload(name).entries
            totals = [sum(e.count * kept(f, e.problem) for e in entries) for f in (pair, ours)]
            rows.writerow([name, sum(e.count for e in entries), *totals, torch.__version__, sepconv.__version__])
    print(RESULT.read_text(), end="")


def kept(forward: Callable[[Problem, list[Tensor]], Tensor], problem: Problem) -> int:
    """Bytes that one forward pass keeps for backward, without the weights and the result."""
    middle = problem.in_channels * problem.depth_multiplier
    ones = (1,) * problem.rank
    shapes = [
        (problem.batch, problem.in_channels, *problem.in_size),
        (middle, 1, *problem.kernel_size),
        (problem.out_channels, middle, *ones),
    ]
    tensors = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    weights = {t.untyped_storage()._cdata for t in tensors[1:]}
    storages: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storages[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = forward(problem, tensors)
    assert y.requires_grad
    left_out = {*weights, y.untyped_storage()._cdata}
    return sum(size for storage, size in storages.items() if storage not in left_out)


def pair(problem: Problem, tensors: list[Tensor]) -> Tensor:
    """What a user writes: two convolutions with their activations."""
    x, depthwise, pointwise = tensors
    before, after = (applied(a) for a in activations(problem))
    convolution = CONVOLUTIONS[problem.rank]
    middle = convolution(x, depthwise, None, problem.stride, padding(problem), problem.dilation, problem.in_channels)
    return after(convolution(before(middle), pointwise))


def ours(problem: Problem, tensors: list[Tensor]) -> Tensor:
    before, after = (None if a.name == "identity" else a.name for a in activations(problem))
    return OURS[problem.rank](
        *tensors, stride=problem.stride, padding=padding(problem), dilation=problem.dilation,
        depthwise_activation=before, pointwise_activation=after,
    )  # fmt: skip


def activations(problem: Problem) -> tuple[Activation, Activation]:
    return problem.epilogue.depthwise_activation, problem.epilogue.pointwise_activation


def applied(activation: Activation) -> Callable[[Tensor], Tensor]:
    return FUNCTIONS[activation.name]


def padding(problem: Problem) -> list[int]:
    return [before for before, _ in problem.padding]


if __name__ == "__main__":
    main()
