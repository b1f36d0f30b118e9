"""The workloads: named lists of distinct depthwise -> pointwise pairs, as data, from the papers' tables.

A workload is asked for by its name, with an optional batch behind an @: `mobilenet_v1@8`. The names:

- `A`: KernelBench level1/86, x (16, 64, 512, 512), 3x3, 64 -> 128. `B`: PopcornBench level2/popcorn/7,
  x (32, 256, 4096), 9 taps, 256 -> 512. `A/16` and `B/16` are the same with a sixteenth of the batch.
- `layer56`, `layer14`: two middle layers of such networks by themselves, x (8, 128, 56, 56), 128 -> 256, and
  (8, 512, 14, 14), 512 -> 512, both 3x3; `layer14@1` is the small one.
- `mobilenet_v1`: Howard et al. 2017, arXiv:1704.04861, table 1, at 224x224. BatchNorm and ReLU after each step. (The
  table gives the last depthwise layer stride 2 by a slip: its input and output are both 7x7.)
- `mobilenet_v2`: Sandler et al. 2018, arXiv:1801.04381, tables 1 and 2, at 224x224. ReLU6 after the depthwise step,
  nothing after the pointwise one; a residual in the blocks that repeat.
- `mobilenet_v4`: Qin et al. 2024, arXiv:2404.10518, the MNv4-Conv-M of its tables (timm's mobilenetv4_conv_medium), at
  256x256. Each of a block's depthwise layers with the pointwise one behind it: the first one with the expansion, BatchNorm
  between them and ReLU after; the one in the middle with the projection, ReLU between them and the block's residual after.
- `xception`: Chollet 2017, arXiv:1610.02357, figure 5, at 299x299. Nothing between the two steps; after them ReLU
  where the next layer in the figure is one, a residual at the end of a middle block.
- `xception41`: the modified aligned Xception of Chen et al. 2018, arXiv:1802.02611, figure 4, with the eight middle blocks of
  timm's xception41, at 299x299. BatchNorm after both steps; then ReLU, or the block's residual, which comes before its ReLU.
  The last three layers have ReLU between the steps too.
- `quartznet5x5`, `quartznet15x5`: Kriman et al. 2020, arXiv:1910.10261, table 1, for 16 s of speech: 1600 frames of
  64 features. Nothing between the two steps; ReLU after them, or the block's residual, which comes before its ReLU.
- `conformer`: Gulati et al. 2020, arXiv:2005.08100, table 1 (sizes S, M and L) and figure 2, for 16 s of speech:
  400 frames after the subsampling by 4. Swish between the steps, then the residual. Kernel 31: the paper has 32, which
  padding makes uneven, and what people run (torchaudio, ESPnet, NeMo) has 31.
- `tiny`: small odd problems, for tests and for a first try.

BatchNorm is folded, as it is in inference: it leaves a bias behind the convolution that it followed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sepconv.errors import ArgumentValueError
from sepconv.problem import CHANNELS_FIRST, Activation, Epilogue, Problem


@dataclass(frozen=True)
class Entry:
    """One distinct pair, and how often it occurs in the model."""

    problem: Problem
    count: int = 1


@dataclass(frozen=True)
class Workload:
    """A named list of distinct pairs; the name is the one that was asked for, the batch included."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations of all pairs of the model, each as often as it occurs."""
        return sum(entry.count * entry.problem.flops for entry in self.entries)


RELU, RELU6, SILU = Activation("relu"), Activation("relu6"), Activation("silu")
PLAIN = Epilogue()
RELU_AFTER_EACH = Epilogue(True, RELU, True, RELU)
RELU6_BETWEEN = Epilogue(True, RELU6, True)
RELU6_BETWEEN_RESIDUAL = replace(RELU6_BETWEEN, residual=True)
BIASES_RELU_BEHIND = Epilogue(True, pointwise_bias=True, pointwise_activation=RELU)
RELU_BETWEEN = Epilogue(True, RELU, True)
RELU_BETWEEN_RESIDUAL = replace(RELU_BETWEEN, residual=True)
BIASES_RESIDUAL_BEHIND = Epilogue(True, pointwise_bias=True, residual=True)
BIAS_BEHIND = Epilogue(pointwise_bias=True)
RELU_BEHIND = Epilogue(pointwise_bias=True, pointwise_activation=RELU)
RESIDUAL_BEHIND = Epilogue(pointwise_bias=True, residual=True)
SWISH_BETWEEN_RESIDUAL = Epilogue(True, SILU, True, residual=True)


def _pair(
    channels: int,
    size: Sequence[int],
    kernel: int,
    out_channels: int,
    epilogue: Epilogue = PLAIN,
    *,
    stride: int = 1,
    dilation: int = 1,
    multiplier: int = 1,
    batch: int = 1,
) -> Problem:
    """A pair with one kernel size in every axis and dilation * (kernel - 1) zeros, the odd one behind."""
    rank, zeros = len(size), dilation * (kernel - 1)
    return Problem(
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        depth_multiplier=multiplier,
        in_size=tuple(size),
        kernel_size=(kernel,) * rank,
        stride=(stride,) * rank,
        padding=((zeros // 2, zeros - zeros // 2),) * rank,
        dilation=(dilation,) * rank,
        epilogue=epilogue,
    )


def _square(
    channels: int,
    side: int,
    out_channels: int,
    epilogue: Epilogue,
    count: int = 1,
    *,
    kernel: int = 3,
    stride: int = 1,
) -> Entry:
    return Entry(_pair(channels, (side, side), kernel, out_channels, epilogue, stride=stride), count)


def _mobilenet_v1() -> tuple[Entry, ...]:
    rows = (  # channels, side, stride, out channels, how often
        (32, 112, 1, 64, 1), (64, 112, 2, 128, 1), (128, 56, 1, 128, 1), (128, 56, 2, 256, 1), (256, 28, 1, 256, 1),
        (256, 28, 2, 512, 1), (512, 14, 1, 512, 5), (512, 14, 2, 1024, 1), (1024, 7, 1, 1024, 1),
    )  # fmt: skip
    return tuple(_square(c, side, o, RELU_AFTER_EACH, n, stride=s) for c, side, s, o, n in rows)


def _mobilenet_v2() -> tuple[Entry, ...]:
    rows = (  # channels (expanded), side, stride, out channels, how often with a residual: 0 is once without
        (32, 112, 1, 16, 0), (96, 112, 2, 24, 0), (144, 56, 1, 24, 1), (144, 56, 2, 32, 0), (192, 28, 1, 32, 2),
        (192, 28, 2, 64, 0), (384, 14, 1, 64, 3), (384, 14, 1, 96, 0), (576, 14, 1, 96, 2), (576, 14, 2, 160, 0),
        (960, 7, 1, 160, 2), (960, 7, 1, 320, 0),
    )  # fmt: skip
    return tuple(
        _square(c, side, o, RELU6_BETWEEN_RESIDUAL if n else RELU6_BETWEEN, n or 1, stride=s)
        for c, side, s, o, n in rows
    )


def _mobilenet_v4() -> tuple[Entry, ...]:
    first = (  # channels, side, kernel, out channels (expanded), how often
        (48, 64, 3, 192, 1), (80, 32, 3, 160, 1), (80, 32, 3, 480, 1), (160, 16, 3, 640, 6), (160, 16, 5, 960, 1),
        (256, 8, 5, 1024, 2), (256, 8, 3, 1024, 3), (256, 8, 3, 512, 1), (256, 8, 5, 512, 1),
    )  # fmt: skip
    middle = (  # channels (expanded), side, kernel, stride, out channels, how often; stride 1 has the residual
        (192, 64, 5, 2, 80, 1), (160, 32, 3, 1, 80, 1), (480, 32, 5, 2, 160, 1), (640, 16, 3, 1, 160, 3),
        (640, 16, 5, 1, 160, 1), (960, 16, 5, 2, 256, 1), (1024, 8, 5, 1, 256, 4), (512, 8, 5, 1, 256, 1),
    )  # fmt: skip
    expansions = [_square(c, side, o, BIASES_RELU_BEHIND, n, kernel=k) for c, side, k, o, n in first]
    projections = [
        _square(c, side, o, RELU_BETWEEN_RESIDUAL if s == 1 else RELU_BETWEEN, n, kernel=k, stride=s)
        for c, side, k, s, o, n in middle
    ]
    return (*expansions, *projections)


def _xception41() -> tuple[Entry, ...]:
    rows = (  # channels, side, stride, out channels, epilogue, how often
        (64, 150, 1, 128, BIASES_RELU_BEHIND, 1), (128, 150, 1, 128, BIASES_RELU_BEHIND, 1),
        (128, 150, 2, 128, BIASES_RESIDUAL_BEHIND, 1), (128, 75, 1, 256, BIASES_RELU_BEHIND, 1),
        (256, 75, 1, 256, BIASES_RELU_BEHIND, 1), (256, 75, 2, 256, BIASES_RESIDUAL_BEHIND, 1),
        (256, 38, 1, 728, BIASES_RELU_BEHIND, 1), (728, 38, 1, 728, BIASES_RELU_BEHIND, 1),
        (728, 38, 2, 728, BIASES_RESIDUAL_BEHIND, 1), (728, 19, 1, 728, BIASES_RELU_BEHIND, 17),
        (728, 19, 1, 728, BIASES_RESIDUAL_BEHIND, 8), (728, 19, 1, 1024, BIASES_RELU_BEHIND, 1),
        (1024, 19, 2, 1024, BIASES_RESIDUAL_BEHIND, 1), (1024, 10, 1, 1536, RELU_AFTER_EACH, 1),
        (1536, 10, 1, 1536, RELU_AFTER_EACH, 1), (1536, 10, 1, 2048, RELU_AFTER_EACH, 1),
    )  # fmt: skip
    return tuple(_square(c, side, o, epilogue, n, stride=s) for c, side, s, o, epilogue, n in rows)


def _xception() -> tuple[Entry, ...]:
    rows = (
        (64, 147, 128, RELU_BEHIND, 1), (128, 147, 128, BIAS_BEHIND, 1), (128, 74, 256, RELU_BEHIND, 1),
        (256, 74, 256, BIAS_BEHIND, 1), (256, 37, 728, RELU_BEHIND, 1), (728, 37, 728, BIAS_BEHIND, 1),
        (728, 19, 728, RELU_BEHIND, 17), (728, 19, 728, RESIDUAL_BEHIND, 8), (728, 19, 1024, BIAS_BEHIND, 1),
        (1024, 10, 1536, RELU_BEHIND, 1), (1536, 10, 2048, RELU_BEHIND, 1),
    )  # fmt: skip
    return tuple(_square(*row) for row in rows)


def _quartznet(repeats: int) -> tuple[Entry, ...]:
    """Five blocks of five modules, each block `repeats` times; the fifth module of a block takes the residual."""
    entries = [Entry(_pair(64, (1600,), 33, 256, RELU_BEHIND, stride=2))]
    before = 256
    for kernel, channels in ((33, 256), (39, 256), (51, 512), (63, 512), (75, 512)):
        widens = before != channels
        if widens:
            entries.append(Entry(_pair(before, (800,), kernel, channels, RELU_BEHIND)))
        entries.append(Entry(_pair(channels, (800,), kernel, channels, RELU_BEHIND), 4 * repeats - widens))
        entries.append(Entry(_pair(channels, (800,), kernel, channels, RESIDUAL_BEHIND), repeats))
        before = channels
    entries.append(Entry(_pair(512, (800,), 87, 512, RELU_BEHIND, dilation=2)))
    return tuple(entries)


def _conformer() -> tuple[Entry, ...]:
    sizes = ((144, 16), (256, 16), (512, 17))  # encoder width and layers of S, M and L
    return tuple(Entry(_pair(width, (400,), 31, width, SWISH_BETWEEN_RESIDUAL), layers) for width, layers in sizes)


def _tiny() -> tuple[Entry, ...]:
    problems = (
        _pair(5, (19,), 4, 7, SWISH_BETWEEN_RESIDUAL, batch=2),
        _pair(6, (37,), 5, 3, RELU_BEHIND, stride=2, dilation=2),
        _pair(3, (9, 11), 3, 5, RELU6_BETWEEN, stride=2, multiplier=2),
        _pair(7, (13, 6), 3, 17, RELU_AFTER_EACH, batch=3),
    )
    return tuple(map(Entry, problems))


_A, _B = _pair(64, (512, 512), 3, 128, batch=16), _pair(256, (4096,), 9, 512, batch=32)
WORKLOADS: dict[str, tuple[Entry, ...]] = {
    "A": (Entry(_A),),
    "B": (Entry(_B),),
    "A/16": (Entry(replace(_A, batch=1)),),
    "B/16": (Entry(replace(_B, batch=2)),),
    "layer56": (Entry(_pair(128, (56, 56), 3, 256, batch=8)),),
    "layer14": (Entry(_pair(512, (14, 14), 3, 512, batch=8)),),
    "mobilenet_v1": _mobilenet_v1(),
    "mobilenet_v2": _mobilenet_v2(),
    "mobilenet_v4": _mobilenet_v4(),
    "xception": _xception(),
    "xception41": _xception41(),
    "quartznet5x5": _quartznet(1),
    "quartznet15x5": _quartznet(3),
    "conformer": _conformer(),
    "tiny": _tiny(),
}


def default_names(kind: str) -> tuple[str, ...]:
    """The workloads of a run that names none: the two reference problems, at a size that suits this kind of device."""
    return ("A", "B") if kind == "cuda" else ("A/16", "B/16")


def workload(
    text: str,
    dtype: torch.dtype = torch.float32,
    layout: str = CHANNELS_FIRST,
    precision: str = "ieee",
) -> Workload:
    """The workload that `text` names, `name` or `name@batch`, with this dtype, layout and resolved precision.

    Raises ArgumentValueError where the name is unknown or the batch is no positive number.
    """
    name, at, number = text.partition("@")
    if name not in WORKLOADS:
        raise ArgumentValueError(
            f"`workload` is {text!r}; expected one of {', '.join(WORKLOADS)}, with @ and a batch behind it where it "
            "should not be the usual one (mobilenet_v1@8)."
        )
    if at and not (number.isdecimal() and int(number) > 0):
        raise ArgumentValueError(f"`workload` is {text!r}; expected a batch of at least 1 behind the @: {name}@8.")
    entries = []
    for entry in WORKLOADS[name]:
        batch = int(number) if at else entry.problem.batch
        problem = replace(entry.problem, batch=batch, dtype=dtype, layout=layout, precision=precision)
        entries.append(replace(entry, problem=problem))
    return Workload(text, tuple(entries))


def weights(problem: Problem) -> int:
    """The number of weights of both steps, biases not counted."""
    return problem.in_channels * problem.depth_multiplier * (math.prod(problem.kernel_size) + problem.out_channels)
