"""The two problems, with a reference model of our own: the benchmarks' parameters, in their order, initialised as theirs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Pair(nn.Module):
    """A depthwise convolution with zeros around and then a pointwise one, as two modules of PyTorch."""

    def __init__(
        self,
        convolution: type[nn.Conv1d | nn.Conv2d],
        channels: int,
        outputs: int,
        kernel: int,
        stride: int,
        padding: int,
    ):
        super().__init__()
        self.depthwise = convolution(channels, channels, kernel, stride, padding, groups=channels, bias=False)
        self.pointwise = convolution(channels, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark: the file with `ModelNew`, what the models are made with, and the shapes of x.

    `jittered` are the axes of x whose sizes the benchmark draws anew for each trial, within 15%.
    """

    file: str
    convolution: type[nn.Conv1d | nn.Conv2d]
    arguments: tuple[int, ...]  # channels, outputs, kernel, stride, padding
    shape: tuple[int, ...]
    small: tuple[int, ...]
    draw: Callable[..., Tensor]
    jittered: tuple[int, ...] = ()

    def reference(self) -> nn.Module:
        return Pair(self.convolution, *self.arguments)


PROBLEMS = {
    "level1/86": Problem(
        "level1_86.py", nn.Conv2d, (64, 128, 3, 1, 1), (16, 64, 512, 512), (2, 64, 24, 40), torch.rand
    ),
    "level2/popcorn/7": Problem(
        "level2_popcorn_7.py", nn.Conv1d, (256, 512, 9, 1, 4), (32, 256, 4096), (2, 256, 72), torch.randn, (0, 2)
    ),
}
