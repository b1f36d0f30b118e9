"""Which backend runs a problem, with what, and why: plan once, cache the plan, then only execute."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from sepconv import settings
from sepconv.backends import Backend, all_backends, backends_for
from sepconv.device import Device, is_capturing
from sepconv.errors import BackendWarning, UnsupportedError, WarmUpError
from sepconv.problem import Operands, Options, Problem


@dataclass(frozen=True)
class Plan:
    """The decision for one problem on one device.

    `config` is how the backend runs it (None where there is nothing to choose) and `config_source` who chose that ('model',
    'record'); `source` says who chose the backend ('default', 'setting'), `rejected` holds each backend that was asked before,
    with its reasons.
    """

    problem: Problem
    device: Device
    backend: Backend
    config: object | None
    config_source: str
    source: str
    rejected: tuple[tuple[str, tuple[str, ...]], ...]


@lru_cache(maxsize=4096)
def plan(problem: Problem, device: Device) -> Plan:
    """The plan for this problem on this device; the same at every call.

    Raises UnsupportedError where no backend, or not the one that SEPCONV_BACKEND asks for, can run the problem.
    """
    forced = settings.BACKEND.read()
    rejected: list[tuple[str, tuple[str, ...]]] = []
    missed: list[str] = []
    for backend in all_backends() if forced else backends_for(device):
        if forced not in (None, backend.name):
            continue
        unavailable = backend.unavailable(device)
        if unavailable and backend.kind == device.kind:
            missed += unavailable
        reasons = unavailable or backend.reasons(problem, device)
        if not (reasons or forced):
            reasons = backend.slower(problem, device)
        if not reasons:
            if missed:
                warn_once(missed[0])
            config, config_source = backend.configure(problem, device)
            source = "setting" if forced else "default"
            return Plan(problem, device, backend, config, config_source, source, tuple(rejected))
        rejected.append((backend.name, tuple(reasons)))
    why = in_words(rejected)
    known = ", ".join(backend.name for backend in all_backends())
    raise UnsupportedError(
        f"no backend can run {problem} on {device} ({why or 'none was asked'}). "
        f"`{settings.BACKEND.name}` is {forced!r}; the backends are: {known}. Unset it to let sepconv choose."
    )


def in_words(rejected: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """The backends that were asked before with their reasons, as one line."""
    return "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in rejected)


def warn_once(reason: str) -> None:
    """Warn, the first time in this process, that a fast backend cannot be used: the user may not know what is missed."""
    if next(_warnings):  # counting is atomic
        return
    text = f"the fused kernels cannot be used, PyTorch's own run instead: {reason}"
    warnings.warn(text, BackendWarning, stacklevel=2)


_warnings = itertools.count()


def forget() -> None:
    """Forget every plan and what the backends remember, so that changed settings take effect."""
    plan.cache_clear()
    for backend in all_backends():
        backend.forget()


def forward(plan: Plan, operands: Operands, options: Options) -> Tensor:
    """y by the plan's backend. Raises CompilerError or StoreError where that backend cannot after all."""
    return plan.backend.forward(plan.problem, plan.config, operands, options, plan.device)


def check_warm(plan: Plan) -> None:
    """Raise WarmUpError where this plan would have to compile or tune while a CUDA graph is being captured."""
    if is_capturing(plan.device.kind) and not plan.backend.is_ready(plan.problem, plan.device):
        raise WarmUpError(
            f"the first call of {plan.problem} came inside a CUDA-graph capture, where `{plan.backend.name}` cannot compile or "
            "tune. Warm up: call it once with the same shapes before the capture."
        )


def explain(problem: Problem, device: Device) -> str:
    """Which backend would run this problem on this device, with what, and why, for people to read."""
    chosen = plan(problem, device)
    lines = [
        f"problem   {problem}",
        f"device    {device}",
        f"backend   {chosen.backend.name} (chosen by {chosen.source})",
        f"config    {f'{chosen.config} (chosen by {chosen.config_source})' if chosen.config else 'nothing to choose'}",
        f"floor     {problem.bytes / 1e6:.3f} MB to move, {problem.flops / 1e9:.3f} GFLOP",
    ]
    for name, reasons in chosen.rejected:
        lines += [f"not {name}: {reason}" for reason in reasons]
    if not chosen.rejected:
        lines.append("no faster backend is installed for this device")
    return "\n".join(lines)
