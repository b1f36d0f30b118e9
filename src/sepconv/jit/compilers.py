"""The system's C++ compiler: which one, and one call of it."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sepconv import settings
from sepconv.errors import CompilerError

_CANDIDATES = ("g++", "clang++", "c++")
_INSTALL = "Install g++ or clang++ (Debian: apt install g++; macOS: xcode-select --install)"
_HINT = f"{_INSTALL}, or name one in `{settings.CXX.name}`."
# Variables that add files or options to what the key holds, or write files of their own.
_MISLEADING = {
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "LIBRARY_PATH",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
    "CCC_OVERRIDE_OPTIONS",
}
_ANSWERS_WITHIN = 30.0  # seconds
_COMPILES_WITHIN = 300.0
_PATIENCE = 1.0  # seconds of compiling without a word


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its absolute path, its family, the first line of its `--version`, and its target triple."""

    path: str
    kind: Literal["gcc", "clang"]
    version: str
    triple: str

    @property
    def identity(self) -> str:
        """Everything that tells this compiler from others, for the key of what it makes."""
        return f"{os.path.realpath(self.path)} | {self.version} | {self.triple}"


def find_compiler() -> Compiler:
    """The compiler that the settings name, otherwise the first of g++, clang++ and c++ on the PATH that answers.

    CXX is not read: it is set for the builds of other projects, often with options or for another target. Raises CompilerError.
    """
    return _find(settings.CXX.read(), os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=16)
def _find(named: str | None, path: str) -> Compiler:
    tried = []
    for name in [named] if named else _CANDIDATES:
        place = shutil.which(os.path.expanduser(name), path=path)
        answer = _ask(os.path.abspath(place)) if place else "not found"
        if isinstance(answer, Compiler):
            return answer
        tried.append(f"{name}: {answer}")
    what = f"`{settings.CXX.name}` is {named!r}" if named else "`PATH` has no C++ compiler"
    raise CompilerError(f"{what} ({'; '.join(tried)}); expected gcc or clang. {_HINT}")


def _ask(path: str) -> Compiler | str:
    """The compiler at this path, or why it is none."""
    try:
        version, triple = (_answer(path, question).strip() for question in ("--version", "-dumpmachine"))
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} does not answer ({error})"
    if "-" in triple:  # other GNU programs have a version text like gcc's
        if "Free Software Foundation" in version:
            return Compiler(path, "gcc", version.splitlines()[0], triple)
        if "clang" in version.lower():
            return Compiler(path, "clang", version.splitlines()[0], triple)
    return f"{path} is neither gcc nor clang"


def _answer(path: str, question: str) -> str:
    return subprocess.run(
        [path, question],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_ANSWERS_WITHIN,
        check=True,
        env=_environment(),
    ).stdout


def compile_sources(name: str, command: list[str], folder: Path) -> None:
    """Run a compiler's command in a folder, which gets its temporary files too; nothing of it outlives this call.

    Says so on standard error where it takes more than a second. Raises CompilerError with the first lines of what the compiler
    printed, and OSError where the disk is full.
    """
    teller = threading.Timer(_PATIENCE, _tell, [name])
    teller.daemon = True
    teller.start()
    try:
        status, printed = _run(name, command, folder)
    finally:
        teller.cancel()
    if status == 0:
        return
    if os.strerror(errno.ENOSPC) in printed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    lines = "\n".join(printed.splitlines()[:20])
    raise CompilerError(
        f"`{name}` does not compile ({command[0]} ended with {status}); expected no errors. {_HINT}\n{lines}"
    )


def _run(name: str, command: list[str], folder: Path) -> tuple[int, str]:
    """The exit status of the command, and what it printed."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment() | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerError(
            f"`{command[0]}` cannot be started ({error.strerror}); expected a compiler. {_HINT}"
        ) from error
    with process:
        try:
            return _wait(process, _COMPILES_WITHIN)
        except subprocess.TimeoutExpired:
            took = f"`{name}` takes more than {_COMPILES_WITHIN:.0f} s to compile with {command[0]}"
            raise CompilerError(
                f"{took}; expected a few seconds. Try another compiler in `{settings.CXX.name}`."
            ) from None


def _wait(process: "subprocess.Popen[str]", limit: float) -> tuple[int, str]:
    try:
        printed, _ = process.communicate(timeout=limit)
    except BaseException:  # KeyboardInterrupt as well
        _end(process)
        raise
    return process.returncode, printed


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill the compiler's driver together with the passes that it started."""
    if os.name != "posix":
        process.kill()
    elif process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    return kept | {"LC_ALL": "C"}


def _tell(name: str) -> None:
    print(f"sepconv: compiling `{name}` for this machine, once (a few seconds) ...", file=sys.stderr, flush=True)
