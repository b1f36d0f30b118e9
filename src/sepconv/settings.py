"""Every environment variable that sepconv reads, declared once and validated when it is read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sepconv.errors import SettingError

T = TypeVar("T")


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


def default_cache_dir() -> Path:
    """The folder for compiled kernels and tuning records: $XDG_CACHE_HOME/sepconv or ~/.cache/sepconv."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "sepconv"


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
    lambda text: Path(text).expanduser(),
)

ALL: tuple[Setting[str | None] | Setting[Path | None], ...] = (BACKEND, CACHE_DIR)


def cache_dir() -> Path:
    """The folder for compiled kernels and tuning records; nothing is created."""
    return CACHE_DIR.read() or default_cache_dir()
