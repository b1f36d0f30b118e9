"""Measured choices on disk: one JSON file for each device, read when a problem is planned, written by `sepconv tune` only.

A file counts for one device and one version of its kernels; what is damaged, foreign or of another version counts as absent.
Tables of the same form that come with the package lie in `tables/`; what was measured on the machine goes before them.
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sepconv import kernels, settings
from sepconv.device import Device
from sepconv.errors import SettingError, StoreError
from sepconv.jit.locks import alone
from sepconv.jit.store import EXPECTED, PRIVATE, reason_of, sweep
from sepconv.jit.trust import folder_fault, make_folder, read_own, resolved
from sepconv.problem import Problem
from sepconv.tuning.config import CpuConfig, legal
from sepconv.tuning.facts import Facts, problem_facts, problem_from

FORMAT = 1  # of the files; counted up when what a record holds changes its meaning
TABLES = Path(__file__).parent / "tables"
CLEARLY = 1.05  # times as long: by less, two measured times do not say which one is faster

_CONFIGS = {"cpu": CpuConfig}  # by the kind of device
_SOURCES = {".cpp", ".h", ".cu", ".cuh"}
_TIMES = ("ms", "model_ms", "eager_ms")


@dataclass(frozen=True)
class Record:
    """What was measured for one problem on one device; times are medians in milliseconds.

    `config` is the fastest configuration and `ms` its time, `model_ms` the time of the cost model's choice, `eager_ms` that of
    PyTorch's own kernels in its version `torch`.
    """

    problem: Problem
    config: CpuConfig
    ms: float
    model_ms: float
    eager_ms: float
    torch: str

    def eager_won(self) -> str | None:
        """That PyTorch's own kernels are clearly faster, in words; None where they are not, or are another version's now."""
        if self.torch != torch.__version__ or self.eager_ms * CLEARLY >= self.ms:
            return None
        return f"PyTorch's own kernels measured faster ({self.eager_ms:.3g} ms, {self.ms:.3g} ms)"


def lookup(problem: Problem, device: Device) -> Record | None:
    """What was measured for this problem on this device; None where nothing was, or nothing that still holds. Never fails."""
    if not covers(device):
        return None
    found = _known(device, folder()).get(problem)
    return found if found is not None and legal(problem, found.config, device) else None


def covers(device: Device) -> bool:
    """Whether there is something to choose, and so to record, on this kind of device."""
    return device.kind in _CONFIGS


def save(found: Iterable[Record], device: Device) -> Path:
    """Put records into the file of a device, in the place of older ones of the same problems; its path.

    What other processes wrote meanwhile stays. Raises StoreError where the folder cannot be used, and SettingError.
    """
    place = folder() or settings.cache_dir()  # the latter says what is wrong with the setting
    path = place / file_name(device)
    try:
        make_folder(place)
        with alone(place / "records.lock"):
            sweep(place)
            merged = _records(_read(path), device) | {record.problem: record for record in found}
            _write(path, _file_facts(merged.values(), device))
    except OSError as error:
        raise StoreError(f"`{path}` cannot be written ({reason_of(error)}); {EXPECTED}") from error
    finally:
        forget()
    return path


def forget() -> None:
    """Let the next look-up read the files again."""
    _known.cache_clear()


def folder() -> Path | None:
    """The folder of what was measured here; None where the settings name none."""
    try:
        return resolved(settings.cache_dir() / "tuning")
    except (SettingError, OSError):  # or relative to a folder that is gone
        return None


def file_name(device: Device) -> str:
    """The name of a device's file: in words, and a checksum of all that its records hang on."""
    facts = _device_facts(device)
    words = re.sub(r"[^a-z0-9]+", "-", f"{device.kind} {device.name} {device.isa}".lower()).strip("-")
    return f"{words[:80]}-{_checksum(json.dumps(facts).encode())}.json"


def _device_facts(device: Device) -> Facts:
    """What two devices share for which the same records hold."""
    capability = device.capability and list(device.capability)
    facts = {name: getattr(device, name) for name in ("kind", "name", "isa", "units", "cache")}
    return {**facts, "capability": capability, "kernels": _kernels(device.kind), "format": FORMAT}


@lru_cache(maxsize=8)
def _kernels(kind: str) -> str:
    """A checksum of the sources of this kind of device's kernels: a time measured with others says nothing."""
    files = sorted(path for path in (Path(kernels.__file__).parent / kind).iterdir() if path.suffix in _SOURCES)
    return _checksum(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# --- reading


@lru_cache(maxsize=64)
def _known(device: Device, own: Path | None) -> dict[Problem, Record]:
    name = file_name(device)
    shipped = _records(_bytes(TABLES / name), device)
    return shipped if own is None else shipped | _records(_read(own / name), device)


def _read(path: Path) -> bytes | None:
    """What a file of this user's own holds, where no one else could have written it."""
    return None if folder_fault(path.parent) else read_own(path)


def _bytes(path: Path) -> bytes | None:
    """What a file of the package holds: whoever could write it could write the code beside it."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _records(content: bytes | None, device: Device) -> dict[Problem, Record]:
    """The records of a file, without those that do not fit; none where the file is of another device or version."""
    try:
        facts = json.loads(content or b"")
        if facts["device"] != _device_facts(device):
            return {}
        entries = list(facts["records"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    found = (_record(entry, _CONFIGS[device.kind]) for entry in entries)
    return {record.problem: record for record in found if record is not None}


def _record(entry: Any, kind: type[CpuConfig]) -> Record | None:
    try:
        problem, config = problem_from(entry["problem"]), _config(entry["config"], kind)
        times, version = {name: entry[name] for name in _TIMES}, entry["torch"]
        hash(problem)  # a TypeError where a field is a list
    except (ValueError, TypeError, KeyError):
        return None
    if not all(type(ms) is float and 0 < ms < math.inf for ms in times.values()) or type(version) is not str:
        return None
    return Record(problem, config, **times, torch=version)


def _config(facts: Facts, kind: type[CpuConfig]) -> CpuConfig:
    """The configuration of such facts. Raises TypeError where a field is missing, unknown or of another type."""
    found = kind(**facts)
    if any(type(getattr(found, field.name)) is not field.type for field in dataclasses.fields(kind)):
        raise TypeError
    return found


# --- writing


def _file_facts(found: Iterable[Record], device: Device) -> Facts:
    return {"device": _device_facts(device), "records": [_record_facts(record) for record in found]}


def _record_facts(record: Record) -> Facts:
    return {**dataclasses.asdict(record), "problem": problem_facts(record.problem)}


def _write(path: Path, facts: Facts) -> None:
    """A reader sees the old file or the new one, whole."""
    handle, private = tempfile.mkstemp(prefix=PRIVATE, dir=path.parent)  # for this user only
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(private, path)
    except BaseException:
        os.unlink(private)
        raise
