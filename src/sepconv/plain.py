"""Which calls no layer of PyTorch has to see: they go past its dispatcher, straight to the kernel."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sepconv.problem import Operands


def is_plain_call(operands: Operands) -> bool:
    """Whether PyTorch's dispatcher would only pass this call on: plain tensors, no derivative, no mode, no profiler.

    It passes it on in 15 us and more, which small layers feel (two convolutions of (1, 4, 8, 8): 50 us; 2 cores of a Xeon,
    2026-11-29). The checks take 2 us.
    """
    modes = torch._C._are_functorch_transforms_active() or torch._C._len_torch_function_stack()
    return not modes and passes_by(operands) and are_plain(operands)


def passes_by(operands: Operands) -> bool:
    """The part of it that tells two calls on the same plain tensors apart, outside of a mode for functions.

    A transform of `torch.func` wraps the tensors that it is about, so that these are not plain.
    """
    c = torch._C
    if (
        c._len_torch_dispatch_stack()
        or c._is_any_autocast_enabled()
        or c._autograd._profiler_enabled()
        or forward_ad._current_level >= 0
    ):
        return False
    return not (torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in operands]))


def are_plain(operands: Operands) -> bool:
    """Whether all are plain dense tensors."""
    return all([t is None or (type(t) in _PLAIN_TYPES and keys_of(t) in _PLAIN_KEYS) for t in operands])


def keys_of(tensor: Tensor) -> int:
    """The dispatch keys of a tensor: its backend and layout, and what wraps it."""
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return keys


def _plain_keys() -> frozenset[int]:
    """The dispatch keys of a plain dense tensor on the CPU or on CUDA, made inside or outside of inference mode."""
    found = set()
    for device in ("CPU", "CUDA"):
        normal = [device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}"]
        for names in (normal, [device, f"Autocast{device}"]):
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
            for name in names:
                keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
            found.add(keys.raw_repr())
    return frozenset(found)


_PLAIN_KEYS = _plain_keys()
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
