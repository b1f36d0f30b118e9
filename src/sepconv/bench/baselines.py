"""The providers: sepconv, and what users have today, each with one protocol.

A provider answers with its reasons against a problem; an empty list means that it takes part. What it prepares is a
call without arguments that gives the result and, in training, the gradients, in the order of `Case.names`. Peers
compute all of the problem, biases, activations and residual included.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import sepconv
from sepconv import reference
from sepconv.bench.data import Case
from sepconv.bench.onnx_peers import OnnxRuntime, OpenVino
from sepconv.device import in_full_float32
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Operands, Problem
from sepconv.words import some_of

Results = Sequence[Tensor]
Call = Callable[[], Results]


class Provider(Protocol):
    """Who computes a problem: sepconv, or a peer."""

    name: str

    @property
    def version(self) -> str:
        """Name and version of the library behind it, empty where that is PyTorch."""

    def reasons(self, problem: Problem, device: torch.device, *, training: bool) -> list[str]:
        """Why this provider takes no part in this problem; empty where it does."""

    def prepare(self, case: Case) -> Call:
        """The call to check and to time; everything that need not be done in each call is done here."""


class _Always:
    """Takes part in every problem."""

    version = ""

    def reasons(self, problem: Problem, device: torch.device, *, training: bool) -> list[str]:
        """None."""
        return []


class Ours(_Always):
    """sepconv through its public functions."""

    name = "sepconv"
    version = f"sepconv {sepconv.__version__}"

    def prepare(self, case: Case) -> Call:
        problem, options = case.problem, case.options
        function = (sepconv.separable_conv1d, sepconv.separable_conv2d, sepconv.separable_conv3d)[problem.rank - 1]
        padding = _padding_words(problem)
        epilogue = problem.epilogue

        def forward(operands: Operands) -> Tensor:
            return function(
                operands.x,
                operands.depthwise_weight,
                operands.pointwise_weight,
                operands.depthwise_bias,
                operands.pointwise_bias,
                stride=options.stride,
                padding=padding,
                dilation=options.dilation,
                depthwise_activation=epilogue.depthwise_activation,
                pointwise_activation=epilogue.pointwise_activation,
                residual=operands.residual,
                precision=problem.precision,
            )

        return call(forward, case)


class Eager(_Always):
    """Two PyTorch convolutions, with what follows each; activations in place where nothing has to be saved."""

    name = "eager"

    def prepare(self, case: Case) -> Call:
        return call(lambda operands: reference.forward(operands, case.options, inplace=not case.training), case)


class EagerIn(Eager):
    """The same with x, the weights and the residual kept in this layout, where it is not the problem's own."""

    def __init__(self, layout: str) -> None:
        self.name, self._layout = f"eager_{layout}", layout

    def reasons(self, problem: Problem, device: torch.device, *, training: bool) -> list[str]:
        reasons = super().reasons(problem, device, training=training)
        if problem.rank != 2:
            reasons.append(f"it is for 2-D, the problem is {problem.rank}-D")
        if problem.layout == self._layout:
            reasons.append(f"the problem is in {self._layout} itself: that is `eager`")
        return reasons

    def prepare(self, case: Case) -> Call:
        return super().prepare(case.to(self._layout))


class Compile(_Always):
    """The two convolutions through torch.compile, for these sizes alone."""

    name = "compile"

    def prepare(self, case: Case) -> Call:
        torch._dynamo.reset()
        compiled = torch.compile(lambda operands: reference.forward(operands, case.options), dynamic=False)
        return call(compiled, case)


OURS: Provider = Ours()
PEERS: dict[str, Provider] = {
    peer.name: peer
    for peer in (Eager(), EagerIn(CHANNELS_LAST), EagerIn(CHANNELS_FIRST), Compile(), OnnxRuntime(), OpenVino())
}


def peers(text: str) -> tuple[Provider, ...]:
    """The peers that `all`, `none` or names with commas between them ask for.

    Raises ArgumentValueError where one is unknown.
    """
    return tuple(PEERS[name] for name in some_of("peers", text, tuple(PEERS), {"all": tuple(PEERS), "none": ()}))


def yardstick(case: Case) -> Results:
    """What eager PyTorch gives in the same dtype with TF32 off: the error that the budget is derived from."""
    return in_full_float32(case.device.type, Eager().prepare(case))


def call(forward: Callable[[Operands], Tensor], case: Case) -> Call:
    """A call of `forward` on the case's tensors and, in training, of autograd for all their gradients."""
    leaves = case.leaves()
    if case.grad is None:
        return lambda: (forward(leaves),)
    wanted: list[Any] = [t for t in leaves if t is not None]
    grad = case.grad

    def step() -> Results:
        y = forward(leaves)
        return (y.detach(), *torch.autograd.grad(y, wanted, grad))

    return step


def _padding_words(problem: Problem) -> tuple[int, ...] | str:
    """The problem's padding in the words of the public functions, which know one uneven padding: 'same'."""
    if all(before == after for before, after in problem.padding):
        return tuple(before for before, _ in problem.padding)
    return "same"
