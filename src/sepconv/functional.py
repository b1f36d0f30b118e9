"""The public functions: a call in the user's words becomes canonical arguments, and then the op."""

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from sepconv import dispatch, ops, shortcuts
from sepconv.arguments import ActivationLike, Sizes, Words, canonical, check_tensors, is_batched, with_batch
from sepconv.device import Device, describe, float32_switch, usable
from sepconv.errors import value_error
from sepconv.plain import is_plain_call, keys_of
from sepconv.problem import Operands, Problem
from sepconv.shortcuts import are_lasting, kinds_of


def separable_conv1d(
    x: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    *,
    depthwise_activation: ActivationLike = None,
    pointwise_activation: ActivationLike = None,
    residual: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """A depthwise and then a 1x1 pointwise convolution of a sequence; see `separable_conv2d` for every argument.

    x (N, C, L) or (C, L), depthwise_weight (C*m, 1, K), pointwise_weight (O, C*m, 1); returns (N, O, L') or (O, L').
    The output is contiguous, unless x is dense in (N, L, C) order: then it is dense in (N, L, O) order.
    """
    operands = Operands(x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual)
    return call(1, operands, (stride, padding, dilation, depthwise_activation, pointwise_activation, precision))


def separable_conv2d(
    x: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    *,
    depthwise_activation: ActivationLike = None,
    pointwise_activation: ActivationLike = None,
    residual: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """A depthwise and then a 1x1 pointwise convolution of an image, as one differentiable operation.

    Equal to `conv2d(x, depthwise_weight, depthwise_bias, stride, padding, dilation, groups=C)`, the depthwise activation,
    `conv2d(..., pointwise_weight, pointwise_bias)`, the pointwise activation and the residual added, one after the other
    (Sifre 2014, 'Rigid-motion scattering'; Chollet 2017, arXiv:1610.02357; Howard et al. 2017, arXiv:1704.04861).

    Args:
        x: (N, C, H, W), or (C, H, W) without a batch; float64, float32, float16 or bfloat16, any strides.
        depthwise_weight: (C*m, 1, KH, KW) with depth multiplier m; output channel c*m + j belongs to input channel c.
        pointwise_weight: (O, C*m, 1, 1).
        depthwise_bias: (C*m,) or None.
        pointwise_bias: (O,) or None.
        stride: step of the window in elements; an int, or one an axis.
        padding: zeros on both sides in elements; an int, one an axis, "valid" (none) or "same" (stride 1 only; an odd
            number of zeros puts the extra one behind).
        dilation: distance of the window's taps in elements; an int, or one an axis.
        depthwise_activation: what follows the depthwise step: a name of `sepconv.ACTIVATIONS`, a pair of name and value
            (`("leaky_relu", 0.1)`, `("gelu", "tanh")`), or None for nothing.
        pointwise_activation: the same for the pointwise step.
        residual: added last; the shape of the result.
        precision: for float32 on CUDA: "ieee" (full), "high" (1e-5) or "tf32" (1e-3). None is "high" where
            `torch.backends.cudnn.conv.fp32_precision` is "tf32", otherwise "ieee".

    Returns:
        (N, O, H', W') or (O, H', W'), in the dtype of x (of autocast inside its context); channels_last where x or a weight is.

    Raises:
        ValueError, TypeError: the call is malformed; the text names the argument, what came and what is expected.
        sepconv.UnsupportedError: no backend can run the call, as where SEPCONV_BACKEND allows only one.
    """
    operands = Operands(x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual)
    return call(2, operands, (stride, padding, dilation, depthwise_activation, pointwise_activation, precision))


def separable_conv3d(
    x: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    *,
    depthwise_activation: ActivationLike = None,
    pointwise_activation: ActivationLike = None,
    residual: Tensor | None = None,
    precision: str | None = None,
) -> Tensor:
    """A depthwise and then a 1x1 pointwise convolution of a volume; see `separable_conv2d` for every argument.

    x (N, C, D, H, W) or (C, D, H, W), depthwise_weight (C*m, 1, KD, KH, KW), pointwise_weight (O, C*m, 1, 1, 1); returns
    (N, O, D', H', W') or (O, D', H', W'). It runs through the eager backend.
    """
    operands = Operands(x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual)
    return call(3, operands, (stride, padding, dilation, depthwise_activation, pointwise_activation, precision))


def explain(
    x: Tensor,
    depthwise_weight: Tensor,
    pointwise_weight: Tensor,
    depthwise_bias: Tensor | None = None,
    pointwise_bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    *,
    depthwise_activation: ActivationLike = None,
    pointwise_activation: ActivationLike = None,
    residual: Tensor | None = None,
    precision: str | None = None,
    device: torch.device | str | None = None,
) -> str:
    """Which backend would run this call, with what, and why the faster ones would not; nothing is computed.

    The arguments are those of `separable_conv2d`; the rank is that of `depthwise_weight`. Tensors may be fake or on the
    meta device. `device` is where the call would run; None is the device of x, and the meta device stands for itself.
    Returns lines of text. Raises as the call would.
    """
    operands = Operands(x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual)
    words = (stride, padding, dilation, depthwise_activation, pointwise_activation, precision)
    return dispatch.explain(*problem_and_device(operands, words, None if device is None else usable(device)))


def problem_and_device(operands: Operands, words: Words, device: torch.device | None = None) -> tuple[Problem, Device]:
    """What dispatch is asked for one call: its problem, and the device that it would run on (None: that of x).

    Nothing is computed, so that tensors on the meta device can stand for a call on `device`. Raises as the call would.
    """
    check_tensors(operands)
    weight = operands.depthwise_weight
    rank = weight.dim() - 2
    if rank not in (1, 2, 3):
        raise value_error("depthwise_weight", f"has shape {tuple(weight.shape)}", "3, 4 or 5 dimensions")
    options = canonical(rank, operands, words)
    operands = operands if is_batched(rank, operands.x) else with_batch(operands)
    device = operands.x.device if device is None else device
    return ops.problem_of(operands, options, kind=device.type), describe(device)


def call(rank: int, operands: Operands, words: Words) -> Tensor:
    """One call in the user's words: made canonical, then the op; rank is the number of spatial axes.

    Where an operand or a mode has a `__torch_function__` (as the proxies of torch.fx), it is asked first, as everywhere in
    PyTorch.
    """
    short_cut = None if is_dynamo_compiling() else shortcuts.find(operands, words)
    if short_cut is not None:
        y = short_cut.direct(operands)
        if y is not None:
            return y
    if has_torch_function(operands):
        return _overridden(rank, operands, words)
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        known = ops.Call(canonical(rank, operands, words), None)
    else:
        known = _remembered(rank, operands, words)
    if not is_batched(rank, operands.x):
        return ops.separable_conv(with_batch(operands), known.options).squeeze(0)
    if short_cut is not None:  # which cannot compute these operands
        return ops.separable_conv(operands, known.options, known.plan)
    y = ops.call_again(operands, known)
    if known.direct is not None and is_plain_call(operands):
        shortcuts.keep(operands, words, known.direct)
    return y


def _overridden(rank: int, operands: Operands, words: Words) -> Tensor:
    """The call handed to the `__torch_function__` of its operands, under the name of the public function."""
    stride, padding, dilation, depthwise_activation, pointwise_activation, precision = words
    result: Tensor = handle_torch_function(
        (separable_conv1d, separable_conv2d, separable_conv3d)[rank - 1],
        operands,
        *operands[:-1],
        stride,
        padding,
        dilation,
        depthwise_activation=depthwise_activation,
        pointwise_activation=pointwise_activation,
        residual=operands.residual,
        precision=precision,
    )
    return result


def _remembered(rank: int, operands: Operands, words: Words) -> ops.Call:
    """The canonical options of a call and its plan, from memory where the same was called before."""
    kinds = kinds_of(words)
    if not are_lasting(kinds):
        return ops.Call(canonical(rank, operands, words), None)
    try:
        key = (
            rank,
            words,
            kinds,
            torch.get_num_threads(),
            float32_switch(),
            *[
                None if t is None else (type(t), t.shape, t.stride(), t.dtype, keys_of(t), t.get_device())
                for t in operands
            ],
        )
        known = ops.CALLS.get(key)
    except (TypeError, AttributeError, RuntimeError):  # a symbolic size, no strides, or no tensor at all
        return ops.Call(canonical(rank, operands, words), None)
    if known is None:
        options = canonical(rank, operands, words)
        known = ops.Call(options, ops.lasting_plan(operands, options) if is_batched(rank, operands.x) else None)
        if all(t is None or t.dtype is operands.x.dtype for t in operands):
            ops.remember(key, known)
    return known
