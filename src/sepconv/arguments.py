"""The user's words made canonical: every malformed call is refused here, with an error that names the argument."""

import operator
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sepconv import ops
from sepconv.errors import type_error, value_error
from sepconv.problem import DTYPES, PRECISIONS, Activation, Operands, Options, output_size
from sepconv.reference import ACTIVATIONS

ActivationLike = str | tuple[str, float | str] | None
Sizes = int | Sequence[int]
Shape = tuple[int, ...]
Words = tuple[Sizes, Sizes | str, Sizes, ActivationLike, ActivationLike, str | None]


def canonical(rank: int, operands: Operands, words: Words) -> Options:
    """The canonical options of one call, batched or not; refuses a malformed call.

    While a graph is being traced by value (`torch.jit.trace`, the older ONNX exporter) sizes would be traced tensors; the
    trace is put aside here, so that the checks see numbers.
    """
    trace = torch._C._get_tracing_state() if not torch.compiler.is_compiling() else None
    if trace is None:
        return _canonical(rank, operands, words)
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return _canonical(rank, operands, words)
    finally:
        torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]


def is_batched(rank: int, x: Tensor) -> bool:
    """Whether x has a batch axis before its channels."""
    return x.dim() != rank + 1


def with_batch(operands: Operands) -> Operands:
    """The operands of an unbatched call with a batch of one."""
    x, residual = operands.x, operands.residual
    return operands._replace(x=x.unsqueeze(0), residual=None if residual is None else residual.unsqueeze(0))


def _canonical(rank: int, operands: Operands, words: Words) -> Options:
    check_tensors(operands)
    stride, padding, dilation, depthwise_activation, pointwise_activation, precision = words
    x, depthwise, pointwise = (tuple(t.shape) for t in operands[:3])
    _check_shapes(rank, x if is_batched(rank, operands.x) else (1, *x), depthwise, pointwise)
    _check_bias("depthwise_bias", operands.depthwise_bias, depthwise[0])
    _check_bias("pointwise_bias", operands.pointwise_bias, pointwise[0])
    strides = per_axis("stride", stride, rank, 1)
    dilations = per_axis("dilation", dilation, rank, 1)
    paddings = padding_words(padding, rank, strides)
    size, kernel = x[-rank:], depthwise[2:]
    zeros = _flat_padding(paddings, kernel, dilations)
    limits = [_places(i, size[i], kernel[i], dilations[i], zeros[2 * i] + zeros[2 * i + 1]) for i in range(rank)]
    if operands.residual is not None:
        out = output_size(size, kernel, strides, zeros, dilations)
        _check_residual(operands.residual, (*x[: -rank - 1], pointwise[0], *out))
    return Options(
        tuple([min(step, limit) if type(limit) is int else step for step, limit in zip(strides, limits, strict=True)]),
        zeros,
        dilations,
        *canonical_activation("depthwise_activation", depthwise_activation),
        *canonical_activation("pointwise_activation", pointwise_activation),
        canonical_precision(precision),
    )


# --- tensors: type, layout, device, dtype


def check_tensors(operands: Operands) -> None:
    x = operands.x
    for name, tensor in zip(Operands._fields, operands, strict=True):
        if tensor is None and name not in ("x", "depthwise_weight", "pointwise_weight"):
            continue
        if not isinstance(tensor, Tensor):
            raise type_error(name, f"is a {type(tensor).__name__}", "a torch.Tensor")
        if type(tensor).__name__ == "DTensor":
            raise type_error(
                name,
                "is a sharded tensor (DTensor)",
                "a plain tensor",
                "Shard the parent module, so that it is gathered before.",
            )
        if tensor.layout is not torch.strided:
            raise type_error(name, f"has layout {tensor.layout}", "a dense tensor", "Call `.to_dense()` on it.")
        if tensor.dtype not in DTYPES:
            raise type_error(
                name, f"has dtype {tensor.dtype}", "float64, float32, float16 or bfloat16", _dtype_hint(tensor)
            )
        if tensor.device != x.device:
            raise value_error(
                name,
                f"is on {tensor.device}, but `x` is on {x.device}",
                "one device for all tensors",
                "Call `.to(x.device)` on it.",
            )
        if tensor.dtype is not x.dtype and ops.autocast_dtype(tensor) is not ops.autocast_dtype(x):
            raise type_error(
                name, f"has dtype {tensor.dtype}, but `x` has {x.dtype}", "one dtype for all tensors",
                "Convert one of them, or run inside torch.autocast.",
            )  # fmt: skip


def _dtype_hint(tensor: Tensor) -> str:
    if tensor.is_complex():
        return "A complex convolution is two real ones: call it on `.real` and on `.imag`."
    return "Convert it with `.float()`; quantised tensors have to be dequantised."


# --- words: numbers an axis, activations


def per_axis(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """An int, or one an axis, as one an axis; anything else, or a number below `least`, is refused."""
    if type(value) is int:
        values = (value,) * rank
    elif isinstance(value, (list, tuple)):
        values = tuple([_integer(name, n, value, rank) for n in value])
        if len(values) == 1:
            values = values * rank
    else:
        values = (_integer(name, value, value, rank),) * rank
    if len(values) != rank:
        raise value_error(name, f"is {value!r}, with {len(values)} numbers", f"an int or {rank} of them")
    for n in values:
        if n < least or n >= _TOO_LARGE:
            raise value_error(name, f"is {value!r}", f"at least {least} and below 2**31 in every axis")
    return values


_TOO_LARGE = 2**31
# Python's, and NumPy's by its names then and now: older versions of it take theirs for 0 and 1.
_BOOLEANS = ("bool", "bool_")


def _integer(name: str, number: Any, value: Any, rank: int) -> int:
    if type(number) is int or isinstance(number, torch.SymInt):
        return number  # type: ignore[return-value]
    if type(number).__name__ not in _BOOLEANS:
        try:
            return operator.index(number)
        except TypeError:
            pass
    words = ' (or "same", or "valid")' if name == "padding" else ""
    raise type_error(name, f"is {value!r}", f"an int or {rank} of them{words}")


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
        raise type_error(
            name, f"is {value!r}", f"None, a name, or a pair of name and value; the names are {', '.join(ACTIVATIONS)}"
        )
    raise value_error(
        name, f"is {value!r}", f'one of {", ".join(ACTIVATIONS)}, ("leaky_relu", slope) or ("gelu", "tanh")'
    )


def canonical_precision(precision: str | None) -> str | None:
    """The precision as it came; anything but None or a known name is refused."""
    if precision is None or (isinstance(precision, str) and precision in PRECISIONS):
        return precision
    error = value_error if isinstance(precision, str) else type_error
    raise error("precision", f"is {precision!r}", f"None or one of {', '.join(PRECISIONS)}")


def _leaky_relu(value: tuple[Any, Any]) -> Activation | None:
    name, slope = value
    is_number = isinstance(slope, (int, float)) and not isinstance(slope, bool) and abs(slope) <= _LARGEST_SLOPE
    return Activation("leaky_relu", float(slope)) if name == "leaky_relu" and is_number else None


_LARGEST_SLOPE = sys.float_info.max
_IDENTITY = Activation()
_PAIRS: dict[Any, Activation] = {("gelu", "none"): Activation("gelu"), ("gelu", "tanh"): Activation("gelu_tanh")}


# --- shapes


def _check_shapes(rank: int, x: Shape, depthwise: Shape, pointwise: Shape) -> None:
    """Refuse channels and weights that do not belong together; the shape of x comes with a batch."""
    _check_dims("x", x, rank + 2, f"{rank + 2} dimensions, or {rank + 1} without a batch")
    _check_dims("depthwise_weight", depthwise, rank + 2, f"{rank + 2} dimensions: (channels * multiplier, 1, *kernel)")
    expected = f"{rank + 2} dimensions: (out_channels, channels * multiplier, *1)"
    _check_dims("pointwise_weight", pointwise, rank + 2, expected)
    channels, middle, out_channels = x[1], depthwise[0], pointwise[0]
    if channels == 0:
        raise value_error("x", f"has shape {x}", "at least 1 channel (axis 1)")
    if middle == 0 or middle % channels != 0 or depthwise[1] != 1:
        expected = f"({channels} * multiplier, 1, *kernel), for `x` has {channels} channels"
        raise value_error("depthwise_weight", f"has shape {depthwise}", expected)
    if pointwise[1] != middle or any(n != 1 for n in pointwise[2:]):
        expected = f"(out_channels, {middle}, *1), for `depthwise_weight` has {middle} rows"
        raise value_error("pointwise_weight", f"has shape {pointwise}", expected)
    if out_channels == 0:
        raise value_error("pointwise_weight", f"has shape {pointwise}", "at least 1 output channel (axis 0)")


def _check_bias(name: str, bias: Tensor | None, length: int) -> None:
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != length):
        raise value_error(name, f"has shape {tuple(bias.shape)}", f"({length},)")


def _check_residual(residual: Tensor, expected: tuple[int, ...]) -> None:
    came = tuple(residual.shape)
    if came != expected:
        raise value_error("residual", f"has shape {came}", f"the shape of the result, {expected}")


def _places(axis: int, size: int, kernel: int, dilation: int, zeros: int) -> int:
    """How many places the window has in this axis at stride 1; refuses an axis in which it has none.

    A stride beyond that gives one output whatever it is, and is cut to it: PyTorch's own 16-bit convolutions on the CPU
    crash on a stride above 65,535 (backward, torch 2.13).
    """
    if kernel == 0:
        raise value_error("depthwise_weight", f"has a kernel of 0 in spatial axis {axis}", "at least 1")
    if size == 0:
        raise value_error("x", f"has 0 elements in spatial axis {axis}", "at least 1; only the batch may be empty")
    reach = dilation * (kernel - 1) + 1
    if size + zeros < reach:
        came = f"has {size} elements in spatial axis {axis}, {size + zeros} with `padding`"
        hint = "Use more padding, or a smaller kernel or dilation."
        raise value_error("x", came, f"at least the window's reach, {reach}", hint)
    return size + zeros - reach + 1


def _check_dims(name: str, shape: Sequence[int], dims: int, expected: str) -> None:
    if len(shape) != dims:
        raise value_error(name, f"has shape {tuple(shape)}, {len(shape)} dimensions", expected)


def padding_words(padding: Any, rank: int, stride: Sequence[int]) -> str | tuple[int, ...]:
    """A padding in words or in numbers an axis; 'same' is refused for a stride."""
    if not isinstance(padding, str):
        return per_axis("padding", padding, rank, 0)
    if padding not in ("same", "valid"):
        raise value_error("padding", f"is {padding!r}", 'an int, one an axis, "same" or "valid"')
    if padding == "same" and any(n != 1 for n in stride):
        came = f'is "same" with `stride` {tuple(stride)}'
        raise value_error("padding", came, "a stride of 1 for it", "Give the padding in numbers for a strided call.")
    return padding


def _flat_padding(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * (2 * len(kernel))
    if padding != "same":
        return tuple([n for size in padding for n in (size, size)])  # type: ignore[misc]
    totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple([n for total in totals for n in (total // 2, total - total // 2)])
