"""The torch boundary: schema, fake kernels, autograd, autocast, function transforms and decompositions of the two ops.

This is the only file that names `torch.library`. From the outside in, a call of `torch.ops.sepconv.separable_conv` meets

1. a transform of `torch.func` or `vmap`: the reference runs, in PyTorch's own differentiable operations,
2. autocast: every tensor is cast to the context's dtype,
3. autograd: a node that saves the operands and nothing of the intermediate's size,
4. the kernel: problem -> plan -> backend.

Double backward runs the backward op under autograd, where it is the reference's gradient, again in PyTorch's own
operations. Both replacements give the right values by construction; a fused kernel has no derivative of its own there.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sepconv import dispatch, reference, shortcuts
from sepconv.device import describe, resolve_precision
from sepconv.errors import CompilerError, StoreError
from sepconv.plain import is_plain_call, passes_by
from sepconv.problem import (
    Activation,
    Epilogue,
    Operands,
    Options,
    Problem,
    dense_strides,
    is_dense,
    output_layout,
    output_shape,
)


@dataclass(slots=True)
class Call:
    """A call that was checked: its options, its plan where that lasts (on plain tensors, then), and the backend's short cut
    once it has run."""

    options: Options
    plan: dispatch.Plan | None
    direct: Callable[[Operands], Tensor | None] | None = None
    has_run: bool = False


_N = len(Operands._fields)
_LIBRARY = torch.library.Library("sepconv", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_TENSORS = "Tensor x, Tensor depthwise_weight, Tensor pointwise_weight, Tensor? depthwise_bias, Tensor? pointwise_bias"
_OPTIONS = (
    "int[] stride, SymInt[] padding, int[] dilation, str depthwise_activation, float depthwise_value, "
    "str pointwise_activation, float pointwise_value, str? precision"
)
_LIBRARY.define(f"separable_conv({_TENSORS}, Tensor? residual, {_OPTIONS}) -> Tensor", tags=_TAGS)
_LIBRARY.define(f"separable_conv_backward(Tensor grad, bool[] wanted, {_TENSORS}, {_OPTIONS}) -> Tensor[]", tags=_TAGS)
FORWARD: Callable[..., Tensor] = torch.ops.sepconv.separable_conv.default
BACKWARD: Callable[..., list[Tensor]] = torch.ops.sepconv.separable_conv_backward.default


def separable_conv(operands: Operands, options: Options, plan: dispatch.Plan | None = None) -> Tensor:
    """The op on canonical arguments; a call that no layer of PyTorch has to see goes straight to the kernel.

    `plan` is that of `lasting_plan`, for a caller who keeps it.
    """
    if plan is None and (torch.compiler.is_compiling() or torch._C._is_tracing()):
        return reference.forward(operands, options) if torch.onnx.is_in_onnx_export() else FORWARD(*operands, *options)
    if is_plain_call(operands):
        if plan is None:
            plan = _plan(operands, options, "forward")
        elif operands.x.is_cuda:
            dispatch.check_warm(plan)
        return _run_forward(plan, operands, options)
    return FORWARD(*operands, *options)


def call_again(operands: Operands, call: Call) -> Tensor:
    """The op on a call that is remembered: straight to the kernel where that is loaded and no layer of PyTorch has to see it."""
    if call.direct is not None and passes_by(operands):
        y = call.direct(operands)
        if y is not None:
            return y
    y = separable_conv(operands, call.options, call.plan)
    if call.plan is not None and not call.has_run:
        call.has_run = True
        plan = call.plan
        call.direct = plan.backend.direct_call(plan.problem, plan.config, operands, call.options, plan.device)
    return y


def problem_of(operands: Operands, options: Options, direction: str = "forward", kind: str | None = None) -> Problem:
    """The problem of one call on real or fake tensors of known size; `precision` None is resolved now.

    `kind` is the type of the device that the call runs on, where that is not the device of x.
    """
    x, depthwise_weight, pointwise_weight, depthwise_bias, pointwise_bias, residual = operands
    padding = tuple(int(n) for n in options.padding)
    return Problem(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=pointwise_weight.shape[0],
        depth_multiplier=depthwise_weight.shape[0] // x.shape[1],
        in_size=tuple(x.shape[2:]),
        kernel_size=tuple(depthwise_weight.shape[2:]),
        stride=tuple(options.stride),
        padding=tuple(zip(padding[0::2], padding[1::2], strict=True)),
        dilation=tuple(options.dilation),
        dtype=autocast_dtype(x),
        layout=output_layout(operands),
        precision=resolve_precision(options.precision, x.dtype, kind or x.device.type),
        epilogue=Epilogue(
            depthwise_bias is not None,
            Activation(options.depthwise_activation, options.depthwise_value),
            pointwise_bias is not None,
            Activation(options.pointwise_activation, options.pointwise_value),
            residual is not None,
        ),
        direction=direction,
    )


def _precision(x: Tensor, options: Options) -> str:
    """The precision of one call; where the options leave it open, PyTorch's switch is read now."""
    return resolve_precision(options.precision, x.dtype, x.device.type)


# --- kernels: below every layer of PyTorch, on real tensors


def _forward_kernel(*args: Any) -> Tensor:
    operands, options = Operands(*args[:_N]), _hashable(args[_N:])
    return _run_forward(_plan(operands, options, "forward"), operands, options)


def _run_forward(plan: dispatch.Plan, operands: Operands, options: Options) -> Tensor:
    """y by the plan, or by the next backend where the plan's own turns out to be unable, which it remembers."""
    try:
        return dispatch.forward(plan, operands, options)
    except (CompilerError, StoreError) as error:
        _drop_plans()
        other = dispatch.plan(plan.problem, plan.device)
        dispatch.warn_once(str(error))
        return dispatch.forward(other, operands, options)


def _backward_kernel(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    operands, options = Operands(*args[: _N - 1]), _hashable(args[_N - 1 :])
    plan = _plan(operands, options, "backward")
    found = plan.backend.gradients(plan.problem, grad, operands, options, wanted)
    return [_with_strides_of(g, like) for g, like in zip(found, _likes(operands, wanted), strict=True)]


def _plan(operands: Operands, options: Options, direction: str) -> dispatch.Plan:
    """The plan of one call, from this cache or from dispatch; checked against a running CUDA-graph capture."""
    x = operands.x
    if x.is_cuda and options.precision is None:
        options = options._replace(precision=_precision(x, options))
    threads = torch.get_num_threads() if x.is_cpu else 0
    key = (
        direction,
        options,
        x.dtype,
        x.device,
        threads,
        *[t if t is None else (t.shape, t.stride()) for t in operands],
    )
    plan = _PLANS.get(key)
    if plan is None:
        plan = dispatch.plan(problem_of(operands, options, direction), describe(x.device))
        _put(_PLANS, key, plan)
    if x.is_cuda:
        dispatch.check_warm(plan)
    return plan


def lasting_plan(operands: Operands, options: Options) -> dispatch.Plan | None:
    """The plan of a plain call, which hangs on nothing but the call itself and PyTorch's switch; None for any other call."""
    return _plan(operands, options, "forward") if is_plain_call(operands) else None


def remember(key: Any, call: Call) -> None:
    """Keep a call that was checked, and its plan, under a key that holds all that they hang on."""
    _put(CALLS, key, call)


def forget_plans() -> None:
    """Forget every plan, so that a changed setting takes effect at the next call."""
    _drop_plans()
    dispatch.forget()


def _drop_plans() -> None:
    CALLS.clear()
    shortcuts.forget()
    _PLANS.clear()
    dispatch.plan.cache_clear()


def _put(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


CALLS: dict[Any, Call] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CALLS.clear)  # a short cut may know threads that the child does not have
_PLANS: dict[Any, dispatch.Plan] = {}
_MOST_REMEMBERED = 4096


def _hashable(options: Sequence[Any]) -> Options:
    """The options as they come from PyTorch's dispatcher, with its lists as tuples."""
    stride, padding, dilation, *rest = options
    return Options(tuple(stride), tuple(padding), tuple(dilation), *rest)


def _with_strides_of(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient with exactly the strides of `torch.empty_like(like)`, which is what DDP's buckets take."""
    if grad.stride() == like.stride() and is_dense(like.shape, like.stride()):
        return grad
    out = torch.empty_like(like)
    return grad if grad.stride() == out.stride() else out.copy_(grad)


def _operands_and_options(args: Sequence[Any]) -> tuple[Operands, Options]:
    """The arguments of the backward op after `grad` and `wanted`; it has no residual."""
    return Operands(*args[: _N - 1]), Options(*args[_N - 1 :])


def _likes(operands: Operands, wanted: Sequence[bool]) -> list[Tensor]:
    """The tensors whose gradients are wanted."""
    return [t for t, want in zip(operands, wanted, strict=False) if want and t is not None]


# --- fake kernels: shapes, dtypes and strides without data


def _forward_fake(*args: Any) -> Tensor:
    operands, options = Operands(*args[:_N]), Options(*args[_N:])
    shape = output_shape(operands, options)
    return operands.x.new_empty_strided(shape, dense_strides(shape, output_layout(operands)))


def _backward_fake(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    return [_fake_like(t) for t in _likes(_operands_and_options(args)[0], wanted)]


def _fake_like(t: Tensor) -> Tensor:
    """`torch.empty_like` with the strides that it has on real tensors: fake ones forget those of size-1 and empty axes."""
    return t.new_empty_strided(t.shape, t.stride()) if is_dense(t.shape, t.stride()) else torch.empty_like(t)


# --- autograd


class _SeparableConv(torch.autograd.Function):
    """One node for the pair of convolutions; the intermediate is recomputed in backward, never saved."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        operands, options = Operands(*args[:_N]), Options(*args[_N:])
        if type(operands.x) is Tensor:  # while tracing, the compiled forward and backward each read the switch
            options = options._replace(precision=_precision(operands.x, options))
        with torch._C._AutoDispatchBelowAutograd():
            y = FORWARD(*operands, *options)
        ctx.save_for_backward(*operands[: _N - 1])
        ctx.options = options
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[: _N - 1]
        found: list[Tensor] = []
        if grad is not None and any(wanted):
            with torch._C._DisableAutocast():
                found = BACKWARD(grad, wanted, *ctx.saved_tensors, *ctx.options)
        filled = iter(found)
        gradients = [next(filled, None) if want else None for want in wanted]
        residual = grad if ctx.needs_input_grad[_N - 1] else None
        return (*gradients, residual, *[None] * len(ctx.options))


_apply: Callable[..., Tensor] = _SeparableConv.apply


def _forward_autograd(*args: Any) -> Tensor:
    if forward_ad._current_level >= 0:  # forward-mode derivatives
        return reference.forward(Operands(*args[:_N]), Options(*args[_N:]))
    return _apply(*args)


def _backward_autograd(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    operands, options = _operands_and_options(args)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *operands))
    if differentiable or forward_ad._current_level >= 0:
        return reference.gradients(grad, operands, options, wanted)
    with torch._C._AutoDispatchBelowAutograd():
        return BACKWARD(grad, wanted, *args)


# --- function transforms: vmap, grad, jvp, ... see PyTorch's own operations


def _forward_transformed(*args: Any) -> Tensor:
    return reference.forward(Operands(*args[:_N]), Options(*args[_N:]))


def _backward_transformed(grad: Tensor, wanted: list[bool], *args: Any) -> list[Tensor]:
    return reference.gradients(grad, *_operands_and_options(args), wanted)


# --- autocast


_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that this tensor has inside the op: autocast's where a context casts it, otherwise its own."""
    kind = tensor.device.type
    if tensor.dtype is torch.float64 or not tensor.is_floating_point():
        return tensor.dtype
    if kind not in _AUTOCAST or not torch.is_autocast_enabled(kind):
        return tensor.dtype
    return torch.get_autocast_dtype(kind)


def _autocast(key: str) -> Callable[..., Tensor]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any) -> Tensor:
        tensors = [None if t is None else t.to(autocast_dtype(t)) for t in args[:_N]]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return FORWARD(*tensors, *args[_N:])

    return kernel


# --- decomposition: the pair in PyTorch's own operations, for whoever cannot take an op of ours


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """The two ops as PyTorch's own operations, for `ExportedProgram.run_decompositions`, AOTInductor and ONNX.

    After `ep.run_decompositions(sepconv.decomposition_table())` the program holds two convolutions of `aten` where it held
    one op of ours, and runs without sepconv.
    """
    return {FORWARD: _forward_transformed, BACKWARD: _backward_transformed}


def _register() -> None:
    layers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "CompositeExplicitAutograd": (_forward_kernel, _backward_kernel),
        "Autograd": (_forward_autograd, _backward_autograd),
        "FuncTorchDynamicLayerFrontMode": (_forward_transformed, _backward_transformed),
        "Batched": (_forward_transformed, _backward_transformed),  # autograd.grad(..., is_grads_batched=True)
    }
    for key, kernels in layers.items():
        for name, kernel in zip(("separable_conv", "separable_conv_backward"), kernels, strict=True):
            _LIBRARY.impl(name, kernel, key)
    for key in _AUTOCAST.values():
        _LIBRARY.impl("separable_conv", _autocast(key), key)
    torch.library.register_fake("sepconv::separable_conv", _forward_fake, lib=_LIBRARY)
    torch.library.register_fake("sepconv::separable_conv_backward", _backward_fake, lib=_LIBRARY)


_register()
