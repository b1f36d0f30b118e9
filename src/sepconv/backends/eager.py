"""The eager backend: two PyTorch convolutions. It runs every right call on every device that PyTorch has."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from sepconv import reference
from sepconv.device import Device, in_full_float32
from sepconv.problem import Operands, Options, Problem

T = TypeVar("T")


class EagerBackend:
    """PyTorch's own kernels, one for each step; the intermediate goes through memory.

    Float32 runs in full precision, whatever PyTorch's switches allow: that meets every precision's bound.
    """

    name = "eager"

    def unavailable(self, device: Device) -> list[str]:
        return []

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        return []

    def is_ready(self, problem: Problem, device: Device) -> bool:
        return True

    def forward(self, problem: Problem, operands: Operands, options: Options) -> Tensor:
        y = _forward(problem, operands, options)
        if y.stride() == problem.output_strides:
            return y
        return y.new_empty_strided(problem.output_shape, problem.output_strides).copy_(y)

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        if _leaks(problem, operands):
            grad, operands = grad.float(), _widened(operands)
        found = _exactly(problem, operands, reference.gradients, grad, operands, options, wanted)
        return [g.to(problem.dtype) for g in found]


def _forward(problem: Problem, operands: Operands, options: Options) -> Tensor:
    if problem.dtype is torch.float32:
        return in_full_float32(operands.x.device.type, reference.forward, operands, options, inplace=True)
    if _leaks(problem, operands):
        return reference.forward(_widened(operands), options, inplace=True).to(problem.dtype)
    return reference.forward(operands, options, inplace=True)


def _exactly(problem: Problem, operands: Operands, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the reference; float32 in full precision."""
    if problem.dtype is not torch.float32:
        return function(*args, **kwargs)
    return in_full_float32(operands.x.device.type, function, *args, **kwargs)


def _leaks(problem: Problem, operands: Operands) -> bool:
    """Whether PyTorch's own bfloat16 convolution would let NaN and inf pass from one channel into its neighbour.

    oneDNN does on CPUs where the depth multiplier is above 1 (torch 2.13, 2026-11-29).
    """
    return problem.dtype is torch.bfloat16 and problem.depth_multiplier > 1 and operands.x.device.type == "cpu"


def _widened(operands: Operands) -> Operands:
    return Operands(*[t if t is None else t.float() for t in operands])  # type: ignore[arg-type]
