"""What the tests of the store share: two artifacts, what builds them, what fails to, and what harms an entry."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sepconv.jit.artifact import Artifact

ADD = Artifact("add", (("add.cpp", "int x;"),), ("-O2",), (("N", "3"),), "g++ 12", "x86_64 avx2", ".so")
OTHER = replace(ADD, target="x86_64 avx512")


class Builder:
    """Writes its content, and counts how often."""

    def __init__(self, content: bytes = b"right") -> None:
        self.content, self.calls = content, 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_bytes(self.content)


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "the disk")

    return fail


def flip(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    """The very same content, behind a symbolic link."""
    elsewhere = path.parent.parent / "elsewhere"
    os.replace(path, elsewhere)
    path.symlink_to(elsewhere)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 2),
    "empty": lambda path: os.truncate(path, 0),
    "a flipped bit": flip,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "a symbolic link": link,
    "writable by the group": lambda path: path.chmod(0o620),
    "writable by all": lambda path: path.chmod(0o602),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
    "a folder": lambda path: (path.unlink(), path.mkdir(mode=0o700), (path / "file").touch()),
}


def give_away(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The system says that a file or a folder belongs to another user."""
    inode, user = os.lstat(path).st_ino, os.geteuid() + 1

    def of(ask: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def answer(*args: object, **words: object) -> os.stat_result:
            status = ask(*args, **words)
            return status if status.st_ino != inode else os.stat_result([*status[:4], user, *status[5:]])

        return answer

    monkeypatch.setattr(os, "lstat", of(os.lstat))
    monkeypatch.setattr(os, "fstat", of(os.fstat))
