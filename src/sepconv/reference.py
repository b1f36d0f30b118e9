"""What is right: the forward result and every gradient in plain, differentiable PyTorch, for any rank and dtype.

    y = act_p( Wp . act_d( DW(x, Wd) + bd ) + bp ) (+ residual)

DW is a cross-correlation with zero padding and groups = in_channels. In float64 this is the definition that every backend
is held against. Gradients recompute the intermediate, so that nothing of its size has to be saved.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sepconv.problem import Operands, Options

aten = torch.ops.aten
CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


class _Function(NamedTuple):
    """An activation: `forward(t, value, inplace)`, and `gradient(grad, t, value)` with t the activation's input."""

    forward: Callable[[Tensor, float, bool], Tensor]
    gradient: Callable[[Tensor, Tensor, float], Tensor]


def _silu_gradient(grad: Tensor, t: Tensor) -> Tensor:
    """The gradient of silu; PyTorch's own kernel for it has no derivative, so it is written out where one may be asked."""
    if not torch.is_grad_enabled():
        return aten.silu_backward(grad, t)  # type: ignore[no-any-return]
    s = t.sigmoid()
    return grad * s * (1 + t * (1 - s))


def _hardsigmoid(t: Tensor, inplace: bool) -> Tensor:
    """hardsigmoid; PyTorch derives its own only once, so it is written out where a derivative may be asked for."""
    return F.relu6(t + 3) / 6 if torch.is_grad_enabled() and not inplace else F.hardsigmoid(t, inplace)


def _hardsigmoid_gradient(grad: Tensor, t: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return aten.hardsigmoid_backward(grad, t)  # type: ignore[no-any-return]
    return aten.hardtanh_backward(grad, t, -3, 3) / 6  # type: ignore[no-any-return]


_FUNCTIONS: dict[str, _Function] = {
    "identity": _Function(lambda t, v, i: t, lambda g, t, v: g),
    "relu": _Function(lambda t, v, i: F.relu(t, i), lambda g, t, v: aten.threshold_backward(g, t, 0)),
    "relu6": _Function(lambda t, v, i: F.relu6(t, i), lambda g, t, v: aten.hardtanh_backward(g, t, 0, 6)),
    "silu": _Function(lambda t, v, i: F.silu(t, i), lambda g, t, v: _silu_gradient(g, t)),
    "hardswish": _Function(lambda t, v, i: F.hardswish(t, i), lambda g, t, v: aten.hardswish_backward(g, t)),
    "gelu": _Function(lambda t, v, i: F.gelu(t), lambda g, t, v: aten.gelu_backward(g, t)),
    "gelu_tanh": _Function(
        lambda t, v, i: F.gelu(t, approximate="tanh"), lambda g, t, v: aten.gelu_backward(g, t, approximate="tanh")
    ),
    "leaky_relu": _Function(
        lambda t, v, i: F.leaky_relu(t, v, i), lambda g, t, v: aten.leaky_relu_backward(g, t, v, False)
    ),
    "hardsigmoid": _Function(lambda t, v, i: _hardsigmoid(t, i), lambda g, t, v: _hardsigmoid_gradient(g, t)),
    "sigmoid": _Function(
        lambda t, v, i: t.sigmoid_() if i else t.sigmoid(), lambda g, t, v: aten.sigmoid_backward(g, t.sigmoid())
    ),
    "tanh": _Function(lambda t, v, i: t.tanh_() if i else t.tanh(), lambda g, t, v: aten.tanh_backward(g, t.tanh())),
}
ACTIVATIONS = tuple(_FUNCTIONS)


def activate(t: Tensor, name: str, value: float = 0.0, *, inplace: bool = False) -> Tensor:
    """The named activation of t, elementwise; with `inplace` t may be overwritten."""
    return _FUNCTIONS[name].forward(t, value, inplace)


def activation_gradient(grad: Tensor, t: Tensor, name: str, value: float = 0.0) -> Tensor:
    """The gradient with respect to t of the named activation of t, given the gradient of its result."""
    return _FUNCTIONS[name].gradient(grad, t, value)


def forward(operands: Operands, options: Options, *, inplace: bool = False) -> Tensor:
    """The result y (N, O, *L') of one call; differentiable unless `inplace` lets intermediates be overwritten."""
    y = _depthwise(operands, options)
    if options.depthwise_activation != "identity":
        y = activate(y, options.depthwise_activation, options.depthwise_value, inplace=inplace)
    y = _pointwise(y, operands)
    if options.pointwise_activation != "identity":
        y = activate(y, options.pointwise_activation, options.pointwise_value, inplace=inplace)
    if operands.residual is None:
        return y
    return y.add_(operands.residual) if inplace else y + operands.residual


def gradients(grad: Tensor, operands: Operands, options: Options, wanted: Sequence[bool]) -> list[Tensor]:
    """The gradients of x, both weights and both biases that `wanted` (five flags) asks for, in that order.

    `grad` is the gradient of y. The residual's gradient is `grad` itself. Differentiable in every tensor.
    """
    x, depthwise_weight, pointwise_weight = operands[:3]
    through = any(wanted[i] for i in (0, 1, 3))  # whether a gradient has to pass the pointwise step
    linear = options.depthwise_activation == options.pointwise_activation == "identity"
    if linear and not wanted[2]:
        before = middle = _shape_of_middle(grad, depthwise_weight)
    else:
        before = _depthwise(operands, options)
        middle = activate(before, options.depthwise_activation, options.depthwise_value)
    if options.pointwise_activation != "identity":
        after = _pointwise(middle, operands)
        grad = activation_gradient(grad, after, options.pointwise_activation, options.pointwise_value)
    ones, zeros = [1] * (x.dim() - 2), [0] * (x.dim() - 2)
    grad_middle, grad_pointwise, grad_pointwise_bias = aten.convolution_backward(
        grad, middle, pointwise_weight, [pointwise_weight.shape[0]], ones, zeros, ones, False, zeros, 1,
        [through, wanted[2], wanted[4]],
    )  # fmt: skip
    grad_x = grad_depthwise = grad_depthwise_bias = None
    if through:
        grad_before = activation_gradient(grad_middle, before, options.depthwise_activation, options.depthwise_value)
        grad_x, grad_depthwise, grad_depthwise_bias = _depthwise_gradients(
            grad_before, x, depthwise_weight, options, [wanted[0], wanted[1], wanted[3]]
        )
    found = (grad_x, grad_depthwise, grad_pointwise, grad_depthwise_bias, grad_pointwise_bias)
    return [g for g, want in zip(found, wanted, strict=True) if want and g is not None]


def _depthwise(operands: Operands, options: Options) -> Tensor:
    x, weight, _, bias, _, _ = operands
    x, padding = _padded(x, options.padding)
    convolution = CONVOLUTIONS[x.dim() - 2]
    return convolution(x, weight, bias, options.stride, padding, options.dilation, x.shape[1])


def _pointwise(middle: Tensor, operands: Operands) -> Tensor:
    return CONVOLUTIONS[middle.dim() - 2](middle, operands.pointwise_weight, operands.pointwise_bias)


def _padded(x: Tensor, padding: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
    """x and the padding that is left for the convolution: it takes the same number on both sides of an axis only."""
    before, after = padding[0::2], padding[1::2]
    if before == after:
        return x, before
    flat = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return F.pad(x, flat), [0] * len(before)


def _depthwise_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, options: Options, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    padded, padding = _padded(x, options.padding)
    stride, dilation, zeros = list(options.stride), list(options.dilation), [0] * len(padding)
    grad_x, grad_weight, grad_bias = aten.convolution_backward(
        grad, padded, weight, [weight.shape[0]], stride, padding, dilation, False, zeros, x.shape[1], wanted
    )
    if grad_x is not None and padded is not x:
        for axis in range(2, x.dim()):
            grad_x = grad_x.narrow(axis, options.padding[2 * axis - 4], x.shape[axis])
    return grad_x, grad_weight, grad_bias


def _shape_of_middle(grad: Tensor, depthwise_weight: Tensor) -> Tensor:
    """A stand-in with the shape of the intermediate and one element of memory, where only the shape is asked for."""
    return grad.new_zeros(()).expand(grad.shape[0], depthwise_weight.shape[0], *grad.shape[2:])
