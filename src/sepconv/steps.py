"""What one module of a chain does there, and why it cannot be part of one.

Only exact classes of `torch.nn` count, for a subclass may do more, and only without hooks or parametrizations.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from sepconv.nn import why_not_plain, why_not_pointwise
from sepconv.problem import DTYPES, Activation
from sepconv.tracing import FORWARD_HOOKS, STATE_HOOKS, is_batch_norm_act

IDENTITY = Activation()
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
ACTIVATION_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}


class Step(NamedTuple):
    """One module of a chain besides the two convolutions, and what it does there."""

    path: str
    module: nn.Module
    norm: bool = False
    activation: Activation = IDENTITY
    dropout: bool = False


class NoChainError(Exception):
    """The walk ends; the text is the reason."""


def is_depthwise(module: nn.Module) -> bool:
    """Whether a module is a 1-D or 2-D convolution, subclasses included, with a group for each of several channels."""
    return isinstance(module, CONVOLUTIONS) and module.groups == module.in_channels > 1


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that an `nn` module computes, or None where it is not one that sepconv has."""
    kind = type(module)
    if kind in ACTIVATION_MODULES:
        return Activation(ACTIVATION_MODULES[kind])
    if isinstance(module, nn.GELU) and kind is nn.GELU:
        return Activation("gelu" if module.approximate == "none" else "gelu_tanh")
    if isinstance(module, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return Activation("leaky_relu", float(module.negative_slope))
    if isinstance(module, nn.Hardtanh) and kind is nn.Hardtanh and (module.min_val, module.max_val) == (0, 6):
        return Activation("relu6")
    return None


def step_of(path: str, module: nn.Module) -> Step:
    """What a module between or behind the convolutions does; a reason where it is none that can be absorbed."""
    refuse(_why_not_bare(module, path))
    if type(module) is nn.Identity:
        return Step(path, module)
    if type(module) in _DROPOUTS:
        return Step(path, module, dropout=_is_dropout(module, path))
    if type(module) in _BATCH_NORMS:
        refuse(_why_not_norm(module, path))
        return Step(path, module, norm=True)
    if is_batch_norm_act(module):
        return _batch_norm_act(path, module)
    activation = activation_of(module)
    if activation is None:
        raise NoChainError(f"'{path}' ({type(module).__name__}) lies between and cannot be absorbed")
    return Step(path, module, activation=activation)


# --- why not; every function gives a reason or None


def refuse(reason: str | None) -> None:
    """End the walk where there is a reason."""
    if reason:
        raise NoChainError(reason)


def has_hooks(module: nn.Module) -> bool:
    """Whether anything is registered to run along with a module's call, or with its state dict."""
    state = vars(module)
    return any(state[name] for name in (*FORWARD_HOOKS, *STATE_HOOKS))


def _why_not_bare(module: nn.Module, path: str) -> str | None:
    if is_parametrized(module):
        return f"'{path}' has parametrizations"
    if has_hooks(module):
        return f"'{path}' has hooks"
    if "forward" in vars(module):
        return f"'{path}' has a forward of its own"
    return None


def why_not_convolution(module: Any, path: str) -> str | None:
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


def why_not_behind(depthwise: Any, pointwise: Any, path: str) -> str | None:
    """Why a plain convolution is not the 1x1 convolution of this depthwise one."""
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
        raise NoChainError(f"'{path}' is a dropout in training mode; call `.eval()` first")
    return bool(module.p > 0)


def _batch_norm_act(path: str, module: Any) -> Step:
    refuse(_why_not_norm(module, path))
    for name in ("drop", "act"):
        refuse(_why_not_bare(getattr(module, name), f"{path}.{name}"))
    if type(module.drop) in _DROPOUTS:
        _is_dropout(module.drop, f"{path}.drop")
    elif type(module.drop) is not nn.Identity:
        raise NoChainError(f"'{path}.drop' ({type(module.drop).__name__}) cannot be absorbed")
    activation = IDENTITY if type(module.act) is nn.Identity else activation_of(module.act)
    if activation is None:
        raise NoChainError(f"'{path}.act' ({type(module.act).__name__}) cannot be absorbed")
    return Step(path, module, norm=True, activation=activation)
