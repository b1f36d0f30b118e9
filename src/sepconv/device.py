"""What the machine is: a device as a frozen record, and PyTorch's own switch for float32 on it."""

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch

from sepconv import settings
from sepconv.errors import SettingError, value_error

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    """One device that a tensor can live on.

    `kind` is PyTorch's device type ('cpu', 'cuda', ...), `name` is the maker's, `capability` the CUDA compute capability,
    `units` the number of SMs or of CPU threads that PyTorch uses, `memory` bytes in all (0 where unknown), `isa` the
    instructions that kernels for this CPU may use (one of settings.ISAS), `cache` the bytes of the second-level
    cache of one core.
    """

    kind: str
    name: str
    index: int | None = None
    capability: tuple[int, int] | None = None
    units: int = 0
    memory: int = 0
    isa: str = ""
    cache: int = 0

    def __str__(self) -> str:
        if self.capability:
            major, minor = self.capability
            return f"{self.kind}:{self.index} {self.name} (sm_{major}{minor}, {self.units} SMs, {self.memory / 2**30:.0f} GiB)"
        return f"{self.kind} {self.name}" + (f" ({self.isa}, {self.units} threads)" if self.isa else "")


def describe(device: torch.device) -> Device:
    """The record of one torch device; the same record at every call, as long as PyTorch's threads and the settings are."""
    if device.type == "cpu":
        return _describe_cpu(torch.get_num_threads(), settings.ISA.read())
    return _describe(device)


@lru_cache(maxsize=64)
def _describe(device: torch.device) -> Device:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        facts = torch.cuda.get_device_properties(index)
        return Device(
            "cuda", facts.name, index, (facts.major, facts.minor), facts.multi_processor_count, facts.total_memory
        )
    return Device(device.type, device.type, device.index)


@lru_cache(maxsize=64)
def _describe_cpu(threads: int, isa: str | None) -> Device:
    found = _found_isa()
    if isa is not None and settings.ISAS.index(isa) < settings.ISAS.index(found):
        raise SettingError(
            f"`{settings.ISA.name}` is {isa!r}; expected {found!r}, which is what this CPU has, or less. Unset it to get that."
        )
    return Device(
        "cpu", _cpu_name(), units=threads, memory=_host_memory(), isa=isa or found, cache=_second_level_cache()
    )


def usable(device: torch.device | str) -> torch.device:
    """The torch device of this name; ArgumentValueError where this PyTorch has none such, or cannot use it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        came = f"is {str(device)!r}, which cannot be used here ({str(error).splitlines()[0].rstrip('.')})"
        expected = "cpu, or cuda or cuda:INDEX where there is one"
        raise value_error("device", came, expected, "`sepconv doctor` lists the devices.") from None
    return found


def is_capturing(kind: str) -> bool:
    """Whether the current stream of this kind of device is capturing a CUDA graph."""
    return kind == "cuda" and torch.cuda.is_current_stream_capturing()


def resolve_precision(precision: str | None, dtype: torch.dtype, kind: str) -> str:
    """The precision that float32 runs with: 'ieee', 'high' or 'tf32'.

    None follows PyTorch's switch for cuDNN's convolutions: 'high' where that allows TF32, otherwise 'ieee'. It is 'ieee' for
    every other dtype and for every device but CUDA.
    """
    if dtype is not torch.float32 or kind != "cuda":
        return "ieee"
    if precision is not None:
        return precision
    return "high" if _get_switch("cuda", "conv") == "tf32" else "ieee"


def float32_switch() -> str:
    """What PyTorch's switch for float32 convolutions on CUDA says now: `resolve_precision` hangs on nothing else."""
    return _get_switch("cuda", "conv")


def is_float32_exact(kind: str) -> bool:
    """Whether no switch of PyTorch allows its convolutions and products on this kind of device less than float32."""
    return all([_get_switch(*switch) in _EXACT for switch in _SWITCHES.get(kind, ())])


def in_full_float32(kind: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function while PyTorch's own float32 convolutions and products on this kind of device are exact.

    Where no switch allows less, nothing is touched. Otherwise the switches, which are global, are raised and put back under
    a lock, so that two threads in here cannot mislead each other.
    """
    if is_float32_exact(kind):
        return function(*args, **kwargs)
    with _SWITCH_LOCK:
        before = [(switch, _get_switch(*switch)) for switch in _SWITCHES[kind]]
        before = [(switch, value) for switch, value in before if value not in _EXACT]
        for switch, _ in before:
            _set_switch(*switch, "ieee")
        try:
            return function(*args, **kwargs)
        finally:
            for switch, value in before:
                _set_switch(*switch, value)


_SWITCH_LOCK = threading.RLock()
# What `torch.backends.<backend>.<op>.fp32_precision` reads and writes; a call through that attribute costs 0.75 us, this 0.1.
_SWITCHES = {"cuda": (("cuda", "conv"), ("cuda", "matmul")), "cpu": (("mkldnn", "conv"), ("mkldnn", "matmul"))}
_EXACT = frozenset(("ieee", "none"))
_get_switch: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
_set_switch = torch._C._set_fp32_precision_setter


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _host_memory() -> int:
    if not hasattr(os, "sysconf"):
        return 0
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _second_level_cache() -> int:
    """The bytes of one core's second-level cache, or 1 MiB where the system does not say."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index2/size") as text:
            size = text.read().strip()
        return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1:], 0)
    except (OSError, ValueError):
        return 1 << 20


# What the kernel's flags for an instruction set ask of the CPU, in the words of /proc/cpuinfo; the first that fits is taken.
_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_NEEDS = {
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512_bf16": _AVX512 | {"avx512_bf16"},
    "avx512": _AVX512,
    "avx2": _AVX2,
}


@lru_cache(maxsize=1)
def _found_isa() -> str:
    """The best of settings.ISAS that this CPU has and the system lets us use."""
    flags = _cpu_flags()
    for isa, needs in _NEEDS.items():
        if needs <= flags and (isa != "amx" or _may_use_matrices()):
            return isa
    return "generic"


def _cpu_flags() -> set[str]:
    """The instruction sets of an x86 CPU in the words of Linux; by PyTorch's word for them where the system does not tell."""
    try:
        with open("/proc/cpuinfo") as lines:
            found = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        found = ""
    named = {"AVX512": _AVX512, "AVX2": _AVX2}.get(torch.backends.cpu.get_cpu_capability(), set())
    return set(found.split()) or set(named)


def _may_use_matrices() -> bool:
    """Ask Linux for the state of the matrix units (AMX), which a process gets on request only."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    try:
        return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)
    except (OSError, AttributeError, TypeError):
        return False
