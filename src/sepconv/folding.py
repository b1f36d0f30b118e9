"""The arithmetic of a rewritten pair: BatchNorm folded into the weights in float64, and the check of the result."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sepconv.chains import Chain
from sepconv.errors import FuseError, UnsupportedError
from sepconv.nn import MODULES, SeparableConvNd
from sepconv.problem import Activation
from sepconv.steps import IDENTITY, Step

_AGREEMENT = (
    1e-10  # of float64 results, in max|e| / max|r|; measured: 2e-15 for the pairs of MobileNet, Xception, QuartzNet
)
_ROUNDINGS = 8  # a weight is rounded once and at most two activations, of slope 1.5 at most, come after


class Weights(NamedTuple):
    """The weights of a pair in float64 on the CPU, with every BatchNorm folded in."""

    depthwise_weight: Tensor
    depthwise_bias: Tensor | None
    pointwise_weight: Tensor
    pointwise_bias: Tensor | None


class LossyError(Exception):
    """The weights with BatchNorm folded in do not fit into the dtype of the model; the text says how."""


def activations(chain: Chain) -> tuple[Activation, Activation]:
    """The activation between the convolutions, and the one behind them."""
    return tuple(  # type: ignore[return-value]
        next((s.activation for s in steps if s.activation != IDENTITY), IDENTITY)
        for steps in (chain.between, chain.after)
    )


def fold(chain: Chain, depthwise: Any, pointwise: Any) -> Weights:
    """The weights of the pair with the chain's BatchNorms folded in, in float64 on the CPU; nothing is changed.

    Before the activation between, a BatchNorm goes into the rows of the depthwise weight, after it into the columns of
    the pointwise weight, and behind the pointwise convolution into the rows of that (Jacob et al. 2018,
    arXiv:1712.05877, 3.2).
    """
    depthwise_norms, pointwise_norms = _split(chain.between)
    weight, bias = _rows(depthwise.weight, depthwise.bias, depthwise_norms)
    columns, offset = _columns(pointwise.weight, pointwise.bias, pointwise_norms)
    return Weights(weight, bias, *_rows(columns, offset, [s.module for s in chain.after if s.norm]))


def build(chain: Chain, depthwise: Any, pointwise: Any, weights: Weights | None) -> SeparableConvNd:
    """The module of a chain: with the two convolutions themselves, or with new ones where `weights` is given.

    New convolutions have the dtype, device and memory format of the old ones, and no gradients.
    """
    between, after = activations(chain)
    if weights is not None:
        depthwise = _convolution(depthwise, weights.depthwise_weight, weights.depthwise_bias)
        pointwise = _convolution(pointwise, weights.pointwise_weight, weights.pointwise_bias)
    module = MODULES[len(depthwise.kernel_size)].from_pair(
        depthwise, pointwise, depthwise_activation=between, pointwise_activation=after
    )
    module.folded = chain.folded
    return module


def check(chain: Chain, module: SeparableConvNd, depthwise: Any, pointwise: Any, weights: Weights | None) -> None:
    """Run the pair in float64 on random input, as it was and as it will be, and compare.

    Raises:
        FuseError: they differ by more than 1e-10.
        LossyError: they agree, but not once the weights have been rounded to their dtype.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    modules = [_float64(m, generator) for m in (depthwise, *(s.module for s in chain.between), pointwise)]
    modules += [_float64(s.module, generator) for s in chain.after]
    old_depthwise, old_pointwise = modules[0], modules[1 + len(chain.between)]
    exact = build(chain, old_depthwise, old_pointwise, weights)
    x = _random_input(depthwise, generator)
    with torch.no_grad():
        expected = x.clone()
        for step in modules:
            expected = step(expected)
        got = _run(exact, x)
        error = _error(got, expected)
        if not error <= _AGREEMENT:
            raise FuseError(
                f"the pair '{chain.depthwise}' and '{chain.pointwise}' gives other results as one operation: error "
                f"{error:.1e} in float64, at most {_AGREEMENT} is expected. The model is unchanged. This is a defect "
                "of sepconv: please report it."
            )
        if weights is not None:
            _check_rounded(module, got, x)


def _check_rounded(module: SeparableConvNd, exact: Tensor, x: Tensor) -> None:
    """Refuse weights that overflow, or lose more than a rounding, in the dtype of the module."""
    depthwise, _ = module.to_pair()
    dtype = str(depthwise.weight.dtype).removeprefix("torch.")
    if not all(bool(p.isfinite().all()) for p in module.parameters()):
        raise LossyError(f"the weights with BatchNorm folded in are not finite in {dtype}")
    rounded = copy.deepcopy(module).to("cpu", torch.float64)
    bound = _ROUNDINGS * torch.finfo(depthwise.weight.dtype).eps * _magnitude(rounded, x)
    error = (_run(rounded, x) - exact).abs().max().item()
    if not error <= bound:
        raise LossyError(
            f"the weights with BatchNorm folded in lose more than a rounding in {dtype}: error {error:.1e}"
        )


def _magnitude(module: SeparableConvNd, x: Tensor) -> float:
    """The largest result of the pair without cancellation: absolute values, and 1 for an activation's own offset."""
    absolute = copy.deepcopy(module)
    for parameter in absolute.parameters():
        parameter.abs_()
    depthwise, pointwise = absolute.to_pair()
    return float(pointwise(depthwise(x.abs()) + 1).max())


# --- folding


def _split(steps: Sequence[Step]) -> tuple[list[nn.Module], list[nn.Module]]:
    """The BatchNorms before the activation, and those after it."""
    norms: tuple[list[nn.Module], list[nn.Module]] = ([], [])
    seen = False
    for step in steps:
        if step.norm:
            norms[seen].append(step.module)
        seen = seen or step.activation != IDENTITY
    return norms


def _affine(norm: Any) -> tuple[Tensor, Tensor]:
    """What an eval-mode BatchNorm computes of each channel: scale and shift, in float64."""
    scale = (_exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * _exact(norm.weight)
    shift = -_exact(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + _exact(norm.bias)


def _rows(weight: Tensor, bias: Tensor | None, norms: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of a convolution followed by these BatchNorms."""
    weight, bias = _exact(weight), None if bias is None else _exact(bias)
    for norm in norms:
        scale, shift = _affine(norm)
        weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        bias = shift if bias is None else bias * scale + shift
    return weight, bias


def _columns(weight: Tensor, bias: Tensor | None, norms: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of a 1x1 convolution with these BatchNorms before it."""
    weight, bias = _exact(weight), None if bias is None else _exact(bias)
    for norm in reversed(norms):
        scale, shift = _affine(norm)
        moved = weight.flatten(1) @ shift
        bias = moved if bias is None else bias + moved
        weight = weight * scale.reshape(1, -1, *[1] * (weight.dim() - 2))
    return weight, bias


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _convolution(like: Any, weight: Tensor, bias: Tensor | None) -> Any:
    """A convolution with another one's numbers and new weights, in its dtype and memory format and on its device."""
    new = type(like)(
        like.in_channels, like.out_channels, like.kernel_size, like.stride, like.padding, like.dilation, like.groups,
        bias is not None, like.padding_mode, device="meta", dtype=like.weight.dtype,
    )  # fmt: skip
    new.weight = nn.Parameter(torch.empty_like(like.weight).copy_(weight), requires_grad=False)
    if bias is not None:
        new.bias = nn.Parameter(bias.to(like.weight), requires_grad=False)
    return new.train(like.training)


# --- checking


def _float64(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy of a module in float64 on the CPU; a weight without values (on the meta device) gets random ones."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64, device="cpu")
        values = values if parameter.device.type == "meta" else _exact(parameter).clone()
        memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
    return copy.deepcopy(module, memo).to("cpu", torch.float64)


def _random_input(depthwise: Any, generator: torch.Generator) -> Tensor:
    """Two samples, a little larger than the window and its padding, of mean 0.5 and deviation 1.5 in float64."""
    padding = depthwise._reversed_padding_repeated_twice
    sizes = [
        max(dilation * (kernel - 1) + 1, max(padding) + 1) + 2 * stride
        for kernel, stride, dilation in zip(depthwise.kernel_size, depthwise.stride, depthwise.dilation, strict=True)
    ]
    shape = (2, depthwise.in_channels, *sizes)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu") * 1.5 + 0.5


def _run(module: SeparableConvNd, x: Tensor) -> Tensor:
    try:
        return module(x)  # type: ignore[no-any-return]
    except UnsupportedError:  # SEPCONV_BACKEND allows only a backend that has no float64 on the CPU
        return module._one_after_the_other(x, None)


def _error(got: Tensor, expected: Tensor) -> float:
    """max|e| / max|r|, with equal infinities and NaN at equal places counted as equal."""
    if got.shape != expected.shape:
        return float("inf")
    same = (got == expected) | (got.isnan() & expected.isnan())
    difference = torch.where(same, 0.0, (got - expected).abs())
    largest = expected[expected.isfinite()].abs().max().item() if bool(expected.isfinite().any()) else 0.0
    return difference.max().item() / largest if largest else difference.max().item()
