"""The eager backend: two PyTorch convolutions. It runs every right call on every device that PyTorch has."""

from collections.abc import Callable

import torch
from torch import Tensor

from sepconv import reference
from sepconv.device import Device, in_full_float32, is_float32_exact
from sepconv.problem import Operands, Options, Problem


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
        if problem.dtype is torch.float32 and not is_float32_exact(operands.x.device.type):
            y = in_full_float32(operands.x.device.type, reference.forward, operands, options, inplace=True)
        elif _leaks(problem, operands):
            y = reference.forward(_widened(operands), options, inplace=True).to(problem.dtype)
        else:
            y = reference.forward(operands, options, inplace=True)
        return _with_strides(y, problem)

    def direct_call(
        self, problem: Problem, config: object, like: Operands, options: Options, device: Device
    ) -> Callable[[Operands], Tensor | None] | None:
        if _leaks(problem, like):
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
