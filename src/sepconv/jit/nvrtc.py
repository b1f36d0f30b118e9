"""CUDA kernels: compiled by NVRTC through cuda.core, which needs no toolkit and no GPU, and kept in the store."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sepconv.errors import CompilerError
from sepconv.jit.artifact import Artifact, read_sources
from sepconv.jit.store import default_store

STANDARD, PTXAS_OPTIONS = "c++17", ("-v", "-warn-spills")
_IMPORT = threading.Lock()
INSTALL = "Install `sepconv[cuda12]` or `sepconv[cuda13]`, by the CUDA that PyTorch was built with."


@dataclass(frozen=True)
class Build:
    """What to compile: a word for it, the main file, the macros with their values, and the architecture ("sm_90a")."""

    name: str
    main: Path
    defines: tuple[tuple[str, str | int], ...]
    arch: str


def missing() -> str | None:
    """Why nothing can be compiled here, in words; None where it can."""
    try:
        _compiler()
    except CompilerError as error:
        return str(error)
    return None


def artifact(build: Build) -> Artifact:
    """What the build makes with the compiler and the sources as they are now. Raises CompilerError."""
    return Artifact(
        name=build.name,
        sources=read_sources(build.main),
        flags=(STANDARD, *PTXAS_OPTIONS),
        defines=tuple((name, str(value)) for name, value in build.defines),
        compiler=_compiler(),
        target=build.arch,
        suffix=".cubin",
    )


def cubin(build: Build) -> bytes:
    """The machine code of a build, compiled first where it is not in the store. Raises CompilerError and StoreError."""
    wanted = artifact(build)

    def make(made: Path) -> None:
        made.write_bytes(compiled(wanted, made.parent)[0])

    return default_store().fetch(wanted, make).read_bytes()


def is_built(build: Build) -> bool:
    """Whether `cubin` would return without compiling. Raises CompilerError."""
    return default_store().has(artifact(build))


def compiled(wanted: Artifact, folder: Path) -> tuple[bytes, str]:
    """The machine code, and what the compiler says of registers, spills and serialised products. `folder` is for its files.

    Raises CompilerError with the compiler's own words.
    """
    core = _core()
    sources = folder / "sources"
    for name, text in wanted.sources:
        file = sources / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    options = core.ProgramOptions(
        std=STANDARD,
        arch=wanted.target,
        define_macro=[f"{name}={value}" for name, value in wanted.defines],
        include_path=str(sources),
        ptxas_options=list(PTXAS_OPTIONS),
    )
    log = _Log()
    try:
        program = core.Program(wanted.sources[0][1], "c++", options)
        code = program.compile("cubin", logs=log).code
    except Exception as error:  # cuda.core raises errors of its own kinds, which differ between its versions
        raise CompilerError(f"NVRTC cannot compile `{wanted.name}` for {wanted.target}: {error}") from error
    finally:
        shutil.rmtree(sources, ignore_errors=True)
    return bytes(code), log.text


class _Log:
    """What `Program.compile` writes its log to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def _core() -> Any:
    """cuda.core. While it is imported, another thread that asks for it would be given a part of it."""
    try:
        with _IMPORT:
            from cuda import core
    except ImportError as error:
        raise CompilerError(
            f"cuda.core cannot be imported ({error}); it compiles the kernels for GPUs. {INSTALL}"
        ) from error
    return core


@lru_cache(maxsize=1)
def _compiler() -> str:
    """NVRTC with its version. Raises CompilerError where it or cuda.core is missing.

    cuda.core is looked for and not imported, and NVRTC is not loaded where it is known as an installed package: that would take
    60 ms and 15 to 60 (a Xeon, 2026-11-30), which a kernel on disk does not need.
    """
    if not _is_there("cuda.core"):
        raise CompilerError(f"cuda.core is not installed; it compiles the kernels for GPUs. {INSTALL}")
    if packages := list(_versions("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")):
        return ", ".join([*packages, *_versions("cuda-bindings")])  # which choose one of them
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # a missing library is an error of the binding's own kind
        raise CompilerError(f"NVRTC cannot be loaded ({error}); it compiles the kernels for GPUs. {INSTALL}") from error
    return f"NVRTC {major}.{minor}"


def _versions(*packages: str) -> Iterator[str]:
    """Those that are installed, with their versions."""
    for package in packages:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of what holds it
        return False
