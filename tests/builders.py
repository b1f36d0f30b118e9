"""What the tests of the store share: two artifacts, what builds them, and what fails to."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
