"""A shape's tensors and its right result, for the kernel on a Hopper GPU and for the same one on a CPU."""

import torch
from budget import check
from cuda_cases import SLOPE, Shape
from torch import Tensor

from sepconv.problem import CHANNELS_LAST

F = torch.nn.functional


def tensors_of(device: torch.device, shape: Shape, dtype: torch.dtype, positive: bool = False) -> list[Tensor | None]:
    """x, both weights, biases and the residual, or None."""
    make = torch.Generator(device).manual_seed(0)
    draw = torch.rand if positive else torch.randn
    taps = (shape.channels, 1, *shape.kernel)
    found = [
        draw(shape.batch, shape.channels, *shape.size, generator=make, device=device),
        draw(taps, generator=make, device=device),
        draw(shape.outputs, shape.channels, *(1,) * len(shape.size), generator=make, device=device)
        * shape.channels**-0.5,
        draw(shape.channels, generator=make, device=device) if shape.biases[0] else None,
        draw(shape.outputs, generator=make, device=device) if shape.biases[1] else None,
    ]
    output = shape.problem(torch.float32, "ieee").output_shape
    found.append(draw(output, generator=make, device=device) if shape.residual else None)
    if shape.layout == CHANNELS_LAST:
        found = [
            t.contiguous(memory_format=torch.channels_last) if i in (0, 5) and t is not None else t
            for i, t in enumerate(found)
        ]
    return [None if t is None else t.to(dtype) for t in found]


def reference(shape: Shape, tensors: list[Tensor | None]) -> Tensor:
    conv = (F.conv1d, F.conv2d)[len(shape.size) - 1]
    act = {
        "identity": lambda t: t, "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "gelu": F.gelu,
        "hardswish": F.hardswish, "leaky_relu": lambda t: F.leaky_relu(t, SLOPE),
    }  # fmt: skip
    x, wd, wp, bd, bp, residual = tensors
    if any(before != after for before, after in shape.padding):
        x, padding = F.pad(x, [n for pair in reversed(shape.padding) for n in pair]), 0
    else:
        padding = [before for before, _ in shape.padding]
    middle = conv(x, wd, bd, shape.stride or 1, padding, shape.dilation or 1, shape.channels)
    middle = act[shape.activations[0]](middle)
    y = act[shape.activations[1]](conv(middle, wp, bp))
    return y if residual is None else y + residual


def check_all(shape: Shape, tensors: list[Tensor | None], precision: str, y: Tensor) -> None:
    assert y.is_contiguous(
        memory_format=torch.channels_last if shape.layout == CHANNELS_LAST else torch.contiguous_format
    )
    double = [None if t is None else t.double() for t in tensors]
    check(y, reference(shape, double), reference(shape, tensors), tensors[0].dtype, precision)
