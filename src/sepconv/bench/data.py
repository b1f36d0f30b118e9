"""The tensors of one problem, seeded, and what is right for them in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sepconv import reference
from sepconv.problem import Operands, Options, Problem, dense_strides

# Where the derivative of an activation jumps.
KINKS: dict[str, tuple[float, ...]] = {
    "relu": (0.0,),
    "leaky_relu": (0.0,),
    "relu6": (0.0, 6.0),
    "hardswish": (-3.0, 3.0),
    "hardsigmoid": (-3.0, 3.0),
}
_GRID = 16.0  # steps of 1/16: products of two such numbers and their sums over a window are exact in float32
_NEAR = 2.0**-5  # no gradient enters where the result before its activation lies this close to a kink


@dataclass(frozen=True)
class Case:
    """The tensors of one problem. `grad` (N, O, *L') is what enters the backward in training, None in forward."""

    problem: Problem
    operands: Operands
    options: Options
    grad: Tensor | None = None

    @property
    def training(self) -> bool:
        """Whether gradients are asked for."""
        return self.grad is not None

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.operands.x.device

    def to(self, layout: str) -> "Case":
        """The same numbers in another layout."""
        grad = None if self.grad is None else in_layout(self.grad, layout)
        problem = replace(self.problem, layout=layout)
        return Case(problem, _placed(self.operands, layout), self.options, grad)

    def leaves(self) -> Operands:
        """Operands that share this case's memory; in training each of them wants a gradient."""
        return Operands._make(t if t is None else t.detach().requires_grad_(self.training) for t in self.operands)

    def names(self) -> list[str]:
        """What a run of this case gives, in order: the result, and in training the gradients."""
        wanted = [n for n, t in zip(Operands._fields, self.operands, strict=True) if t is not None]
        return ["result"] + [f"gradient of {name}" for name in wanted] * self.training


def make(problem: Problem, device: torch.device, *, seed: int = 0, training: bool = False) -> Case:
    """The case of a problem: x uniform in (-0.3, 0.7), so that long sums do not cancel; weights normal, of unit gain.

    In training the derivative of an activation must not hang on a rounding: where it jumps, a right result on the other
    side of the kink has a far-off gradient. So before such an activation the depthwise step gets numbers that float32
    adds without rounding, and no gradient enters where the final result lies close to a kink. (Numbers as
    round as these are an easy case for the product, so a precision is judged in forward, where all are random.)
    """
    generator = torch.Generator(device).manual_seed(seed)
    exact = training and problem.epilogue.depthwise_activation.name in KINKS
    operands = _operands(problem, generator, exact)
    options = options_of(problem)
    grad = None
    if training:
        grad = torch.randn(problem.output_shape, generator=generator, device=device)
        grad = in_layout((grad * _away_from_kinks(operands, options)).to(problem.dtype), problem.layout)
    return Case(problem, operands, options, grad)


def options_of(problem: Problem) -> Options:
    """The arguments of a call of this problem that are not tensors."""
    epilogue = problem.epilogue
    flat = tuple(n for pair in problem.padding for n in pair)
    activations = (*epilogue.depthwise_activation, *epilogue.pointwise_activation)
    return Options(problem.stride, flat, problem.dilation, *activations, problem.precision)


def right(case: Case) -> list[Tensor]:
    """The right result and, in training, the right gradients of all operands, in float64, in `names` order."""
    operands = cast(case.operands, torch.float64)
    with torch.no_grad():
        results = [reference.forward(operands, case.options)]
        if case.grad is not None:
            grad = case.grad.double()
            wanted = [t is not None for t in operands[:5]]
            results += reference.gradients(grad, operands, case.options, wanted)
            results += [grad] * (operands.residual is not None)
    return results


def cast(operands: Operands, dtype: torch.dtype) -> Operands:
    """The operands in another dtype."""
    x, depthwise_weight, pointwise_weight, *rest = operands
    optional = (t if t is None else t.to(dtype) for t in rest)
    return Operands(x.to(dtype), depthwise_weight.to(dtype), pointwise_weight.to(dtype), *optional)


def in_layout(t: Tensor, layout: str) -> Tensor:
    """A dense copy of t in this layout."""
    return torch.empty_strided(t.shape, dense_strides(t.shape, layout), dtype=t.dtype, device=t.device).copy_(t)


def _placed(operands: Operands, layout: str) -> Operands:
    """The operands in a layout, as `model.to(memory_format=...)` does it: weights too, but not in 1-D."""
    one_dimensional = operands.x.dim() == 3
    fixed = ("depthwise_weight", "pointwise_weight") if one_dimensional else ()
    return Operands._make(
        t if t is None or t.dim() < 3 or name in fixed else in_layout(t, layout)
        for name, t in zip(Operands._fields, operands, strict=True)
    )


def _operands(problem: Problem, generator: torch.Generator, exact: bool) -> Operands:
    middle, rank = problem.in_channels * problem.depth_multiplier, problem.rank
    taps, epilogue = math.prod(problem.kernel_size), problem.epilogue

    def normal(shape: Sequence[int], scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device) * scale

    x_shape = (problem.batch, problem.in_channels, *problem.in_size)
    x = torch.rand(x_shape, generator=generator, device=generator.device) - 0.3
    depthwise = normal((middle, 1, *problem.kernel_size), taps**-0.5)
    pointwise = normal((problem.out_channels, middle, *(1,) * rank), middle**-0.5)
    depthwise_bias = normal((middle,), 0.3) if epilogue.depthwise_bias else None
    pointwise_bias = normal((problem.out_channels,), 0.3) if epilogue.pointwise_bias else None
    residual = normal(problem.output_shape, 1.0) if epilogue.residual else None
    if exact:
        x, depthwise = _on_grid(x), _on_grid(depthwise)
        depthwise_bias = None if depthwise_bias is None else _on_grid(depthwise_bias)
    found = (x, depthwise, pointwise, depthwise_bias, pointwise_bias, residual)
    return _placed(cast(Operands(*found), problem.dtype), problem.layout)


def _on_grid(t: Tensor) -> Tensor:
    return (t * _GRID).round_().div_(_GRID)


def _away_from_kinks(operands: Operands, options: Options) -> Tensor:
    """A mask of 0 and 1: where the result, before its activation, is far from every kink of it."""
    kinks = KINKS.get(options.pointwise_activation, ())
    bare = options._replace(pointwise_activation="identity")
    if not kinks:
        return torch.ones((), dtype=torch.bool, device=operands.x.device)
    y = reference.forward(cast(operands, torch.float64)._replace(residual=None), bare)
    far = torch.ones_like(y, dtype=torch.bool)
    for kink in kinks:
        far &= (y - kink).abs() > _NEAR
    return far
