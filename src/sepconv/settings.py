"""Every environment variable that sepconv reads, declared once and validated when it is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sepconv.errors import SettingError

T = TypeVar("T")
ISAS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")  # each has all that those behind it have


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: its name, what it does, and how its text becomes a value.

    `parse` raises ValueError with the expectation as its text; `read` turns that into a SettingError.
    """

    name: str
    meaning: str
    default: T
    parse: Callable[[str], T]

    def read(self) -> T:
        """The value of the variable now, or the default where it is unset or empty."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"`{self.name}` is {text!r}; expected {error}. Unset it to get the default.") from None


def _name(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("the name of a backend, such as 'eager'")
    return text


def _folder(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a folder; there is no home folder for its ~") from None


def _compiler(text: str) -> str:
    if not text.strip():
        raise ValueError("the name or the path of a C++ compiler, such as 'g++-13'")
    return text


def _isa(text: str) -> str:
    if text not in ISAS:
        raise ValueError(f"one of {', '.join(ISAS)}")
    return text


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _mebibytes(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a whole number of MiB, such as 512, or 0")
    return int(text)


def default_cache_dir() -> Path:
    """The folder for compiled kernels and tuning records: $XDG_CACHE_HOME/sepconv or ~/.cache/sepconv.

    Raises SettingError where this user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path("~/.cache").expanduser()) / "sepconv"
    except RuntimeError:
        hint = f"Set `{CACHE_DIR.name}` to a folder of your own."
        raise SettingError(f"`HOME` is not set; expected a home folder for the cache. {hint}") from None


BACKEND: Setting[str | None] = Setting(
    "SEPCONV_BACKEND",
    "the one backend to use; a problem that it cannot run is an error. Read when a problem is planned first.",
    None,
    _name,
)
CACHE_DIR: Setting[Path | None] = Setting(
    "SEPCONV_CACHE_DIR",
    "the folder for compiled kernels and tuning records",
    None,
    _folder,
)
CXX: Setting[str | None] = Setting(
    "SEPCONV_CXX",
    "the name or the path of the C++ compiler (gcc or clang) for the CPU's kernels; default g++, clang++ or c++",
    None,
    _compiler,
)

ISA: Setting[str | None] = Setting(
    "SEPCONV_ISA",
    f"the instructions that the CPU's kernels are compiled for: {', '.join(ISAS)}; default the best that the CPU has",
    None,
    _isa,
)
HUGE_PAGES: Setting[bool] = Setting(
    "SEPCONV_HUGE_PAGES",
    "whether large results on the CPU ask the system for huge pages: 1 or 0",
    True,
    _switch,
)

KEEP_RESULTS: Setting[int] = Setting(
    "SEPCONV_KEEP_RESULTS",
    "the MiB of memory of large results on the CPU, in use or free, that are kept for later results: default 128; 0 keeps none",
    128,
    _mebibytes,
)

ALL: tuple[Setting[Any], ...] = (BACKEND, CACHE_DIR, CXX, ISA, HUGE_PAGES, KEEP_RESULTS)


def cache_dir() -> Path:
    """The folder for compiled kernels and tuning records; nothing is created."""
    return CACHE_DIR.read() or default_cache_dir()
