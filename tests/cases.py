"""The table of problems that the tests share, the tensors for them, and the right answer in PyTorch's own operations.

Nothing here uses sepconv: `pair` is written with `F.conv` alone, so that it can disagree with the library.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("x", "depthwise_weight", "pointwise_weight", "depthwise_bias", "pointwise_bias", "residual")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
Numbers = int | tuple[int, ...]
ActivationWord = str | tuple[str, float | str] | None


@dataclass(frozen=True)
class Case:
    """One call: sizes and arguments, without tensors. `L` is the input's spatial size, `K` the kernel's.

    `bias` names the steps that have one: "", "d", "p" or "dp". `positive` draws everything from [0, 1).
    """

    id: str
    N: int
    C: int
    O: int  # noqa: E741
    L: tuple[int, ...]
    K: tuple[int, ...]
    m: int = 1
    stride: Numbers = 1
    padding: Numbers | str = 0
    dilation: Numbers = 1
    bias: str = ""
    activations: tuple[ActivationWord, ActivationWord] = (None, None)
    residual: bool = False
    positive: bool = False
    dtypes: tuple[torch.dtype, ...] = field(default=FLOATS, repr=False)

    @property
    def rank(self) -> int:
        return len(self.L)

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments that are not tensors."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "depthwise_activation": self.activations[0],
            "pointwise_activation": self.activations[1],
        }

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result, by stepping the window over the padded axis: no formula shared with the library."""
        size = []
        for axis, (n, k) in enumerate(zip(self.L, self.K, strict=True)):
            before, after = paddings(self)[axis]
            s, d = per_axis(self.stride, self.rank)[axis], per_axis(self.dilation, self.rank)[axis]
            size.append(len(range(-before, n + after - d * (k - 1), s)))
        return (self.N, self.O, *size)

    def __str__(self) -> str:
        return self.id


def per_axis(value: Numbers, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def paddings(case: Case) -> list[tuple[int, int]]:
    """Zeros before and after each axis; "same" puts the odd one behind."""
    if case.padding == "valid":
        return [(0, 0)] * case.rank
    if case.padding == "same":
        totals = [d * (k - 1) for d, k in zip(per_axis(case.dilation, case.rank), case.K, strict=True)]
        return [(t // 2, (t + 1) // 2) for t in totals]
    return [(p, p) for p in per_axis(case.padding, case.rank)]


# --- the right answer


def activation(word: ActivationWord) -> Callable[[Tensor], Tensor]:
    """An activation by the user's word for it, from `torch.nn.functional`."""
    name, value = word if isinstance(word, tuple) else (word, None)
    functions: dict[Any, Callable[[Tensor], Tensor]] = {
        None: lambda t: t,
        "identity": lambda t: t,
        "relu": F.relu,
        "relu6": F.relu6,
        "silu": F.silu,
        "hardswish": F.hardswish,
        "gelu": lambda t: F.gelu(t, approximate=value or "none"),
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
        "leaky_relu": lambda t: F.leaky_relu(t, 0.01 if value is None else value),
        "hardsigmoid": F.hardsigmoid,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }
    return functions[name]


def pair(tensors: Sequence[Tensor | None], case: Case) -> Tensor:
    """Two `F.conv` calls, one after the other, in the dtype that the tensors have."""
    x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual = tensors
    conv = (F.conv1d, F.conv2d, F.conv3d)[case.rank - 1]
    flat = [n for before, after in reversed(paddings(case)) for n in (before, after)]
    if flat[0::2] == flat[1::2]:
        padding: Any = tuple(reversed(flat[0::2]))
    else:
        x, padding = F.pad(x, flat), 0
    middle = conv(x, depthwise_weight, depthwise_bias, _steps(case), padding, case.dilation, case.C)
    y = activation(case.activations[0])(middle)
    y = activation(case.activations[1])(conv(y, pointwise_weight, pointwise_bias))
    return y if residual is None else y + residual


def _steps(case: Case) -> tuple[int, ...]:
    """The strides, cut to the padded axis: that changes no result, and PyTorch 2.13 crashes on 65536 in 16 bits."""
    strides = per_axis(case.stride, case.rank)
    return tuple(min(s, n + sum(p)) for s, n, p in zip(strides, case.L, paddings(case), strict=True))


def double(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if t is None else t.detach().double() for t in tensors]


def with_gradients(
    f: Callable[[list[Tensor | None]], Tensor], tensors: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The result of f and the gradient of every tensor, by name, given the gradient of the result."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = f(leaves)
    named = {name: t for name, t in zip(NAMES, leaves, strict=True) if t is not None}
    found = torch.autograd.grad(y, list(named.values()), grad.to(y.dtype))
    return y.detach(), dict(zip(named, found, strict=True))


# --- tensors


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensors_of(
    case: Case, dtype: torch.dtype = torch.float32, device: str = "cpu", form: str = "plain", seed: int = 0
) -> list[Tensor | None]:
    """The six tensors of a case in the order of `NAMES`, weights scaled so that the result is of order one."""
    g = generator(seed)
    # Expanded tensors have few values: where a sum of theirs cancels, all that a result has may be what rounding left.
    positive = case.positive or form == "expanded"
    draw = torch.rand if positive else torch.randn
    middle, ones = case.C * case.m, (1,) * case.rank
    taps = max(1, torch.Size(case.K).numel())

    def new(*shape: int, over: int = 1) -> Tensor:
        t = draw(*shape, generator=g, dtype=torch.float64) / (over if positive else over**0.5)
        return laid_out(t.to(dtype).to(device), form)

    return [
        new(case.N, case.C, *case.L),
        new(middle, 1, *case.K, over=taps),
        new(case.O, middle, *ones, over=middle),
        new(middle) if "d" in case.bias else None,
        new(case.O) if "p" in case.bias else None,
        new(*case.out_shape) if case.residual else None,
    ]


def grad_of(case: Case, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 1) -> Tensor:
    """A gradient of the result, rounded to the dtype."""
    draw = torch.rand if case.positive else torch.randn
    return draw(case.out_shape, generator=generator(seed), dtype=torch.float64).to(dtype).to(device)


FORMS = ("plain", "channels_last", "misaligned", "gaps", "permuted", "expanded")


def laid_out(t: Tensor, form: str) -> Tensor:
    """The same values in another place: what is between and around them is NaN.

    plain: contiguous. channels_last: the channels innermost, for any rank. misaligned: contiguous, one element after an
    aligned start. gaps: every second element of the last axis and an offset in every axis. permuted: all axes in
    reverse order. expanded: the last axis (and of x the first) is one element with stride 0; this changes the values.
    """
    if form == "plain":
        return t.contiguous()
    if form == "channels_last":
        if t.dim() == 3:
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        # Not `t.to(memory_format=...)`: that leaves a tensor of one channel as it is.
        return torch.empty_like(t, memory_format=formats.get(t.dim(), torch.contiguous_format)).copy_(t)
    if form == "misaligned":
        return _nan(t, t.numel() + 1)[1:].view(t.shape).copy_(t)
    if form == "gaps":
        *head, tail = t.shape
        big = _nan(t, *(n + 2 for n in head), 2 * tail + 2)
        return big[(*(slice(1, 1 + n) for n in head), slice(1, 1 + 2 * tail, 2))].copy_(t)
    if form == "permuted":
        reverse = tuple(reversed(range(t.dim())))
        return t.permute(reverse).contiguous().permute(reverse)
    if form == "expanded":
        first = 1 if t.dim() > 2 and t.shape[0] > 0 else t.shape[0]
        return t[:first, ..., :1].clone().expand(t.shape) if t.dim() > 1 else t[:1].clone().expand(t.shape)
    raise ValueError(form)


def _nan(like: Tensor, *shape: int) -> Tensor:
    return torch.full(shape, float("nan"), dtype=like.dtype, device=like.device)


# --- the table

ACTIVATION_WORDS: tuple[ActivationWord, ...] = (
    None,
    "identity",
    "relu",
    "relu6",
    "silu",
    "hardswish",
    "gelu",
    "gelu_tanh",
    ("gelu", "none"),
    ("gelu", "tanh"),
    "leaky_relu",
    ("leaky_relu", 0.3),
    ("leaky_relu", 0),
    ("leaky_relu", -0.5),
    "hardsigmoid",
    "sigmoid",
    "tanh",
)
_FAST = (torch.float32,)


def _table() -> Iterator[Case]:
    # 1-D
    yield Case("1d-plain", 2, 8, 16, (32,), (3,), padding=1)
    yield Case("1d-prime", 3, 7, 11, (101,), (5,), padding=2, bias="dp")
    yield Case("1d-all-ones", 1, 1, 1, (1,), (1,))
    yield Case("1d-one-token", 2, 4, 3, (1,), (2,), padding=1)
    yield Case("1d-empty-batch", 0, 4, 3, (17,), (3,), padding=1, bias="dp")
    yield Case("1d-causal-width", 2, 33, 7, (50,), (4,), padding=3)
    yield Case("1d-stride-dilation", 2, 6, 5, (47,), (5,), stride=3, padding=4, dilation=2, bias="d")
    yield Case("1d-same-even", 2, 6, 5, (50,), (4,), padding="same", bias="p")
    yield Case("1d-same-even-dilated", 1, 5, 6, (29,), (6,), padding="same", dilation=3)
    yield Case("1d-same-odd", 1, 5, 6, (29,), (5,), padding="same", dilation=2)
    yield Case("1d-valid", 1, 5, 6, (29,), (5,), padding="valid", residual=True)
    yield Case("1d-kernel-over-map", 2, 5, 4, (3,), (9,), padding=4)
    yield Case("1d-256-taps", 2, 3, 4, (300,), (256,), m=2)
    yield Case("1d-long-stride", 2, 3, 4, (9,), (3,), stride=65536, padding=1)
    yield Case("1d-quartznet", 2, 64, 64, (63,), (33,), padding=16, activations=(None, "relu"), residual=True)
    yield Case(
        "1d-residual-activated", 2, 6, 9, (23,), (3,), padding=1, bias="dp", activations=("silu", "tanh"), residual=True
    )
    yield Case("1d-many-channels", 1, 65539, 3, (4,), (2,), padding=1, dtypes=_FAST)
    yield Case("1d-many-items", 65606, 2, 3, (8,), (3,), padding=1, dtypes=_FAST)
    yield Case("1d-long-sum-4096", 1, 4096, 16, (15,), (5,), padding=2, positive=True)
    # 2-D
    yield Case("2d-plain", 2, 8, 16, (12, 16), (3, 3), padding=1)
    yield Case("2d-prime", 2, 5, 7, (11, 13), (3, 3), padding=1, bias="dp")
    yield Case("2d-odd-one-less", 1, 15, 17, (7, 7), (3, 3), padding=1, bias="dp")
    yield Case("2d-all-ones", 1, 1, 1, (1, 1), (1, 1))
    yield Case("2d-just-fits", 1, 1, 1, (3, 3), (3, 3))
    yield Case("2d-1x1", 2, 6, 4, (5, 7), (1, 1), bias="d")
    yield Case("2d-empty-batch", 0, 20, 6, (10, 12), (3, 3), padding=1, bias="dp", residual=True)
    yield Case("2d-one-row", 2, 6, 4, (1, 19), (3, 3), padding=1)
    yield Case("2d-one-column", 2, 6, 4, (19, 1), (3, 3), padding=1)
    yield Case("2d-mixed", 2, 3, 4, (17, 19), (3, 2), stride=(1, 3), padding=(2, 1), dilation=(3, 1))
    yield Case(
        "2d-mixed-other-way", 2, 3, 4, (17, 19), (2, 5), stride=(3, 2), padding=(0, 4), dilation=(1, 2), bias="p"
    )
    yield Case("2d-tall-kernel", 1, 6, 4, (20, 9), (6, 1), padding=(2, 0))
    yield Case("2d-same-even", 2, 4, 3, (9, 10), (4, 2), padding="same", bias="d")
    yield Case("2d-same-mixed", 2, 4, 3, (9, 10), (3, 4), padding="same", dilation=(2, 3))
    yield Case("2d-stride-2", 1, 24, 3, (6, 6), (3, 3), stride=2, padding=1)
    yield Case("2d-stride-over-kernel", 1, 6, 3, (16, 15), (2, 2), stride=(3, 4))
    yield Case("2d-long-stride", 1, 3, 4, (5, 6), (3, 3), stride=(65537, 1 << 20), padding=1)
    yield Case("2d-map-under-padding", 1, 72, 8, (7, 1), (5, 5), stride=2, padding=2)
    yield Case("2d-kernel-over-map", 2, 6, 4, (2, 3), (5, 5), padding=4)
    yield Case("2d-256-taps", 2, 8, 5, (256, 5), (256, 1), m=2)
    yield Case("2d-7x7", 1, 19, 9, (14, 14), (7, 7), padding=3, activations=("gelu", None))
    yield Case("2d-13x13", 1, 4, 9, (15, 17), (13, 13), padding=6)
    yield Case("2d-multiplier-2", 2, 5, 4, (9, 7), (3, 3), m=2, stride=2, padding=1, bias="dp")
    yield Case("2d-multiplier-3", 2, 5, 4, (9, 7), (3, 3), m=3, stride=2, padding=1)
    yield Case("2d-multiplier-4", 2, 5, 4, (9, 7), (3, 3), m=4, padding=1, activations=("relu", None))
    yield Case("2d-multiplier-32", 2, 1, 7, (16, 16), (3, 3), m=32, padding=1)
    yield Case("2d-mobilenet", 2, 32, 64, (14, 14), (3, 3), padding=1, bias="dp", activations=("relu6", "relu6"))
    yield Case(
        "2d-residual-activated",
        2,
        6,
        9,
        (8, 7),
        (3, 3),
        padding=1,
        bias="dp",
        activations=("silu", "sigmoid"),
        residual=True,
    )
    yield Case("2d-long-sum-64", 1, 64, 16, (5, 5), (3, 3), padding=1, positive=True)
    yield Case("2d-long-sum-1024", 1, 1024, 16, (5, 5), (3, 3), padding=1, positive=True)
    yield Case("2d-long-weight-sum", 1, 3, 4, (128, 96), (3, 3), padding=1, positive=True)
    # 3-D
    yield Case("3d-plain", 2, 4, 6, (5, 6, 7), (3, 3, 3), padding=1, bias="dp")
    yield Case("3d-mixed", 1, 3, 4, (7, 6, 9), (2, 3, 1), m=2, stride=(1, 2, 3), padding=(1, 0, 2), dilation=(2, 1, 1))
    yield Case("3d-same-even", 1, 3, 4, (5, 6, 7), (2, 3, 4), padding="same", activations=("relu", "silu"))
    yield Case("3d-all-ones", 1, 1, 1, (1, 1, 1), (1, 1, 1))
    yield Case("3d-empty-batch", 0, 3, 4, (5, 6, 7), (3, 3, 3), padding=1)
    yield Case("3d-kernel-over-map", 1, 3, 4, (2, 1, 3), (5, 3, 3), padding=(4, 1, 2), residual=True)


TABLE = tuple(_table())
BY_ID = {case.id: case for case in TABLE}
ENDINGS = tuple(
    replace(BY_ID[base], id=f"{base}-bias-{bias or 'none'}-residual-{residual}", bias=bias, residual=residual)
    for base, bias, residual in itertools.product(
        ("1d-stride-dilation", "2d-mixed"), ("", "d", "p", "dp"), (False, True)
    )
)
ACTIVATED = tuple(
    replace(BY_ID[base], id=f"{base}-{step}-{word}", bias="dp", activations=pair_of_words)
    for base in ("1d-prime", "2d-prime")
    for word in ACTIVATION_WORDS
    for step, pair_of_words in (("depthwise", (word, None)), ("pointwise", (None, word)))
)
CHANNELS = tuple(Case(f"2d-C{C}", 1, C, 3, (6, 6), (3, 3), stride=2, padding=1, dtypes=_FAST) for C in range(1, 41))
ALL = TABLE + ENDINGS + ACTIVATED + CHANNELS
