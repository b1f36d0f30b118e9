"""C++ kernels: compiled by the system's compiler, kept in the store, loaded with ctypes."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sepconv.errors import CompilerError
from sepconv.jit.artifact import Artifact, read_sources
from sepconv.jit.compilers import Compiler, compile_sources, find_compiler
from sepconv.jit.store import default_store, temporary, warn_once

_loaded: dict[str, ctypes.CDLL] = {}


@dataclass(frozen=True)
class Build:
    """What to compile: a word for it, the main file, the flags, the macros with their values, and the machine meant."""

    name: str
    main: Path
    flags: tuple[str, ...]
    defines: tuple[tuple[str, str | int], ...]
    target: str


def artifact(build: Build) -> Artifact:
    """What the build makes with the compiler and the sources as they are now. Raises CompilerError."""
    return _described(build, find_compiler())


def _described(build: Build, compiler: Compiler) -> Artifact:
    return Artifact(
        name=build.name,
        sources=read_sources(build.main),
        flags=("-shared", "-fPIC", "-fvisibility=hidden", *build.flags),
        defines=tuple((name, str(value)) for name, value in build.defines),
        compiler=compiler.identity,
        target=build.target,
        suffix=".so",
    )


def library(build: Build) -> ctypes.CDLL:
    """The loaded library of a build, compiled first where it is not in the store; one for the process.

    Raises CompilerError where there is no compiler, or where it or the loader fails, and StoreError.
    """
    compiler = find_compiler()
    wanted = _described(build, compiler)
    if wanted.key not in _loaded:
        _loaded.setdefault(wanted.key, _load(wanted, lambda made: _compile(wanted, compiler.path, made)))
    return _loaded[wanted.key]


def is_built(build: Build) -> bool:
    """Whether `library` would return without compiling. Raises CompilerError."""
    wanted = artifact(build)
    return wanted.key in _loaded or default_store().has(wanted)


def _load(wanted: Artifact, compile_to: Callable[[Path], None]) -> ctypes.CDLL:
    path = default_store().fetch(wanted, compile_to)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # such as a folder that is mounted noexec
        loaded = _load_elsewhere(wanted, compile_to, str(error))
        warn_once(path.parent, str(error))
        return loaded


def _load_elsewhere(wanted: Artifact, compile_to: Callable[[Path], None], failure: str) -> ctypes.CDLL:
    path = temporary().fetch(wanted, compile_to)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        hint = "Remove it to have it compiled anew, or set `TMPDIR` to a folder from which libraries can be loaded."
        raise CompilerError(
            f"`{wanted.name}` is compiled but cannot be loaded ({failure}; {error}); expected a library of this machine. {hint}"
        ) from error


def _compile(wanted: Artifact, compiler: str, made: Path) -> None:
    folder = made.parent / "sources"
    for name, text in wanted.sources:
        file = folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    defines = [f"-D{name}={value}" for name, value in wanted.defines]
    main = wanted.sources[0][0]  # before the flags: a linker takes from a library only what is missing so far
    command = [compiler, main, *wanted.flags, *defines, "-o", str(made)]
    compile_sources(wanted.name, command, folder)
