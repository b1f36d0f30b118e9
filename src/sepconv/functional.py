"""The user's words: canonical arguments out of a call, every malformed call refused here, then the op."""

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sepconv import dispatch, ops
from sepconv.device import describe
from sepconv.errors import ArgumentTypeError, ArgumentValueError
from sepconv.problem import DTYPES, PRECISIONS, Activation, Operands, Options, output_size
from sepconv.reference import ACTIVATIONS

ActivationLike = str | tuple[str, float | str] | None
Sizes = int | Sequence[int]


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
) -> str:
    """Which backend would run this call, with what, and why the faster ones would not; nothing is computed.

    The arguments are those of `separable_conv2d`; the rank is that of `depthwise_weight`. Tensors may be fake or on the
    meta device, which stands for itself. Returns lines of text. Raises as the call would.
    """
    operands = Operands(x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual)
    _check_tensors(operands)
    rank = depthwise_weight.dim() - 2
    if rank not in (1, 2, 3):
        raise _value_error("depthwise_weight", f"has shape {_shape(depthwise_weight)}", "3, 4 or 5 dimensions")
    words = (stride, padding, dilation, depthwise_activation, pointwise_activation, precision)
    operands, options, _ = _canonical(rank, operands, words)
    return dispatch.explain(ops.problem_of(operands, options), describe(operands.x.device))


Words = tuple[Sizes, "Sizes | str", Sizes, ActivationLike, ActivationLike, str | None]


def call(rank: int, operands: Operands, words: Words) -> Tensor:
    operands, options, batched = _canonical(rank, operands, words)
    y = ops.separable_conv(operands, options)
    return y if batched else y.squeeze(0)


def _canonical(rank: int, operands: Operands, words: Words) -> tuple[Operands, Options, bool]:
    """Batched operands and canonical options of one call, and whether it came batched; refuses a malformed call."""
    _check_tensors(operands)
    stride, padding, dilation, depthwise_activation, pointwise_activation, precision = words
    x, residual = operands.x, operands.residual
    batched = x.dim() != rank + 1
    if not batched:
        operands = operands._replace(x=x.unsqueeze(0), residual=None if residual is None else residual.unsqueeze(0))
    shapes = tuple([None if t is None else t.shape for t in operands])
    strides = _per_axis("stride", stride, rank, 1)
    dilations = _per_axis("dilation", dilation, rank, 1)
    paddings = padding if isinstance(padding, str) else _per_axis("padding", padding, rank, 0)
    check = _check_shapes_uncached if torch.compiler.is_compiling() else _check_shapes
    flat = check(rank, shapes, strides, paddings, dilations)
    activations = (
        *canonical_activation("depthwise_activation", depthwise_activation),
        *canonical_activation("pointwise_activation", pointwise_activation),
    )
    return operands, Options(strides, flat, dilations, *activations, canonical_precision(precision)), batched


# --- tensors: type, layout, device, dtype


def _check_tensors(operands: Operands) -> None:
    x = operands.x
    for name, tensor in zip(Operands._fields, operands, strict=True):
        if tensor is None and name not in ("x", "depthwise_weight", "pointwise_weight"):
            continue
        if not isinstance(tensor, Tensor):
            raise _type_error(name, f"is a {type(tensor).__name__}", "a torch.Tensor")
        if type(tensor).__name__ == "DTensor":
            raise _type_error(
                name, "is a sharded tensor (DTensor)", "a plain tensor", "Shard the parent module, so that it is gathered before."
            )
        if tensor.layout is not torch.strided:
            raise _type_error(name, f"has layout {tensor.layout}", "a dense tensor", "Call `.to_dense()` on it.")
        if tensor.dtype not in DTYPES:
            raise _type_error(name, f"has dtype {tensor.dtype}", "float64, float32, float16 or bfloat16", _dtype_hint(tensor))
        if tensor.device != x.device:
            raise _value_error(
                name, f"is on {tensor.device}, but `x` is on {x.device}", "one device for all tensors", "Call `.to(x.device)` on it."
            )
        if tensor.dtype is not x.dtype and ops.autocast_dtype(tensor) is not ops.autocast_dtype(x):
            raise _type_error(
                name, f"has dtype {tensor.dtype}, but `x` has {x.dtype}", "one dtype for all tensors",
                "Convert one of them, or run inside torch.autocast.",
            )  # fmt: skip


def _dtype_hint(tensor: Tensor) -> str:
    if tensor.is_complex():
        return "A complex convolution is two real ones: call it on `.real` and on `.imag`."
    return "Convert it with `.float()`; quantised tensors have to be dequantised."


# --- words: numbers an axis, activations


def _per_axis(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    if type(value) is int:
        values = (value,) * rank
    elif isinstance(value, (list, tuple)):
        values = tuple([_integer(name, n, value, rank) for n in value])
        if len(values) == 1:
            values = values * rank
    else:
        values = (_integer(name, value, value, rank),) * rank
    if len(values) != rank:
        raise _value_error(name, f"is {value!r}, with {len(values)} numbers", f"an int or {rank} of them")
    for n in values:
        if n < least:
            raise _value_error(name, f"is {value!r}", f"at least {least} in every axis")
    return values


def _integer(name: str, number: Any, value: Any, rank: int) -> int:
    if type(number) is int or isinstance(number, torch.SymInt):
        return number  # type: ignore[return-value]
    if not isinstance(number, bool):
        try:
            return operator.index(number)
        except TypeError:
            pass
    words = ' (or "same", or "valid")' if name == "padding" else ""
    raise _type_error(name, f"is {value!r}", f"an int or {rank} of them{words}")


def canonical_activation(name: str, value: ActivationLike) -> Activation:
    """An activation in its canonical form, (name, value); anything unknown is refused."""
    if value is None:
        return _IDENTITY
    if isinstance(value, Activation):
        return value
    if isinstance(value, str):
        if value in ACTIVATIONS:
            return Activation(value, 0.01 if value == "leaky_relu" else 0.0)
    elif isinstance(value, tuple) and len(value) == 2:
        found = _PAIRS.get(value) if all(isinstance(v, str) for v in value) else _leaky_relu(value)
        if found:
            return found
    else:
        raise _type_error(name, f"is {value!r}", f"None, a name, or a pair of name and value; the names are {', '.join(ACTIVATIONS)}")
    raise _value_error(
        name, f"is {value!r}", f'one of {", ".join(ACTIVATIONS)}, ("leaky_relu", slope) or ("gelu", "tanh")'
    )


def canonical_precision(precision: str | None) -> str | None:
    """The precision as it came; anything but None or a known name is refused."""
    if precision is None or (isinstance(precision, str) and precision in PRECISIONS):
        return precision
    raise _value_error("precision", f"is {precision!r}", f"None or one of {', '.join(PRECISIONS)}")


def _leaky_relu(value: tuple[Any, Any]) -> Activation | None:
    name, slope = value
    is_number = isinstance(slope, (int, float)) and not isinstance(slope, bool)
    return Activation("leaky_relu", float(slope)) if name == "leaky_relu" and is_number else None


_IDENTITY = Activation()
_PAIRS: dict[Any, Activation] = {("gelu", "none"): Activation("gelu"), ("gelu", "tanh"): Activation("gelu_tanh")}


# --- shapes


def _check_shapes(rank: int, shapes: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """`_check_shapes_uncached`, remembered where every size is known (1.5 us in place of 9 us a call)."""
    try:
        return _remembered_check(rank, shapes, stride, padding, dilation)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        return _check_shapes_uncached(rank, shapes, stride, padding, dilation)  # a symbolic size has no hash


def _check_shapes_uncached(
    rank: int, shapes: Sequence[Any], stride: Sequence[int], padding: Sequence[int] | str, dilation: Sequence[int]
) -> tuple[int, ...]:
    """Refuse shapes that do not belong together; returns the padding with two numbers an axis, before and after."""
    x, depthwise, pointwise, depthwise_bias, pointwise_bias, residual = shapes
    _check_dims("x", x, rank + 2, f"{rank + 2} dimensions, or {rank + 1} without a batch")
    _check_dims("depthwise_weight", depthwise, rank + 2, f"{rank + 2} dimensions: (channels * multiplier, 1, *kernel)")
    _check_dims("pointwise_weight", pointwise, rank + 2, f"{rank + 2} dimensions: (out_channels, channels * multiplier, *1)")
    channels, middle, out_channels = x[1], depthwise[0], pointwise[0]
    if channels == 0:
        raise _value_error("x", f"has shape {tuple(x)}", "at least 1 channel (axis 1)")
    if middle == 0 or middle % channels != 0 or depthwise[1] != 1:
        raise _value_error(
            "depthwise_weight", f"has shape {tuple(depthwise)}", f"({channels} * multiplier, 1, *kernel), for `x` has {channels} channels"
        )
    if pointwise[1] != middle or any(n != 1 for n in pointwise[2:]):
        raise _value_error(
            "pointwise_weight", f"has shape {tuple(pointwise)}", f"(out_channels, {middle}, *1), for `depthwise_weight` has {middle} rows"
        )
    if out_channels == 0:
        raise _value_error("pointwise_weight", f"has shape {tuple(pointwise)}", "at least 1 output channel (axis 0)")
    for name, shape, length in (("depthwise_bias", depthwise_bias, middle), ("pointwise_bias", pointwise_bias, out_channels)):
        if shape is not None and (len(shape) != 1 or shape[0] != length):
            raise _value_error(name, f"has shape {tuple(shape)}", f"({length},)")
    flat = _flat_padding(padding, depthwise[2:], stride, dilation)
    out = output_size(x[2:], depthwise[2:], stride, flat, dilation)
    for axis, size in enumerate(out):
        if depthwise[2 + axis] == 0:
            raise _value_error("depthwise_weight", f"has shape {tuple(depthwise)}", "a kernel of at least 1 in every axis")
        if x[2 + axis] == 0:
            raise _value_error("x", f"has shape {tuple(x)}", "at least 1 element in every axis but the batch")
        if size <= 0:
            reach = dilation[axis] * (depthwise[2 + axis] - 1) + 1
            padded = x[2 + axis] + flat[2 * axis] + flat[2 * axis + 1]
            raise _value_error(
                "x", f"has {x[2 + axis]} elements in spatial axis {axis}, {padded} with `padding`", f"at least the window's reach, {reach}",
                "Use more padding, or a smaller kernel or dilation.",
            )  # fmt: skip
    if residual is not None and tuple(residual) != (x[0], out_channels, *out):
        raise _value_error("residual", f"has shape {tuple(residual)}", f"the shape of the result, {(x[0], out_channels, *out)}")
    return flat


_remembered_check: Callable[..., tuple[int, ...]] = lru_cache(maxsize=4096)(_check_shapes_uncached)


def _check_dims(name: str, shape: Sequence[int], dims: int, expected: str) -> None:
    if len(shape) != dims:
        raise _value_error(name, f"has shape {tuple(shape)}, {len(shape)} dimensions", expected)


def _flat_padding(
    padding: Sequence[int] | str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    if not isinstance(padding, str):
        return tuple([n for size in padding for n in (size, size)])
    if padding == "valid":
        return (0,) * (2 * len(kernel))
    if padding != "same":
        raise _value_error("padding", f"is {padding!r}", 'an int, one an axis, "same" or "valid"')
    if any(n != 1 for n in stride):
        raise _value_error(
            "padding", f'is "same" with `stride` {tuple(stride)}', "a stride of 1 for it", "Give the padding in numbers for a strided call."
        )
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple([n for total in totals for n in (total // 2, total - total // 2)])


# --- error texts


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _text(name: str, came: str, expected: str, hint: str) -> str:
    return f"`{name}` {came}; expected {expected}." + (f" {hint}" if hint else "")


def _value_error(name: str, came: str, expected: str, hint: str = "") -> ArgumentValueError:
    return ArgumentValueError(_text(name, came, expected, hint))


def _type_error(name: str, came: str, expected: str, hint: str = "") -> ArgumentTypeError:
    return ArgumentTypeError(_text(name, came, expected, hint))
