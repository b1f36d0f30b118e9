"""Which module feeds which: the forward code of a model, recorded by torch.fx on a copy that shares its parameters."""

import copy
import inspect
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from sepconv.nn import SeparableConvNd

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class UntraceableError(Exception):
    """A forward that the recording cannot follow; the text says why."""


@dataclass
class Unit:
    """One part of a model whose forward could be recorded.

    `path` is its place in the model ('' for the model itself). `stacks` holds for each node the places of the modules
    in whose forward it was made, from the outside in; every place counts from the model. `kept` holds the nodes whose
    results the forward stores in attributes, with the place of the module that has them.
    """

    path: str
    graph: fx.Graph
    stacks: dict[fx.Node, tuple[str, ...]]
    kept: dict[fx.Node, str]

    def place(self, node: fx.Node) -> str:
        """The place in the model of the module that a call_module node calls."""
        return join(self.path, str(node.target))

    def signature(self) -> list[tuple[str, str, str, str]]:
        """What was recorded, in a form that two recordings can be compared by."""
        return [
            (n.op, str(getattr(n.target, "__qualname__", n.target)), str(n.args), str(n.kwargs))
            for n in self.graph.nodes
        ]


@dataclass
class Trace:
    """Everything that was recorded of one model.

    `untraceable` says for each place whose forward could not be recorded why. `calls` holds what was called in attempts
    that failed: (place of the module called, place of the caller).
    """

    units: list[Unit] = field(default_factory=list)
    untraceable: dict[str, str] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)


def join(path: str, name: str) -> str:
    """The place of the module `name` of the module at `path`."""
    return f"{path}.{name}" if path and name else path or name


def inside(path: str, outer: str) -> bool:
    """Whether a place is `outer` itself or lies below it."""
    return not outer or path == outer or path.startswith(outer + ".")


def name_of(path: str) -> str:
    """A place in words."""
    return f"'{path}'" if path else "the model"


def first_line(error: Exception) -> str:
    """What an error says, up to its first full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].partition(". ")[0]


def has_forward(module: nn.Module) -> bool:
    """Whether a module can be called; an `nn.ModuleList` cannot."""
    return inspect.getattr_static(module, "forward", nn.Module.forward) is not nn.Module.forward


def is_batch_norm_act(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm with dropout and activation behind it, in the manner of timm's BatchNormAct2d."""
    return (
        isinstance(module, nn.BatchNorm2d)
        and type(module).__name__ == "BatchNormAct2d"
        and all(isinstance(getattr(module, name, None), nn.Module) for name in ("drop", "act"))
    )


def structural_copy(model: nn.Module) -> nn.Module:
    """A copy with the model's own parameters, copies of its buffers and no hooks: recording it touches nothing."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    for module in model.modules():
        state = vars(module)
        for name in (*FORWARD_HOOKS, *STATE_HOOKS):
            memo[id(state[name])] = OrderedDict()
        for value in state.values():
            if isinstance(value, Tensor) and not value.is_leaf:  # deepcopy refuses these
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def record(model: nn.Module) -> Trace:
    """Record the forward of a structural copy: as one unit where it can be followed, otherwise part by part.

    A part whose own forward cannot be followed is a single step in what surrounds it; its children are recorded apart.
    """
    trace = Trace()
    with _undisturbed():
        trace.units = _units(model, "", dict(model.named_modules()), trace)
    return trace


def record_again(model: nn.Module, unit: Unit, untraceable: dict[str, str]) -> Unit:
    """Record the same part of another copy; raises whatever its forward raises."""
    with _undisturbed():
        return _attempt(model.get_submodule(unit.path), unit.path, untraceable, set())


def _units(module: nn.Module, path: str, modules: dict[str, nn.Module], trace: Trace) -> list[Unit]:
    """The recorded parts of the module at `path`; what fails on the way goes into `trace`."""
    if not has_forward(module):
        return _units_below(module, path, modules, trace)
    try:
        return [_attempt(module, path, trace.untraceable, trace.calls)]
    except Exception as error:
        why = first_line(error)
    known = len(trace.untraceable)
    below = _units_below(module, path, modules, trace)
    if len(trace.untraceable) > known:  # what failed may be a single step now
        try:
            whole = _attempt(module, path, trace.untraceable, trace.calls)
        except Exception as error:
            why = first_line(error)
        else:
            return [whole, *(unit for unit in below if any(inside(unit.path, outer) for outer in trace.untraceable))]
    trace.untraceable[path] = why
    return below


def _units_below(module: nn.Module, path: str, modules: dict[str, nn.Module], trace: Trace) -> list[Unit]:
    children = [(join(path, name), child) for name, child in module.named_children() if not _is_step(child)]
    return [unit for place, child in children if place in modules for unit in _units(child, place, modules, trace)]


def _attempt(root: nn.Module, path: str, untraceable: dict[str, str], calls: set[tuple[str, str]]) -> Unit:
    if "forward" in vars(root):
        raise UntraceableError("it has a forward of its own")
    tracer = _Tracer(path, untraceable)
    before = set(vars(root))
    try:
        graph = tracer.trace(root)
        return Unit(path, graph, tracer.stacks, _kept(root, path))
    except Exception:
        calls |= tracer.calls
        raise
    finally:
        for name in set(vars(root)) - before:  # torch.fx keeps constants on the root
            vars(root).pop(name)


def _kept(root: nn.Module, path: str) -> dict[fx.Node, str]:
    found = {}
    for name, module in root.named_modules():
        for value in vars(module).values():
            values = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            )
            found.update({v.node: join(path, name) for v in values if isinstance(v, fx.Proxy)})
    return found


def _is_step(module: nn.Module) -> bool:
    """Whether a module is never looked into."""
    return (
        isinstance(module, SeparableConvNd)
        or is_batch_norm_act(module)
        or (module.__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, _LOOKED_INTO))
    )


_LOOKED_INTO = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class _Tracer(fx.Tracer):
    """Records one part; remembers in whose forward each node was made, and who called whom."""

    def __init__(self, path: str, untraceable: dict[str, str]) -> None:
        super().__init__()
        self.path, self.untraceable = path, untraceable
        self.stack: list[str] = [path]
        self.stacks: dict[fx.Node, tuple[str, ...]] = {}
        self.calls: set[tuple[str, str]] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_step(m) or join(self.path, module_qualified_name) in self.untraceable

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            place = join(self.path, self.path_of_module(m))
        except NameError:  # made in the forward, such as nn.ReLU()(x) or a slice of an nn.Sequential
            return forward(*args, **kwargs)
        self.calls.add((place, self.stack[-1]))
        if "forward" in vars(m) and place not in self.untraceable and not _is_step(m):
            raise UntraceableError(f"'{place}' has a forward of its own")
        self.stack.append(place)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self.stack.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        stack = self.stack[:-1] if node.op == "call_module" else self.stack
        self.stacks[node] = tuple(stack)
        return node


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave the global random number generators as they were, and hide the warnings of the code inside."""
    numpy: Any = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        cuda: Any = torch.cuda
        devices = range(cuda.device_count()) if cuda.is_initialized() else ()
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)
