"""What forward code that cannot be recorded does with its child modules, read from its source."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

from torch import nn

_INSIDE = ("_modules", "children", "modules", "named_children", "named_modules", "get_submodule")


def is_more_than_called(parent: nn.Module, name: str) -> bool:
    """Whether the forward of `parent`, or a method that it calls, does more with its child `name` than call it.

    Iterating over the child, indexing it, handing it on, or using one of its modules or own methods is more; reading a
    number is not, nor is what every module has, such as `parameters()`. Where the source cannot be read the answer is
    no, and for PyTorch's own wrappers too.
    """
    if type(parent).__module__.partition(".")[0] == "torch":
        return False
    return any(use is None or _leads_inside(getattr(parent, name), use) for use in _uses(type(parent), name))


def _leads_inside(child: nn.Module, use: str) -> bool:
    value = getattr(child, use, None)
    if use in _INSIDE or isinstance(value, nn.Module):
        return True
    return callable(value) and not hasattr(nn.Module, use)


def _uses(cls: type, name: str) -> Iterator[str | None]:
    """The uses of `self.<name>` besides calls: the attribute that is read of it, or None for any other use."""
    for method in _reachable(cls):
        parents = {child: node for node in ast.walk(method) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(method):
            if _attribute_of_self(node) != name:
                continue
            parent = parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                continue
            yield parent.attr if isinstance(parent, ast.Attribute) else None


def _reachable(cls: type) -> list[ast.FunctionDef]:
    """The source of `forward` and of the methods that it calls on self, directly or not."""
    methods = _methods(cls)
    names, waiting = set(), ["forward"]
    while waiting:
        name = waiting.pop()
        if name in methods and name not in names:
            names.add(name)
            waiting += [found for node in ast.walk(methods[name]) if (found := _attribute_of_self(node))]
    return [methods[name] for name in names]


def _methods(cls: type) -> dict[str, ast.FunctionDef]:
    methods: dict[str, ast.FunctionDef] = {}
    for base in cls.__mro__:
        if base is nn.Module:
            break
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, node)
    return methods


def _attribute_of_self(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None
