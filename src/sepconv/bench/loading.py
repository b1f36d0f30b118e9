"""Where the models to try come from: a library's own list by name, or a function in a file. Nothing is downloaded."""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sepconv.errors import ArgumentTypeError, ArgumentValueError

EXPECTED = "pytorchcv:NAME, timm:NAME, torchvision:NAME, sepconv:NAME or path/to/file.py:FUNCTION"


@dataclass(frozen=True)
class Loaded:
    """A model with untrained weights; `example` is the input that came with it (positional tensors), or None."""

    source: str
    model: nn.Module
    example: tuple[Tensor, ...] | None = None


def load(source: str) -> Loaded:
    """The model that `source` names: a library and a name, or a Python file and a function without arguments.

    The function returns a module, or a pair of a module and its input: one tensor or a tuple of tensors. Raises
    ArgumentValueError or ArgumentTypeError where there is no such model; the text says what to do.
    """
    library, colon, name = source.rpartition(":")
    if not colon or not library or not name:
        raise ArgumentValueError(f"`source` is {source!r}; expected {EXPECTED}.")
    if library.endswith(".py"):
        return _from_file(source, Path(library).expanduser(), name)
    if library not in _LIBRARIES:
        raise ArgumentValueError(f"`source` is {source!r}, with the library {library!r}; expected {EXPECTED}.")
    return Loaded(source, _LIBRARIES[library](source, name))


# --- libraries


def _from_pytorchcv(source: str, name: str) -> nn.Module:
    provider = _library(source, "pytorchcv.model_provider", "pytorchcv")
    name = name.lower()
    _check_name(source, name, provider._models)
    return _built(source, lambda: provider.get_model(name, pretrained=False))


def _from_timm(source: str, name: str) -> nn.Module:
    timm = _library(source, "timm", "timm")
    _check_name(source, name, timm.list_models())
    return _built(source, lambda: timm.create_model(name, pretrained=False))


def _from_torchvision(source: str, name: str) -> nn.Module:
    models = _library(source, "torchvision.models", "torchvision")
    _check_name(source, name, models.list_models())
    builder = models.get_model_builder(name)
    words = {"weights": None, "weights_backbone": None}  # a backbone of its own is downloaded unless told otherwise
    taken = {word: value for word, value in words.items() if word in inspect.signature(builder).parameters}
    return _built(source, lambda: builder(**taken))


def _from_sepconv(source: str, name: str) -> nn.Module:
    models = importlib.import_module("sepconv.bench.models")
    makers = _makers(models)
    _check_name(source, name, makers)
    return _built(source, makers[name])


_LIBRARIES: dict[str, Callable[[str, str], nn.Module]] = {
    "pytorchcv": _from_pytorchcv,
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "sepconv": _from_sepconv,
}


def _library(source: str, module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            why, hint = "is not installed", f"Run `pip install {package}`"
        else:  # such as a torchvision that was built for another torch
            first_line = next(iter(str(error).splitlines()), "")
            why = f"cannot be imported ({type(error).__name__}: {first_line})"
            hint = f"Install versions of it and of torch (here {torch.__version__}) that fit together"
        raise ArgumentValueError(
            f"`source` is {source!r}, but {package} {why}. {hint}, or take a model from elsewhere: {EXPECTED}."
        ) from error


def _check_name(source: str, name: str, known: Iterable[str]) -> None:
    known = sorted(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=4) or known[:4]
    raise ArgumentValueError(
        f"`source` is {source!r}, and there is no model {name!r}; expected one of {len(known)} names, such as "
        f"{', '.join(near)}."
    )


def _makers(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """The public functions and classes that a module defines itself and that can be called without arguments."""
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return {name: value for name, value in own.items() if not name.startswith("_") and _needs_nothing(value)}


def _needs_nothing(value: Any) -> bool:
    if not callable(value):
        return False
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(value).parameters.values()
    return all(p.default is not p.empty or p.kind in open_kinds for p in parameters)


# --- a function in a file


def _from_file(source: str, path: Path, name: str) -> Loaded:
    if not path.is_file():
        raise ArgumentValueError(f"`source` is {source!r}, but there is no file {str(path)!r}; expected {EXPECTED}.")
    sys.path.insert(0, str(path.parent.absolute()))  # as for a script, so that the file can import its neighbours
    try:
        module = _run_file(source, path)
        function = getattr(module, name, None)
        if not callable(function):
            makers = ", ".join(_makers(module)) or "none"
            raise ArgumentValueError(
                f"`source` is {source!r}, but {path.name} has no function {name!r}; expected the name of a function "
                f"that takes no arguments and returns a module. It has: {makers}."
            )
        result = _called(source, function)
    finally:
        sys.path.remove(str(path.parent.absolute()))
    model, example = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    example = (example,) if isinstance(example, Tensor) else example
    is_example = example is None or (isinstance(example, (tuple, list)) and all(isinstance(t, Tensor) for t in example))
    if not isinstance(model, nn.Module) or not is_example:
        raise ArgumentTypeError(
            f"`source` is {source!r}, and its function returned {_what(result)}; expected a torch.nn.Module, or a pair "
            "of a module and its input (a tensor or a tuple of tensors)."
        )
    return Loaded(source, model, None if example is None else tuple(example))


def _what(result: object) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result)}"
    return f"a value of type {type(result).__name__}"


def _run_file(source: str, path: Path) -> ModuleType:
    name = f"_sepconv_try_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentValueError(f"`source` is {source!r}, but {str(path)!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    loader = spec.loader
    _called(source, lambda: loader.exec_module(module))
    return module


def _built(source: str, make: Callable[[], Any]) -> nn.Module:
    model = _called(source, make)
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"`source` is {source!r}, and it made {_what(model)}; expected a torch.nn.Module.")
    return model


def _called(source: str, function: Callable[[], Any]) -> Any:
    """The function's result; whatever it raises becomes one line that says where it was raised."""
    try:
        return function()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, SyntaxError):  # its own text says where
            text += f" ({Path(frame.filename).name}, line {frame.lineno})"
        raise ArgumentValueError(f"`source` is {source!r}, and it raised {text}. Correct it there.") from error
