"""What is compiled, and the key that holds everything that can change the result."""

import errno
import hashlib
import json
import os
import re
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path

from sepconv.errors import value_error

FORMAT = 1  # of the store; counted up when what is kept, or how, changes its meaning

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Artifact:
    """One compiled thing, by all that decides it.

    `sources` holds pairs of file name and text, the main file first and then each header that it can include. `flags` are as
    resolved ("-mavx512f", never "-march=native"). `compiler` names the compiler's path, version and target triple, `target` the
    machine ("x86_64 avx512", "sm_90a"). `name` is a word for file names and messages. Raises ArgumentValueError.
    """

    name: str
    sources: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    compiler: str
    target: str
    suffix: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise value_error("name", f"is {self.name!r}", "a word of letters, digits, '_' and '-'")
        native = next((flag for flag in self.flags if flag.endswith("=native")), None)
        if native:
            hint = "The key has to tell machines apart that share a folder."
            raise value_error("flags", f"has {native!r}", "flags that mean the same on every machine", hint)

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits: the SHA-256 of every field and of the store's format."""
        return hashlib.sha256(json.dumps([FORMAT, astuple(self)]).encode()).hexdigest()

    @property
    def stem(self) -> str:
        """What the file names of this artifact begin with."""
        return f"{self.name}-{self.key[:32]}"


def read_sources(main: Path) -> tuple[tuple[str, str], ...]:
    """The main file and every file that it can reach by `#include "..."`, as pairs of name and text, the main file first.

    A header is looked for beside the file that includes it, whatever the conditions around the line. Names are relative to the
    folder that holds all the files. Raises FileNotFoundError with the name of a header that is not there.
    """
    texts: dict[Path, str] = {}
    _read(Path(os.path.abspath(main)), texts)
    top = os.path.commonpath([path.parent for path in texts])
    return tuple((path.relative_to(top).as_posix(), text) for path, text in texts.items())


def _read(path: Path, texts: dict[Path, str]) -> None:
    texts[path] = path.read_text(encoding="utf-8")
    for name in _INCLUDE.findall(texts[path]):
        header = Path(os.path.normpath(path.parent / name))
        if not header.is_file():
            raise FileNotFoundError(
                errno.ENOENT, f'{path.name} has #include "{name}", but there is no such file', str(header)
            )
        if header not in texts:
            _read(header, texts)
