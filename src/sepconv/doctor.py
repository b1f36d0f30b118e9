"""What sepconv finds on this machine: versions, devices, backends, compiler, cache and settings, and what is wrong with them."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from sepconv import __version__, settings
from sepconv.backends import all_backends
from sepconv.device import Device, describe
from sepconv.errors import CompilerError, SepconvError, SettingError
from sepconv.jit.compilers import find_compiler

Facts = dict[str, Any]


def examine() -> Facts:
    """Everything that decides what sepconv can do here, as plain data; nothing is created or compiled.

    Keys: versions, cuda, devices, backends, compiler, cache, settings, and `problems`, the list of what is wrong.
    """
    devices = [describe(device) for device in _torch_devices()]
    facts: Facts = {
        "versions": _versions(),
        "cuda": _cuda(),
        "devices": [_device_facts(device) for device in devices],
        "backends": [_backend_facts(backend, device) for device in devices for backend in all_backends()],
        "compiler": _compiler(),
        "cache": _cache(),
        "settings": [_setting_facts(setting) for setting in settings.ALL],
    }
    wrong = [
        *(facts[part]["problem"] for part in ("cuda", "compiler", "cache")),
        *(s["problem"] for s in facts["settings"]),
    ]
    facts["problems"] = list(dict.fromkeys(text for text in wrong if text))
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    return {
        "sepconv": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "cuda-core": _version("cuda-core"),
        "cuda-bindings": _version("cuda-bindings"),
    }


# --- CUDA: what torch was built for, against what the extra brought


def _cuda() -> Facts:
    """The CUDA of torch and of the installed extra; `state` says in words how they go together.

    The extra `cuda12` or `cuda13` installs cuda-core with cuda-bindings of that major version, compiler included.
    """
    built = torch.version.cuda
    cudnn = torch.backends.cudnn.version() if built else None
    facts: Facts = {"torch": built, "cudnn": cudnn, "available": torch.cuda.is_available(), "problem": None}
    facts |= _compare_cuda(built, _version("cuda-core"), _version("cuda-bindings"))
    if built and not facts["available"]:
        facts["state"] += "; torch sees no CUDA device (no GPU, or no driver that fits)"
    return facts


def _compare_cuda(built: str | None, core: str | None, bindings: str | None) -> Facts:
    """The `flavour` of the installed extra ('cu12', 'cu13' or None), `state` in words, and `problem` or None."""
    flavour = f"cu{bindings.split('.')[0]}" if core and bindings else None
    if built is None:
        return {"flavour": flavour, "state": "torch is built without CUDA: no CUDA backend", "problem": None}
    wanted = built.split(".")[0]
    extra = f'pip install "sepconv[cuda{wanted}]"'
    if core is None:
        return {
            "flavour": None,
            "state": f"cuda-core is not installed: {extra} brings the fused kernels",
            "problem": None,
        }
    if flavour != f"cu{wanted}":
        problem = f"torch is built for CUDA {built}, but cuda-core has the flavour {flavour or 'of none'}; run {extra}"
        return {"flavour": flavour, "state": problem, "problem": problem}
    return {"flavour": flavour, "state": f"torch and cuda-core agree on CUDA {wanted}", "problem": None}


# --- devices and backends


def _torch_devices() -> list[torch.device]:
    found = [torch.device("cpu")]
    if torch.cuda.is_available():
        return found + [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    other = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if other is None else [*found, other]


def _device_name(device: Device) -> str:
    return device.kind if device.index is None else f"{device.kind}:{device.index}"


def _device_facts(device: Device) -> Facts:
    return {
        "device": _device_name(device),
        "name": device.name,
        "capability": None if device.capability is None else ".".join(map(str, device.capability)),
        "isa": device.isa or None,
        "units": device.units,
        "memory_bytes": device.memory,
    }


def _backend_facts(backend: Any, device: Device) -> Facts:
    """Whether one backend can run on one device, with all its reasons against it."""
    try:
        reasons = list(backend.unavailable(device))
    except SepconvError as error:
        reasons = [str(error)]
    return {"backend": backend.name, "device": _device_name(device), "runs": not reasons, "reasons": reasons}


# --- compiler, cache and settings


def _compiler() -> Facts:
    """The C++ compiler, or why there is none; that is a problem only where the user has named one."""
    try:
        found = find_compiler()
    except SettingError as error:
        return {"path": None, "version": None, "state": "unknown", "problem": str(error)}
    except CompilerError as error:
        named = bool(os.environ.get(settings.CXX.name))
        return {"path": None, "version": None, "state": str(error), "problem": str(error) if named else None}
    return {"path": found.path, "version": found.version, "state": f"{found.version} at {found.path}", "problem": None}


def _cache() -> Facts:
    try:
        place = settings.cache_dir()
    except SepconvError as error:
        return {"place": None, "exists": False, "bytes": 0, "problem": str(error)}
    problem = None
    if not os.access(_nearest_existing(place), os.W_OK):
        problem = f"the cache {place} cannot be written; set `{settings.CACHE_DIR.name}` to a folder that can"
    size = sum(map(_size, place.rglob("*"))) if place.is_dir() else 0
    return {"place": str(place), "exists": place.is_dir(), "bytes": size, "problem": problem}


def _size(path: Path) -> int:
    """The bytes of a file, 0 of anything else and of what another process has just removed."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _nearest_existing(place: Path) -> Path:
    """The folder itself, or the one above it in which it would be made."""
    return next((path for path in (place, *place.absolute().parents) if path.exists()), place)


def _setting_facts(setting: Any) -> Facts:
    try:
        value, problem = setting.read(), None
    except SepconvError as error:
        value, problem = os.environ.get(setting.name), str(error)
    shown = None if value is None else str(value)
    is_set = bool(os.environ.get(setting.name))
    return {"name": setting.name, "set": is_set, "value": shown, "meaning": setting.meaning, "problem": problem}
