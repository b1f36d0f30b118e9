"""Existing models rewritten: depthwise-pointwise pairs found, checked, and put in place as one module each.

The model's own forward stays. The place of the depthwise convolution gets the `SeparableConvNd`, every module that went
into it leaves an `nn.Identity` at its own place.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepconv.chains import Chain, LeftAlone, Search
from sepconv.errors import ArgumentTypeError, FuseError
from sepconv.folding import LossyError, build, check, fold
from sepconv.nn import SeparableConvNd
from sepconv.problem import Activation
from sepconv.steps import IDENTITY
from sepconv.tracing import (
    Trace,
    Unit,
    first_line,
    inside,
    join,
    name_of,
    record,
    record_again,
    structural_copy,
)


@dataclass(frozen=True)
class Pair:
    """One depthwise convolution of a model and what became of it.

    `depthwise` and `pointwise` are places in the model; `pointwise` is None where no 1x1 convolution was found.
    `reason` says why the pair was left alone, `description` what it is. `absorbed` holds the places of the other
    modules that went into it.
    """

    depthwise: str
    pointwise: str | None
    fused: bool
    reason: str
    description: str
    absorbed: tuple[str, ...]

    def __str__(self) -> str:
        name = self.depthwise + (f" + {self.pointwise}" if self.pointwise else "")
        return f"fused       {name}: {self.description}" if self.fused else f"left alone  {name}: {self.reason}"


@dataclass(frozen=True)
class Report:
    """What `fuse` did to every depthwise convolution of a model, or what it would do, if it comes from `scan`."""

    pairs: tuple[Pair, ...]

    @property
    def fused(self) -> tuple[Pair, ...]:
        """The pairs that became one module."""
        return tuple(pair for pair in self.pairs if pair.fused)

    @property
    def left_alone(self) -> tuple[Pair, ...]:
        """The depthwise convolutions that stay as they are."""
        return tuple(pair for pair in self.pairs if not pair.fused)

    def as_dict(self) -> dict[str, Any]:
        """The report in lists, texts and numbers, for JSON."""
        pairs = [{**asdict(pair), "absorbed": list(pair.absorbed)} for pair in self.pairs]
        return {"fused": len(self.fused), "left_alone": len(self.left_alone), "pairs": pairs}

    def __str__(self) -> str:
        return "\n".join([f"{len(self.fused)} of {len(self.pairs)} pairs fused", *map(str, self.pairs)])


def scan(model: nn.Module) -> Report:
    """What `fuse` would do to a model; nothing is changed. See `fuse` for what is looked for.

    Raises TypeError where `model` is no module.
    """
    return _report(_plan(_checked(model)))


def fuse(model: nn.Module) -> Report:
    """Rewrite every depthwise convolution whose only consumer is a 1x1 convolution into one operation, in place.

    Between the two may lie eval-mode BatchNorm, Identity, eval-mode dropout and one activation; a BatchNorm and an
    activation behind the pointwise convolution go in as well. BatchNorm is folded into the weights in float64: such a
    model cannot train any more, and `.train()` on it raises an error. A pair without BatchNorm keeps its parameters,
    trains, and loads checkpoints from before. Consumers are found by recording the model's forward with torch.fx, part
    by part where the whole cannot be recorded; a part that can be is taken to be used only by calling it, unless the
    source around it says otherwise. Every pair is checked in float64 on random input before the model changes.

    Args:
        model: any module; it is changed in place. Only exact `nn.Conv1d` and `nn.Conv2d` without hooks or
            parametrizations are fused, for others do more than a convolution.

    Returns:
        The report: what was fused, and what was left alone and why.

    Raises:
        TypeError: `model` is no module.
        sepconv.FuseError: something failed; the model is as it was.
    """
    _checked(model)
    try:
        plan = _plan(model)
        _rewrite(model, [rewrite for rewrite in plan if isinstance(rewrite, _Rewrite)])
    except FuseError:
        raise
    except Exception as error:
        raise FuseError(f"`fuse` failed: {type(error).__name__}: {error}. The model is unchanged.") from error
    return _report(plan)


def original_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a fused model under the keys of the model from before.

    Raises FuseError where a BatchNorm was folded: the original numbers are gone.
    """
    state: Any = _checked(model).state_dict()
    metadata = getattr(state, "_metadata", {})
    paths = [path for path, _ in model.named_modules()]
    for path, module in model.named_modules():
        for hook in _key_hooks(module):
            if hook.folded:
                raise FuseError(
                    f"`model` has no original state dict: {', '.join(dict.fromkeys(hook.folded.values()))} was folded "
                    "into its weights. Save the state dict before `sepconv.fuse`."
                )
            for old, new in hook.renames.items():
                if join(path, new) in state:
                    state[join(path, old)] = state.pop(join(path, new))
                    metadata.pop(join(path, new).rpartition(".")[0], None)
    order = {path: i for i, path in enumerate(paths)}
    for key in sorted(state, key=lambda key: order.get(key.rpartition(".")[0], len(order))):
        state.move_to_end(key)
    return state  # type: ignore[no-any-return]


# --- the plan


@dataclass(frozen=True)
class _Rewrite:
    """One pair that is ready: its chain, its module, and whether its weights are new."""

    chain: Chain
    module: SeparableConvNd
    has_new_weights: bool
    description: str


def _checked(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"`model` is a {type(model).__name__}; expected an nn.Module.")
    return model


def _plan(model: nn.Module) -> list[_Rewrite | LeftAlone]:
    """What to do with every depthwise convolution, in the order of the model; all is checked, nothing changed."""
    try:
        copied = structural_copy(model)
    except Exception as error:
        trace = Trace(untraceable={"": f"it cannot be copied ({type(error).__name__}: {error})"})
    else:
        trace = record(copied)
    found = Search(model, trace).run()
    refused = _refused_by_the_forward(model, trace, [chain for chain in found if isinstance(chain, Chain)])
    with torch.inference_mode(False), torch.no_grad():  # new weights are to be ordinary tensors wherever this is called
        return [_prepare(model, refused.get(item.depthwise, item)) for item in found]


def _prepare(model: nn.Module, item: Chain | LeftAlone) -> _Rewrite | LeftAlone:
    if isinstance(item, LeftAlone):
        return item
    depthwise, pointwise = model.get_submodule(item.depthwise), model.get_submodule(item.pointwise)
    weights = fold(item, depthwise, pointwise) if item.has_norms else None
    module = build(item, depthwise, pointwise, weights)
    try:
        check(item, module, depthwise, pointwise, weights)
    except LossyError as error:
        return LeftAlone(item.depthwise, str(error), item.pointwise)
    return _Rewrite(item, module, weights is not None, _describe(item, depthwise, pointwise, module))


def _refused_by_the_forward(model: nn.Module, trace: Trace, chains: Sequence[Chain]) -> dict[str, LeftAlone]:
    """The chains after whose rewriting the forward does something else, as where it reads `self.conv.weight`."""
    refused: dict[str, LeftAlone] = {}
    if not chains:
        return refused
    trial = _trial(model, chains)
    for unit in trace.units:
        here = [chain for chain in chains if chain.unit is unit]
        if not here or _why_not_the_same(trial, trace, unit) is None:
            continue
        reasons = {chain.depthwise: _why_not_the_same(_trial(model, [chain]), trace, unit) for chain in here}
        rest = [chain for chain in here if reasons[chain.depthwise] is None]
        together = _why_not_the_same(_trial(model, rest), trace, unit) if rest else None
        for chain in here:
            why = reasons[chain.depthwise] or together
            if why:
                refused[chain.depthwise] = LeftAlone(chain.depthwise, why, chain.pointwise)
    return refused


def _trial(model: nn.Module, chains: Sequence[Chain]) -> nn.Module:
    """A structural copy with these chains rewritten."""
    trial = structural_copy(model)
    for chain in chains:
        module = build(chain, trial.get_submodule(chain.depthwise), trial.get_submodule(chain.pointwise), None)
        for path, new in _replacements(chain, module):
            trial.set_submodule(path, new)
    return trial


def _why_not_the_same(trial: nn.Module, trace: Trace, unit: Unit) -> str | None:
    """Why the forward of one part of a rewritten copy does not go on as it was recorded, or None where it does."""
    try:
        again = record_again(trial, unit, trace.untraceable)
    except Exception as error:
        return f"the forward of {name_of(unit.path)} needs the modules as they are: {first_line(error)}"
    if again.signature() != unit.signature():
        return "the forward does something else once the modules are replaced"
    return None


# --- the rewriting


def _replacements(chain: Chain, module: SeparableConvNd) -> list[tuple[str, nn.Module]]:
    """Every place that changes with what it gets, the depthwise convolution's first."""
    emptied = [chain.pointwise, *(step.path for step in chain.steps if type(step.module) is not nn.Identity)]
    return [(chain.depthwise, module), *((path, nn.Identity().train(module.training)) for path in emptied)]


def _rewrite(model: nn.Module, rewrites: Sequence[_Rewrite]) -> None:
    """Put every module in its place and register the hooks for checkpoints; on an exception all is put back."""
    undo: list[Callable[[], Any]] = []
    try:
        for outer, hook in _new_key_hooks(model, rewrites).items():
            register: Any = model.get_submodule(outer).register_load_state_dict_pre_hook
            undo.append(register(hook).remove)
        for rewrite in rewrites:
            for path, new in _replacements(rewrite.chain, rewrite.module):
                undo.append(_putting_back(model, path))
                model.set_submodule(path, new)
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _putting_back(model: nn.Module, path: str) -> Callable[[], None]:
    outer, _, name = path.rpartition(".")
    parent, old = model.get_submodule(outer), model.get_submodule(path)

    def put_back() -> None:
        parent._modules[name] = old

    return put_back


# --- checkpoints


@dataclass(frozen=True)
class KeyHook:
    """A hook before `load_state_dict` that takes the keys of the model from before; places count from its module.

    `renames` goes from original keys to those of now. `folded` goes from original keys that have none now to the places
    of what was folded. An instance can be pickled and copied.
    """

    renames: dict[str, str]
    folded: dict[str, str]

    def __call__(self, _module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        for old, folded in self.folded.items():
            if prefix + old in state_dict:
                raise FuseError(
                    f"`state_dict` has the key '{prefix + old}' of the model before `sepconv.fuse`, but {folded} was "
                    "folded into those weights. Load it before fusing, or load a state dict of the fused model."
                )
        for old, new in self.renames.items():
            if prefix + old in state_dict and prefix + new not in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)


def _new_key_hooks(model: nn.Module, rewrites: Sequence[_Rewrite]) -> dict[str, KeyHook]:
    """The hooks of these pairs by the place of their module, the innermost one that holds everything of a pair."""
    hooks: dict[str, KeyHook] = {}
    for rewrite in rewrites:
        chain = rewrite.chain
        changed = [path for path, _ in _replacements(chain, rewrite.module)]
        outer = _innermost(changed)
        hook = hooks.setdefault(outer, KeyHook({}, {}))
        keys = {path: list(model.get_submodule(path).state_dict()) for path in changed}
        if rewrite.has_new_weights:
            assert chain.folded
            hook.folded.update({_below(join(path, key), outer): chain.folded for path in changed for key in keys[path]})
            continue
        for path, child in ((chain.depthwise, "depthwise"), (chain.pointwise, "pointwise")):
            place = _below(chain.depthwise, outer)
            hook.renames.update({_below(join(path, key), outer): f"{place}.{child}.{key}" for key in keys[path]})
    return hooks


def _key_hooks(module: nn.Module) -> list[KeyHook]:
    hooks = [getattr(hook, "hook", hook) for hook in module._load_state_dict_pre_hooks.values()]
    return [hook for hook in hooks if isinstance(hook, KeyHook)]


def _innermost(paths: Sequence[str]) -> str:
    """The place of the innermost module that holds all of these."""
    outer = paths[0].rpartition(".")[0]
    while not all(inside(path, outer) for path in paths):
        outer = outer.rpartition(".")[0]
    return outer


def _below(path: str, outer: str) -> str:
    return path[len(outer) + 1 :] if outer else path


# --- the report


def _report(plan: Sequence[_Rewrite | LeftAlone]) -> Report:
    return Report(tuple(_pair(item) for item in plan))


def _pair(item: _Rewrite | LeftAlone) -> Pair:
    if isinstance(item, LeftAlone):
        return Pair(item.depthwise, item.pointwise, False, item.reason, "", ())
    chain = item.chain
    absorbed = tuple(step.path for step in chain.steps if type(step.module) is not nn.Identity)
    return Pair(chain.depthwise, chain.pointwise, True, "", item.description, absorbed)


def _describe(chain: Chain, depthwise: Any, pointwise: Any, module: SeparableConvNd) -> str:
    """The pair in words: sizes, what was folded, activations, and what stays outside."""
    parts = [f"depthwise {'x'.join(map(str, depthwise.kernel_size))} of {depthwise.in_channels} channels"]
    if depthwise.out_channels != depthwise.in_channels:
        parts.append(f"multiplier {depthwise.out_channels // depthwise.in_channels}")
    ones = (1,) * len(depthwise.kernel_size)
    for name, value in (("stride", depthwise.stride), ("dilation", depthwise.dilation)):
        parts += [f"{name} {'x'.join(map(str, value))}"] * (value != ones)
    first = _with_epilogue(", ".join(parts), any(s.norm for s in chain.between), module.depthwise_activation)
    second = _with_epilogue(
        f"pointwise to {pointwise.out_channels}", any(s.norm for s in chain.after), module.pointwise_activation
    )
    return "; ".join([first, second] + [chain.rest] * bool(chain.rest))


def _with_epilogue(text: str, has_norm: bool, activation: Activation) -> str:
    return text + " + batch norm" * has_norm + (f" + {activation}" if activation != IDENTITY else "")
