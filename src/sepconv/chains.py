"""The search: every depthwise convolution of a model, with the chain that it begins, or why it begins none.

A chain is depthwise -> (BatchNorm, Identity, dropout, one activation) -> pointwise -> (BatchNorm, one activation), each
step being the only consumer of the one before, called once and registered once.
"""

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from sepconv.nn import SeparableConvNd, why_not_plain, why_not_pointwise
from sepconv.problem import DTYPES, Activation
from sepconv.sources import is_more_than_called
from sepconv.tracing import FORWARD_HOOKS, STATE_HOOKS, Trace, Unit, has_forward, inside, is_batch_norm_act, name_of

IDENTITY = Activation()
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")


class Step(NamedTuple):
    """One module of a chain besides the two convolutions, and what it does there."""

    path: str
    module: nn.Module
    norm: bool = False
    activation: Activation = IDENTITY
    dropout: bool = False


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


class _NoChainError(Exception):
    """The walk ends; the text is the reason."""


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
        except _NoChainError as reason:
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
        _refuse(_why_not_convolution(depthwise, self.depthwise))
        unit, first = self._only_call(self.depthwise)
        if len(first.args) != 1 or first.kwargs:
            raise _NoChainError(f"'{self.depthwise}' is called with more than one positional argument")
        _refuse(self.search.why_not_apart(unit))
        between, node = self._to_the_pointwise(unit, first, depthwise)
        assert self.pointwise is not None
        pointwise = self.search.modules[self.pointwise]
        self._check_pair(depthwise, pointwise, between)
        after, node = self._after_the_pointwise(unit, node, depthwise, pointwise)
        chain = Chain(self.depthwise, self.pointwise, tuple(between), tuple(after), unit, self._rest(node))
        self._check_surroundings(chain, first, node)
        if chain.has_norms and depthwise.weight.device.type == "meta":
            raise _NoChainError("its weights are on the meta device and have no values to fold BatchNorm into")
        return chain

    # --- the two halves

    def _to_the_pointwise(self, unit: Unit, node: fx.Node, depthwise: Any) -> tuple[list[Step], fx.Node]:
        steps: list[Step] = []
        while True:
            node = self._only_consumer(unit, node)
            path = unit.place(node)
            module = self.search.modules[path]
            if isinstance(module, (*_CONVOLUTIONS, nn.Conv3d)):
                self.pointwise = path
                _refuse(_why_not_convolution(module, path) or _why_not_pointwise(depthwise, module, path))
                self._only_call(path)
                return steps, node
            step = self._step(path, module)
            self._only_call(path)
            if step.activation != IDENTITY and self.activation != IDENTITY:
                raise _NoChainError(f"{self.search.describe(path)} is a second activation between")
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
                step = self._step(path, self.search.modules[path])
                self._only_call(path)
            except _NoChainError:
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
            raise _NoChainError(f"the result of '{name}' is kept in an attribute of {name_of(unit.kept[node])}")
        if len(users) == 1 and users[0].op == "call_module" and users[0].args == (node,) and not users[0].kwargs:
            return users[0]
        if not users:
            raise _NoChainError(f"the result of '{name}' is not used")
        found = list(dict.fromkeys(self._consumer(unit, node, user) for user in users))
        if len(found) == 1:
            raise _NoChainError(f"the result of '{name}' goes to {found[0]}, not to a 1x1 convolution")
        raise _NoChainError(f"the result of '{name}' goes to {len(found)} places: {', '.join(found)}")

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
            raise _NoChainError(f"'{path}' is shared: it is registered at {', '.join(repr(p) for p in places)}")
        calls = self.search.calls.get(path, [])
        if not calls:
            raise _NoChainError(self.search.why_not_called(path))
        if len(calls) > 1:
            raise _NoChainError(f"'{path}' is shared: it is called {len(calls)} times")
        for caller in self.search.callers.get(path, ()):
            if not inside(caller, calls[0][0].path):
                raise _NoChainError(
                    f"the forward of {name_of(caller)}, which cannot be traced, calls '{path}' by itself"
                )
        return calls[0]

    def _step(self, path: str, module: nn.Module) -> Step:
        """What a module between or behind the convolutions does; a reason where it is none that can be absorbed."""
        _refuse(_why_not_bare(module, path))
        if type(module) is nn.Identity:
            return Step(path, module)
        if type(module) in _DROPOUTS:
            return Step(path, module, dropout=_is_dropout(module, path))
        if type(module) in _BATCH_NORMS:
            _refuse(_why_not_norm(module, path))
            return Step(path, module, norm=True)
        if is_batch_norm_act(module):
            return _batch_norm_act(path, module)
        activation = activation_of(module)
        if activation is None:
            raise _NoChainError(f"{self.search.describe(path)} lies between and cannot be absorbed")
        return Step(path, module, activation=activation)

    # --- the whole

    def _check_pair(self, depthwise: nn.Module, pointwise: Any, between: list[Step]) -> None:
        weights = (depthwise.weight, pointwise.weight)
        if weights[0].dtype != weights[1].dtype or weights[0].device != weights[1].device:
            found = " and ".join(f"{w.dtype} on {w.device}" for w in weights)
            raise _NoChainError(f"the weights of '{self.depthwise}' and '{self.pointwise}' differ: {found}")
        for step in between:
            if step.norm or step.dropout:
                for path, module in ((self.depthwise, depthwise), (self.pointwise, pointwise)):
                    if module.training:
                        raise _NoChainError(
                            f"'{path}' is in training mode, and '{step.path}' lies between: call `.eval()` first"
                        )

    def _check_surroundings(self, chain: Chain, first: fx.Node, last: fx.Node) -> None:
        """Refuse a chain that leaves or enters the forward of a module with hooks: they would see something else."""
        stacks = [set(chain.unit.stacks[node]) for node in _between(first, last)]
        everywhere = {path for path in stacks[0] if all(path in stack for stack in stacks)}
        for path in sorted({path for stack in stacks for path in stack} - everywhere):
            if _has_hooks(self.search.modules[path]):
                raise _NoChainError(f"'{path}' has hooks, and the chain crosses its border")

    def _rest(self, node: fx.Node) -> str:
        """What follows the chain and stays in the model's forward, where it could have been part of it."""
        users = list(node.users)
        if any(user.op in ("call_function", "call_method") and user.target in _ADDITIONS for user in users):
            return "the residual add stays in the model's forward"
        if len(users) == 1 and users[0].op == "call_function" and _operation(users[0]) in _FUNCTIONS:
            return f"the function {_operation(users[0])} stays in the model's forward"
        return ""


_FUNCTIONS = (*_ACTIVATIONS.values(), "gelu", "leaky_relu", "relu_", "hardtanh")


def is_depthwise(module: nn.Module) -> bool:
    """Whether a module is a 1-D or 2-D convolution, subclasses included, with a group for each of several channels."""
    return isinstance(module, _CONVOLUTIONS) and module.groups == module.in_channels > 1


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that an `nn` module computes, or None where it is not one that sepconv has."""
    kind = type(module)
    if kind in _ACTIVATIONS:
        return Activation(_ACTIVATIONS[kind])
    if isinstance(module, nn.GELU) and kind is nn.GELU:
        return Activation("gelu" if module.approximate == "none" else "gelu_tanh")
    if isinstance(module, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return Activation("leaky_relu", float(module.negative_slope))
    if isinstance(module, nn.Hardtanh) and kind is nn.Hardtanh and (module.min_val, module.max_val) == (0, 6):
        return Activation("relu6")
    return None


# --- why not; every function gives a reason or None


def _refuse(reason: str | None) -> None:
    if reason:
        raise _NoChainError(reason)


def _has_hooks(module: nn.Module) -> bool:
    state = vars(module)
    return any(state[name] for name in (*FORWARD_HOOKS, *STATE_HOOKS))


def _why_not_bare(module: nn.Module, path: str) -> str | None:
    if is_parametrized(module):
        return f"'{path}' has parametrizations"
    if _has_hooks(module):
        return f"'{path}' has hooks"
    if "forward" in vars(module):
        return f"'{path}' has a forward of its own"
    return None


def _why_not_convolution(module: Any, path: str) -> str | None:
    """Why a convolution may do more than its class, or has a weight that the operation cannot take."""
    bare = _why_not_bare(module, path)
    if bare:
        return bare
    why = why_not_plain(module, len(module.kernel_size))
    if why:
        return f"'{path}' {why}"
    for tensor in (module.weight, module.bias):
        if tensor is not None and type(tensor) is not nn.Parameter:
            return f"'{path}' has a {type(tensor).__name__} for a weight, not a plain nn.Parameter"
    if module.weight.dtype not in DTYPES:
        return f"'{path}' has weights of {module.weight.dtype}"
    return None


def _why_not_pointwise(depthwise: Any, pointwise: Any, path: str) -> str | None:
    if len(pointwise.kernel_size) != len(depthwise.kernel_size):
        return f"'{path}' is a {type(pointwise).__name__} behind a {type(depthwise).__name__}"
    why = why_not_pointwise(depthwise, pointwise)
    return f"'{path}' is no 1x1 convolution of a pair: {why}" if why else None


def _why_not_norm(module: Any, path: str) -> str | None:
    if module.training:
        return f"'{path}' is a BatchNorm in training mode: its statistics still change; call `.eval()` first"
    if module.running_mean is None or module.running_var is None:
        return f"'{path}' is a BatchNorm without running statistics: what it does depends on the batch"
    for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
        if isinstance(tensor, Tensor) and type(tensor) not in (Tensor, nn.Parameter):
            return f"'{path}' has a {type(tensor).__name__} for a weight, not a plain tensor"
        if isinstance(tensor, Tensor) and tensor.device.type == "meta":
            return f"'{path}' is on the meta device and has no values to fold"
    return None


def _is_dropout(module: Any, path: str) -> bool:
    """Whether a dropout would do something in training; a reason where it does so now."""
    if module.training and module.p > 0:
        raise _NoChainError(f"'{path}' is a dropout in training mode; call `.eval()` first")
    return bool(module.p > 0)


def _batch_norm_act(path: str, module: Any) -> Step:
    _refuse(_why_not_norm(module, path))
    for name in ("drop", "act"):
        _refuse(_why_not_bare(getattr(module, name), f"{path}.{name}"))
    if type(module.drop) in _DROPOUTS:
        _is_dropout(module.drop, f"{path}.drop")
    elif type(module.drop) is not nn.Identity:
        raise _NoChainError(f"'{path}.drop' ({type(module.drop).__name__}) cannot be absorbed")
    activation = IDENTITY if type(module.act) is nn.Identity else activation_of(module.act)
    if activation is None:
        raise _NoChainError(f"'{path}.act' ({type(module.act).__name__}) cannot be absorbed")
    return Step(path, module, norm=True, activation=activation)


# --- nodes


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """The nodes of a chain, from the first to the last."""
    nodes = [first]
    while nodes[-1] is not last:
        nodes.append(next(iter(nodes[-1].users)))
    return nodes


def _operation(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
