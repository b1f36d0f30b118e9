"""The eager backend: two PyTorch convolutions. It runs every right call on every device that PyTorch has."""

from torch import Tensor

from sepconv import reference
from sepconv.device import Device, full_float32
from sepconv.problem import Operands, Options, Problem


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
        with full_float32(operands.x.device.type):
            y = reference.forward(_folded(problem, operands), options, inplace=True)
        if y.stride() == problem.output_strides:
            return y
        return y.new_empty_strided(problem.output_shape, problem.output_strides).copy_(y)

    def gradients(
        self, problem: Problem, grad: Tensor, operands: Operands, options: Options, wanted: list[bool]
    ) -> list[Tensor]:
        with full_float32(operands.x.device.type):
            return reference.gradients(grad, operands, options, wanted)


def _folded(problem: Problem, operands: Operands) -> Operands:
    """The operands with the depthwise bias folded into the pointwise one, where that saves a pass over memory.

    cuDNN's convolutions add a bias in a second kernel that reads and writes the whole intermediate; on other devices the
    bias is part of the convolution and folding would only cost a call more.
    """
    depthwise_bias, pointwise_bias = operands.depthwise_bias, operands.pointwise_bias
    if depthwise_bias is None or not problem.epilogue.folds_depthwise_bias or not depthwise_bias.is_cuda:
        return operands
    weight = operands.pointwise_weight.flatten(1)
    bias = weight.float() @ depthwise_bias.float() if problem.dtype.itemsize == 2 else weight @ depthwise_bias
    if pointwise_bias is not None:
        bias = bias + pointwise_bias
    return operands._replace(depthwise_bias=None, pointwise_bias=bias.to(problem.dtype))
