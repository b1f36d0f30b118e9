"""What is asked: the problem of one call as a frozen, printable record, with its output, its FLOPs and its bytes.

Nothing here touches tensor data. The functions on shapes and strides are plain arithmetic, so that they hold for
symbolic sizes too; the fake kernel uses nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
PRECISIONS = ("ieee", "high", "tf32")
DIRECTIONS = ("forward", "backward")
CHANNELS_FIRST = "channels_first"
CHANNELS_LAST = "channels_last"


class Activation(NamedTuple):
    """An elementwise function by name, with the one number that it may take (the slope of leaky_relu)."""

    name: str = "identity"
    value: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}({self.value:g})" if self.name == "leaky_relu" else self.name


class Operands(NamedTuple):
    """The tensors of one call, batched, in the order of the op's schema.

    x (N, C, *L), depthwise_weight (C*m, 1, *K), pointwise_weight (O, C*m, *1), depthwise_bias (C*m) or None,
    pointwise_bias (O) or None, residual (N, O, *L') or None.
    """

    x: Tensor
    depthwise_weight: Tensor
    pointwise_weight: Tensor
    depthwise_bias: Tensor | None = None
    pointwise_bias: Tensor | None = None
    residual: Tensor | None = None

    def with_dense_weights(self) -> "Operands":
        """The same with contiguous weights and biases; those that are so already are not copied."""
        return self._replace(
            depthwise_weight=self.depthwise_weight.contiguous(),
            pointwise_weight=self.pointwise_weight.contiguous(),
            depthwise_bias=None if self.depthwise_bias is None else self.depthwise_bias.contiguous(),
            pointwise_bias=None if self.pointwise_bias is None else self.pointwise_bias.contiguous(),
        )

    def addresses(self) -> list[int]:
        """Where each of them lies in memory; 0 for None."""
        return [0 if t is None else t.data_ptr() for t in self]

    def residual_with_strides(self, strides: tuple[int, ...]) -> Tensor | None:
        """The residual with these strides; not a copy where it has them."""
        if self.residual is None or self.residual.stride() == strides:
            return self.residual
        return self.residual.new_empty_strided(self.residual.shape, strides).copy_(self.residual)


class Options(NamedTuple):
    """The arguments of one call that are not tensors, in the order of the op's schema.

    `padding` holds two numbers an axis: before and after. `precision` None follows PyTorch's own switch.
    """

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    depthwise_activation: str = "identity"
    depthwise_value: float = 0.0
    pointwise_activation: str = "identity"
    pointwise_value: float = 0.0
    precision: str | None = None


@dataclass(frozen=True)
class Epilogue:
    """What follows each of the two steps before its result goes on."""

    depthwise_bias: bool = False
    depthwise_activation: Activation = Activation()
    pointwise_bias: bool = False
    pointwise_activation: Activation = Activation()
    residual: bool = False

    def __str__(self) -> str:
        depthwise = ["bias"] * self.depthwise_bias + [str(self.depthwise_activation)]
        pointwise = ["bias"] * self.pointwise_bias + [str(self.pointwise_activation)] + ["residual"] * self.residual
        return f"depthwise {' + '.join(depthwise)}, pointwise {' + '.join(pointwise)}"


@dataclass(frozen=True)
class Problem:
    """One depthwise-separable convolution: sizes, dtype, layout, precision and direction; no tensor.

    Sizes are in elements. `padding` is a pair (before, after) an axis. `layout` is that of the output. `precision` is
    resolved ('ieee', 'high' or 'tf32') and speaks for float32 only. `direction` is 'forward' or 'backward'.
    """

    batch: int
    in_channels: int
    out_channels: int
    depth_multiplier: int
    in_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = CHANNELS_FIRST
    precision: str = "ieee"
    epilogue: Epilogue = Epilogue()
    direction: str = "forward"

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.in_size)

    @cached_property
    def out_size(self) -> tuple[int, ...]:
        """The spatial size of the output."""
        flat = [n for pair in self.padding for n in pair]
        return output_size(self.in_size, self.kernel_size, self.stride, flat, self.dilation)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output, batched: (N, O, *L')."""
        return (self.batch, self.out_channels, *self.out_size)

    @cached_property
    def output_strides(self) -> tuple[int, ...]:
        """The strides of the output in elements."""
        return dense_strides(self.output_shape, self.layout)

    @property
    def flops(self) -> int:
        """Floating-point operations of both steps in this direction; a multiply-add counts as two.

        Backward counts the gradients of the input and of both weights, without what is recomputed.
        """
        pixels = self.batch * math.prod(self.out_size)
        middle = self.in_channels * self.depth_multiplier
        forward = 2 * pixels * middle * (math.prod(self.kernel_size) + self.out_channels)
        return forward if self.direction == "forward" else 2 * forward

    @property
    def bytes(self) -> int:
        """The fewest bytes to move through memory: every input read once, every output written once.

        Forward: x, the residual and the weights in, y out. Backward: x, the gradient of y and the weights in, the
        gradients of x and of the weights out.
        """
        x = self.batch * self.in_channels * math.prod(self.in_size)
        y = math.prod(self.output_shape)
        middle = self.in_channels * self.depth_multiplier
        weights = middle * (math.prod(self.kernel_size) + self.out_channels)
        if self.direction == "forward":
            elements = x + weights + y * (2 if self.epilogue.residual else 1)
        else:
            elements = 2 * x + y + 2 * weights
        return elements * self.dtype.itemsize

    def __str__(self) -> str:
        size, kernel = ("x".join(map(str, s)) for s in (self.in_size, self.kernel_size))
        multiplier = f"*{self.depth_multiplier}" if self.depth_multiplier > 1 else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.rank}-D {self.direction} ({self.batch}, {self.in_channels}{multiplier}, {size}) -> "
            f"{self.out_channels}, kernel {kernel}, stride {self.stride}, padding {self.padding}, "
            f"dilation {self.dilation}, {dtype} {self.layout} {self.precision}; {self.epilogue}"
        )


def output_size(
    in_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """The spatial size of the output; `padding` is flat, two numbers an axis."""
    return tuple(
        (n + padding[2 * i] + padding[2 * i + 1] - dilation[i] * (kernel_size[i] - 1) - 1) // stride[i] + 1
        for i, n in enumerate(in_size)
    )


def output_shape(operands: Operands, options: Options) -> tuple[int, ...]:
    """The shape (N, O, *L') of the output of one call; plain arithmetic, symbolic sizes included."""
    x, depthwise_weight, pointwise_weight = operands[:3]
    size = output_size(x.shape[2:], depthwise_weight.shape[2:], options.stride, options.padding, options.dilation)
    return (x.shape[0], pointwise_weight.shape[0], *size)


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether PyTorch takes these strides for channels_last; a gap is allowed, an ambiguous case is not.

    Ambiguous are shapes such as (N, C, 1, 1) with equal strides: they count as channels first. This is the rule of
    `Tensor.suggest_memory_format` (c10/core/MemoryFormat.h), for any rank.
    """
    if strides[1] == 0:
        return False
    smallest: Any = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < smallest:
            return False
        if axis == 0 and smallest == strides[1]:
            return False
        smallest = strides[axis] * shape[axis] if shape[axis] > 1 else strides[axis]
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these strides fill memory in some order of the axes, without gap or overlap; size-1 axes do not count."""
    if any(size == 0 for size in shape):
        return True
    step: Any = 1
    for stride, size in sorted([(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1]):
        if stride != step:
            return False
        step = step * size
    return True


def dense_strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape in this layout; only the first axis may be empty."""
    axes = range(len(shape))
    order = axes if layout == CHANNELS_FIRST else (0, *axes[2:], 1)
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def output_layout(operands: Operands) -> str:
    """The layout of the output, by the layouts of x and of the weights.

    In 2-D and 3-D channels_last where x or a weight is, as PyTorch's convolution gives it. In 1-D channels_last (dense in
    (N, L, C) order) only where x is dense in that order and in no other.
    """
    x = operands.x
    if x.dim() == 3:
        dense = not x.is_contiguous() and x.transpose(1, 2).is_contiguous()
        return CHANNELS_LAST if dense else CHANNELS_FIRST
    last = any(is_channels_last(t.shape, t.stride()) for t in operands[:3])
    return CHANNELS_LAST if last else CHANNELS_FIRST
