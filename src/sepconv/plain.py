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
    c = torch._C
    if (
        c._are_functorch_transforms_active()
        or c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._is_any_autocast_enabled()
        or c._autograd._profiler_enabled()
        or forward_ad._current_level >= 0
    ):
        return False
    derivative = torch.is_grad_enabled()
    for tensor in operands:
        if tensor is not None and (
            type(tensor) not in _PLAIN_TYPES
            or c._dispatch_keys(tensor).raw_repr() not in _PLAIN_KEYS
            or (derivative and tensor.requires_grad)
        ):
            return False
    return True


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
