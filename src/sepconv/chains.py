"""The search: every depthwise convolution of a model, with the chain that it begins, or why it begins none.

A chain is depthwise -> (BatchNorm, Identity, dropout, one activation) -> pointwise -> (BatchNorm, one activation), each
step being the only consumer of the one before, called once and registered once.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from sepconv.nn import SeparableConvNd
from sepconv.sources import is_more_than_called
from sepconv.steps import (
    ACTIVATION_MODULES,
    CONVOLUTIONS,
    IDENTITY,
    NoChainError,
    Step,
    has_hooks,
    is_depthwise,
    refuse,
    step_of,
    why_not_behind,
    why_not_convolution,
)
from sepconv.tracing import Trace, Unit, has_forward, inside, name_of

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_FUNCTIONS = (*ACTIVATION_MODULES.values(), "gelu", "leaky_relu", "relu_", "hardtanh")


@dataclass(frozen=True)
class Chain:
    """A depthwise convolution, the pointwise one, and what lies between and behind them, in order.

    `unit` is the part of the model in whose forward they are; `rest` says what follows and stays there.
    """

    depthwise: str
    pointwise: str
    between: tuple[Step, ...]
    after: tuple[Step, ...]
    unit: Unit
    rest: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step that goes into the pair."""
        return self.between + self.after

    @property
    def folded(self) -> str | None:
        """The places of the modules that can train no more once they are part of the pair, or None."""
        return " and ".join(s.path for s in self.steps if s.norm or s.dropout) or None

    @property
    def has_norms(self) -> bool:
        """Whether weights change."""
        return any(s.norm for s in self.steps)


@dataclass(frozen=True)
class LeftAlone:
    """A depthwise convolution that is not fused, with the reason; `pointwise` where one was found."""

    depthwise: str
    reason: str
    pointwise: str | None = None


class Search:
    """The search in one model: the places of its modules, and what was recorded of its forward."""

    def __init__(self, model: nn.Module, trace: Trace) -> None:
        self.trace = trace
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.places: dict[int, list[str]] = {}
        for path, module in self.modules.items():
            self.places.setdefault(id(module), []).append(path)
        self.calls: dict[str, list[tuple[Unit, fx.Node]]] = {}
        for unit in trace.units:
            for node in unit.graph.nodes:
                if node.op == "call_module":
                    self.calls.setdefault(unit.place(node), []).append((unit, node))
        self.callers: dict[str, set[str]] = {}
        for callee, caller in trace.calls:
            self.callers.setdefault(callee, set()).add(caller)

    def run(self) -> list[Chain | LeftAlone]:
        """What was found for every depthwise convolution, in the order of the model."""
        return [self._from(path) for path, module in self.modules.items() if self._is_candidate(path, module)]

    def _is_candidate(self, path: str, module: nn.Module) -> bool:
        outer = self.modules[path.rpartition(".")[0]] if path else None
        is_new = self.places[id(module)][0] == path and not isinstance(outer, SeparableConvNd)
        return is_new and is_depthwise(module)

    def _from(self, path: str) -> Chain | LeftAlone:
        walk = _Walk(self, path)
        try:
            return walk.chain()
        except NoChainError as reason:
            return LeftAlone(path, str(reason), walk.pointwise)

    def why_not_called(self, path: str) -> str:
        """Why no recorded forward reaches a module."""
        outer = path
        while outer:
            outer = outer.rpartition(".")[0]
            if outer in self.trace.untraceable:
                return f"the forward of {name_of(outer)} cannot be traced: {self.trace.untraceable[outer]}"
            if any(unit.path == outer for unit in self.trace.units):
                return f"it is not called in the forward of {name_of(outer)}"
        return "it is not called in the forward of the model"

    def why_not_apart(self, unit: Unit) -> str | None:
        """Why a part is not only used by calling it: forwards around it that cannot be recorded do more with it."""
        place = unit.path
        while place:
            outer, _, name = place.rpartition(".")
            parent = self.modules[outer]
            if (
                outer in self.trace.untraceable
                and has_forward(self.modules[place])
                and is_more_than_called(parent, name)
            ):
                return f"the forward of {name_of(outer)}, which cannot be traced, does more with '{place}' than call it"
            place = outer
        return None

    def describe(self, path: str) -> str:
        """A module by place and class, for a reason."""
        return f"'{path}' ({type(self.modules[path]).__name__})"


class _Walk:
    """One walk from a depthwise convolution along its only consumers."""

    def __init__(self, search: Search, depthwise: str) -> None:
        self.search, self.depthwise = search, depthwise
        self.pointwise: str | None = None
        self.activation = IDENTITY

    def chain(self) -> Chain:
        depthwise = self.search.modules[self.depthwise]
        refuse(why_not_convolution(depthwise, self.depthwise))
        unit, first = self._only_call(self.depthwise)
        if len(first.args) != 1 or first.kwargs:
            raise NoChainError(f"'{self.depthwise}' is called with more than one positional argument")
        refuse(self.search.why_not_apart(unit))
        between, node = self._to_the_pointwise(unit, first, depthwise)
        assert self.pointwise is not None
        pointwise = self.search.modules[self.pointwise]
        self._check_pair(depthwise, pointwise, between)
        after, node = self._after_the_pointwise(unit, node, depthwise, pointwise)
        chain = Chain(self.depthwise, self.pointwise, tuple(between), tuple(after), unit, self._rest(node))
        if chain.has_norms and depthwise.weight.device.type == "meta":
            raise NoChainError("its weights are on the meta device and have no values to fold BatchNorm into")
        return chain

    # --- the two halves

    def _to_the_pointwise(self, unit: Unit, node: fx.Node, depthwise: Any) -> tuple[list[Step], fx.Node]:
        steps: list[Step] = []
        while True:
            node = self._only_consumer(unit, node)
            path = unit.place(node)
            module = self.search.modules[path]
            if isinstance(module, (*CONVOLUTIONS, nn.Conv3d)):
                self.pointwise = path
                refuse(why_not_convolution(module, path) or why_not_behind(depthwise, module, path))
                self._only_call(path)
                return steps, node
            step = step_of(path, module)
            self._only_call(path)
            if step.activation != IDENTITY and self.activation != IDENTITY:
                raise NoChainError(f"{self.search.describe(path)} is a second activation between")
            if step.activation != IDENTITY:
                self.activation = step.activation
            steps.append(step)

    def _after_the_pointwise(
        self, unit: Unit, node: fx.Node, depthwise: nn.Module, pointwise: nn.Module
    ) -> tuple[list[Step], fx.Node]:
        steps: list[Step] = []
        can_fold = not (depthwise.training or pointwise.training)
        while not steps or steps[-1].activation == IDENTITY:
            try:
                following = self._only_consumer(unit, node)
                path = unit.place(following)
                step = step_of(path, self.search.modules[path])
                self._only_call(path)
            except NoChainError:
                break
            if step.dropout or (step.norm and not can_fold):
                break
            steps.append(step)
            node = following
        return steps, node

    # --- one step

    def _only_consumer(self, unit: Unit, node: fx.Node) -> fx.Node:
        """The module call that alone takes the result of a node."""
        name, users = unit.place(node), list(node.users)
        if node in unit.kept:
            raise NoChainError(f"the result of '{name}' is kept in an attribute of {name_of(unit.kept[node])}")
        if len(users) == 1 and users[0].op == "call_module" and users[0].args == (node,) and not users[0].kwargs:
            for path in sorted(set(unit.stacks[node]) ^ set(unit.stacks[users[0]])):
                if has_hooks(self.search.modules[path]):  # they would see something else
                    raise NoChainError(f"'{path}' has hooks, and the chain crosses its border")
            return users[0]
        if not users:
            raise NoChainError(f"the result of '{name}' is not used")
        found = list(dict.fromkeys(self._consumer(unit, node, user) for user in users))
        if len(found) == 1:
            raise NoChainError(f"the result of '{name}' goes to {found[0]}, not to a 1x1 convolution")
        raise NoChainError(f"the result of '{name}' goes to {len(found)} places: {', '.join(found)}")

    def _consumer(self, unit: Unit, node: fx.Node, user: fx.Node) -> str:
        """A consumer in words: the outermost module that the result enters, or the operation."""
        entered = [path for path in unit.stacks[user] if path not in unit.stacks[node]]
        if entered:
            return self.search.describe(entered[0])
        if user.op == "call_module":
            return self.search.describe(unit.place(user))
        if user.op == "output":
            return f"the output of {name_of(unit.path)}"
        return f"the function {_operation(user)} in the forward of {name_of(unit.stacks[user][-1])}"

    def _only_call(self, path: str) -> tuple[Unit, fx.Node]:
        """The one call of a module that is registered once; a reason otherwise."""
        places = self.search.places[id(self.search.modules[path])]
        if len(places) > 1:
            raise NoChainError(f"'{path}' is shared: it is registered at {', '.join(repr(p) for p in places)}")
        calls = self.search.calls.get(path, [])
        if not calls:
            raise NoChainError(self.search.why_not_called(path))
        if len(calls) > 1:
            raise NoChainError(f"'{path}' is shared: it is called {len(calls)} times")
        for caller in self.search.callers.get(path, ()):
            if not inside(caller, calls[0][0].path):
                raise NoChainError(
                    f"the forward of {name_of(caller)}, which cannot be traced, calls '{path}' by itself"
                )
        return calls[0]

    # --- the whole

    def _check_pair(self, depthwise: nn.Module, pointwise: Any, between: list[Step]) -> None:
        weights = (depthwise.weight, pointwise.weight)
        if weights[0].dtype != weights[1].dtype or weights[0].device != weights[1].device:
            found = " and ".join(f"{w.dtype} on {w.device}" for w in weights)
            raise NoChainError(f"the weights of '{self.depthwise}' and '{self.pointwise}' differ: {found}")
        for step in between:
            if step.norm or step.dropout:
                for path, module in ((self.depthwise, depthwise), (self.pointwise, pointwise)):
                    if module.training:
                        raise NoChainError(
                            f"'{path}' is in training mode, and '{step.path}' lies between: call `.eval()` first"
                        )

    def _rest(self, node: fx.Node) -> str:
        """What follows the chain and stays in the model's forward, where it could have been part of it."""
        users = list(node.users)
        if any(user.op in ("call_function", "call_method") and user.target in _ADDITIONS for user in users):
            return "the residual add stays in the model's forward"
        if len(users) == 1 and users[0].op == "call_function" and _operation(users[0]) in _FUNCTIONS:
            return f"the function {_operation(users[0])} stays in the model's forward"
        return ""


def _operation(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
