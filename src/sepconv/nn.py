"""The modules: a depthwise and a pointwise convolution as children, computed as one operation."""

from typing import Any, ClassVar, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sepconv.arguments import (
    ActivationLike,
    Sizes,
    canonical_activation,
    canonical_precision,
    padding_words,
    per_axis,
)
from sepconv.errors import ArgumentValueError, FuseError, type_error, value_error
from sepconv.functional import call
from sepconv.problem import DTYPES, Activation, Operands
from sepconv.reference import activate

Self = TypeVar("Self", bound="SeparableConvNd")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
CONVOLUTIONS: dict[int, type[Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def why_not_plain(child: nn.Module, rank: int) -> str | None:
    """Why a module's own call may do more than its convolution, or None where it is a plain `nn.ConvNd` of this rank."""
    expected = CONVOLUTIONS[rank]
    if type(child) is not expected:
        return f"is a {type(child).__name__}, not an nn.{expected.__name__} itself"
    state = child.__dict__
    if any([state[hooks] for hooks in _HOOKS]) or _has_any_global_hook():
        return "has hooks"
    if "forward" in state:
        return "has a forward of its own"
    return None


def why_not_pair(depthwise: nn.Module, pointwise: nn.Module, rank: int) -> str | None:
    """Why two modules are no depthwise convolution and the 1x1 convolution that follows it, or None where they are."""
    for name, child in (("depthwise", depthwise), ("pointwise", pointwise)):
        why = why_not_plain(child, rank)
        if why:
            return f"`{name}` {why}"
    if depthwise.groups != depthwise.in_channels:
        return f"`depthwise` has {depthwise.groups} groups for {depthwise.in_channels} channels"
    return why_not_pointwise(depthwise, pointwise)


def why_not_pointwise(depthwise: Any, pointwise: Any) -> str | None:
    """Why a plain convolution is not the 1x1 convolution of a pair, or None where it is."""
    ones = (1,) * len(pointwise.kernel_size)
    if pointwise.kernel_size != ones:
        return f"`pointwise` has kernel {pointwise.kernel_size}, not 1"
    if pointwise.stride != ones:
        return f"`pointwise` has stride {pointwise.stride}, not 1"
    if pointwise.padding not in ((0,) * len(ones), "valid") and pointwise.padding != "same":
        return f"`pointwise` has padding {pointwise.padding}, not 0"
    if pointwise.groups != 1:
        return f"`pointwise` has {pointwise.groups} groups, not 1"
    if pointwise.in_channels != depthwise.out_channels:
        return f"`pointwise` takes {pointwise.in_channels} channels, `depthwise` gives {depthwise.out_channels}"
    return None


class SeparableConvNd(nn.Module):
    """The base of `SeparableConv1d`, `SeparableConv2d` and `SeparableConv3d`, which say what they compute."""

    rank: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        bias: bool = False,
        *,
        depth_multiplier: int = 1,
        padding_mode: str = "zeros",
        depthwise_activation: ActivationLike = None,
        pointwise_activation: ActivationLike = None,
        precision: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        counts = {"in_channels": in_channels, "out_channels": out_channels, "depth_multiplier": depth_multiplier}
        for name, value in counts.items():
            _check_count(name, value)
        if not isinstance(bias, bool):
            raise type_error("bias", f"is {bias!r}", "True or False")
        if padding_mode not in PADDING_MODES:
            raise value_error("padding_mode", f"is {padding_mode!r}", f"one of {', '.join(PADDING_MODES)}")
        if dtype is not None and dtype not in DTYPES:
            raise type_error("dtype", f"is {dtype!r}", "float64, float32, float16 or bfloat16")
        stride = per_axis("stride", stride, self.rank, 1)
        window = (
            per_axis("kernel_size", kernel_size, self.rank, 1),
            stride,
            padding_words(padding, self.rank, stride),
            per_axis("dilation", dilation, self.rank, 1),
        )
        convolution, middle = CONVOLUTIONS[self.rank], in_channels * depth_multiplier
        factory = {"device": device, "dtype": dtype}
        self.depthwise = convolution(in_channels, middle, *window, in_channels, bias, padding_mode, **factory)
        self.pointwise = convolution(middle, out_channels, 1, bias=bias, **factory)
        self._set_options(depthwise_activation, pointwise_activation, precision)

    @classmethod
    def from_pair(
        cls: type[Self],
        depthwise: nn.Module,
        pointwise: nn.Module,
        *,
        depthwise_activation: ActivationLike = None,
        pointwise_activation: ActivationLike = None,
        precision: str | None = None,
    ) -> Self:
        """A module that takes an existing pair over: the two modules become its children, parameters and all.

        Args:
            depthwise: an `nn.ConvNd` of this rank with groups = in_channels.
            pointwise: an `nn.ConvNd` with kernel 1, stride 1, padding 0 and groups 1 that takes the depthwise's channels.
            depthwise_activation, pointwise_activation, precision: as in the constructor.

        Raises:
            ValueError: the two are no such pair; the text says why.
        """
        why = why_not_pair(depthwise, pointwise, cls.rank)
        if why:
            expected = f"a depthwise nn.{CONVOLUTIONS[cls.rank].__name__} and the 1x1 convolution that follows it"
            raise ArgumentValueError(f"{why}; expected {expected}.")
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.depthwise, module.pointwise = depthwise, pointwise
        module._set_options(depthwise_activation, pointwise_activation, precision)
        module.training = depthwise.training
        return module

    def _set_options(
        self, depthwise_activation: ActivationLike, pointwise_activation: ActivationLike, precision: str | None
    ) -> None:
        self.depthwise_activation: Activation = canonical_activation("depthwise_activation", depthwise_activation)
        self.pointwise_activation: Activation = canonical_activation("pointwise_activation", pointwise_activation)
        self.precision = canonical_precision(precision)
        self.folded: str | None = None

    def to_pair(self) -> tuple[Any, Any]:
        """The two child convolutions, as plain modules with their parameters; the activations stay behind."""
        return self.depthwise, self.pointwise

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The result for x (N, C, *L) or (C, *L), with `residual` of the result's shape added last."""
        depthwise, pointwise = self.depthwise, self.pointwise
        if why_not_pair(depthwise, pointwise, self.rank):
            return self._one_after_the_other(x, residual)
        padding = depthwise.padding
        if depthwise.padding_mode != "zeros":
            x = F.pad(x, depthwise._reversed_padding_repeated_twice, mode=depthwise.padding_mode)
            padding = 0
        return call(
            self.rank,
            Operands(x, depthwise.weight, pointwise.weight, depthwise.bias, pointwise.bias, residual),
            (
                depthwise.stride,
                padding,
                depthwise.dilation,
                self.depthwise_activation,
                self.pointwise_activation,
                self.precision,
            ),
        )

    def _one_after_the_other(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The same through the children's own calls, so that their hooks and replacements take part."""
        y = activate(
            self.pointwise(activate(self.depthwise(x), *self.depthwise_activation)), *self.pointwise_activation
        )
        return y if residual is None else y + residual

    def train(self: Self, mode: bool = True) -> Self:
        """As `nn.Module.train`; a module with a folded BatchNorm cannot train and says so."""
        if mode and self.folded:
            raise FuseError(
                f"`train()` came to a separable convolution into which {self.folded} was folded: what that does in training (a "
                "BatchNorm's statistics, a dropout) is gone, so it cannot train. Keep a copy of the model from before "
                "`sepconv.fuse` for training, and call `.eval()` on this one."
            )
        return super().train(mode)

    def extra_repr(self) -> str:
        """The activations and the precision; the children print their own numbers."""
        parts = [
            f"{name}={value}"
            for name, value in (
                ("depthwise_activation", self.depthwise_activation),
                ("pointwise_activation", self.pointwise_activation),
            )
            if value.name != "identity"
        ]
        return ", ".join(parts + [f"precision={self.precision}"] * (self.precision is not None))


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise type_error(name, f"is {value!r}", "an int of at least 1")
    if value < 1:
        raise value_error(name, f"is {value}", "an int of at least 1")


_DOC = """A depthwise and then a 1x1 pointwise convolution of {what}, as one operation.

    x {shape} -> (N, out_channels, *L'); a missing batch axis is allowed. Equal to `nn.{conv}(in_channels, in_channels *
    depth_multiplier, kernel_size, ..., groups=in_channels)`, the depthwise activation, `nn.{conv}(..., out_channels, 1)` and
    the pointwise activation. The two convolutions are its children `depthwise` and `pointwise`, made in that order, so that
    the state dict and a seeded initialisation equal those of the plain pair.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, padding_mode, device, dtype: as in `nn.{conv}`.
        bias: gives both steps a bias.
        depth_multiplier: depthwise outputs for each input channel.
        depthwise_activation, pointwise_activation, precision: as in `sepconv.{function}`.

    Raises:
        ValueError, TypeError: an argument is malformed; the text names it.
    """


class SeparableConv1d(SeparableConvNd):
    __doc__ = _DOC.format(what="a sequence", shape="(N, C, L)", conv="Conv1d", function="separable_conv1d")
    rank = 1


class SeparableConv2d(SeparableConvNd):
    __doc__ = _DOC.format(what="an image", shape="(N, C, H, W)", conv="Conv2d", function="separable_conv2d")
    rank = 2


class SeparableConv3d(SeparableConvNd):
    __doc__ = _DOC.format(what="a volume", shape="(N, C, D, H, W)", conv="Conv3d", function="separable_conv3d")
    rank = 3


MODULES: dict[int, type[SeparableConvNd]] = {1: SeparableConv1d, 2: SeparableConv2d, 3: SeparableConv3d}
