"""The eager backend: two PyTorch convolutions. It runs every right call on every device that PyTorch has."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sepconv import reference
from sepconv.device import Device, in_full_float32, is_float32_exact
from sepconv.problem import Operands, Options, Problem

_MOST_ELEMENTS = 2**31 - 1


class EagerBackend:
    """PyTorch's own kernels, one for each step; the intermediate goes through memory.

    Float32 runs in full precision, whatever PyTorch's switches allow: that meets every precision's bound.
    """

    name = "eager"
    kind: str | None = None

    def unavailable(self, device: Device) -> list[str]:
        return []

    def reasons(self, problem: Problem, device: Device) -> list[str]:
        return []

    def slower(self, problem: Problem, device: Device) -> list[str]:
        return []

    def is_ready(self, problem: Problem, device: Device) -> bool:
        return True

    def configure(self, problem: Problem, device: Device) -> tuple[None, str]:
        return None, "default"

    def forget(self) -> None:
        pass

    def forward(self, problem: Problem, config: None, operands: Operands, options: Options, device: Device) -> Tensor:
        most = _most_images(problem)
        if problem.batch <= most:
            return _with_strides(_compute(problem, operands, options), problem)
        y = operands.x.new_empty_strided(problem.output_shape, problem.output_strides)
        x, residual = operands.x, operands.residual
        for first in range(0, problem.batch, most):
            some = slice(first, first + most)
            part = operands._replace(x=x[some], residual=None if residual is None else residual[some])
            y[some] = _compute(problem, part, options)
        return y

    def direct_call(
        self, problem: Problem, config: object, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        if _leaks(problem, like) or problem.batch > _most_images(problem):
            return None

        def compute(operands: Operands) -> Tensor | None:
            if problem.dtype is torch.float32 and not is_float32_exact(device.kind):
                return None
            return _with_strides(reference.forward(operands, options, inplace=True), problem)

        return compute

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        if problem.dtype is torch.float32:
            kind = operands.x.device.type
            return in_full_float32(kind, reference.gradients, grad, operands, options, wanted)
        if not _leaks(problem, operands):
            return reference.gradients(grad, operands, options, wanted)
        found = reference.gradients(grad.float(), _widened(operands), options, wanted)
        return [g.to(problem.dtype) for g in found]


def _compute(problem: Problem, operands: Operands, options: Options) -> Tensor:
    if problem.dtype is torch.float32 and not is_float32_exact(operands.x.device.type):
        return in_full_float32(operands.x.device.type, reference.forward, operands, options, inplace=True)
    if _leaks(problem, operands):
        return reference.forward(_widened(operands), options, inplace=True).to(problem.dtype)
    return reference.forward(operands, options, inplace=True)


def _most_images(problem: Problem) -> int:
    """How many images are computed together: PyTorch's depthwise kernels count the elements of a tensor in 32 bits."""
    middle_channels = problem.in_channels * problem.depth_multiplier
    out_pixels = math.prod(problem.out_size)
    of_image = (
        problem.in_channels * math.prod(problem.in_size),
        middle_channels * out_pixels,
        problem.out_channels * out_pixels,
    )
    return max(1, _MOST_ELEMENTS // max(1, *of_image))


def _with_strides(y: Tensor, problem: Problem) -> Tensor:
    if y.stride() == problem.output_strides:
        return y
    return y.new_empty_strided(problem.output_shape, problem.output_strides).copy_(y)


def _leaks(problem: Problem, operands: Operands) -> bool:
    """Whether PyTorch's own bfloat16 convolution would let NaN and inf pass from one channel into its neighbour.

    oneDNN does on CPUs where the depth multiplier is above 1 (torch 2.13, 2026-11-29).
    """
    return problem.dtype is torch.bfloat16 and problem.depth_multiplier > 1 and operands.x.device.type == "cpu"


def _widened(operands: Operands) -> Operands:
    return Operands(*[t if t is None else t.float() for t in operands])  # type: ignore[arg-type]
