"""Rooms with sources, a cache of their own, and a compiler that counts its calls: one for C++, one for CUDA.

Another process enters the same room by the code of `child`.
"""

import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from sepconv.errors import CompilerError
from sepconv.jit import cxx, nvrtc

GXX = shutil.which("g++") or shutil.which("clang++")


class Room:
    """A folder with a main file and a header, from which `value` compiles N + MORE."""

    main_name: str
    main_text: str

    def __init__(self, top: Path) -> None:
        self.top, self.cache, self.log, self.main = top, top / "cache", top / "log", top / self.main_name
        if not self.main.exists():
            self.set_more(1000)
            self.main.write_text(self.main_text)
        self.build = self.build_of(3)

    @staticmethod
    def missing() -> str | None:
        """Why nothing can be compiled here, or None where it can."""
        raise NotImplementedError

    def enter(self, patch: Any) -> None:
        """Use this room's cache and compiler from now on, by pytest's monkeypatch."""
        patch.setenv("SEPCONV_CACHE_DIR", str(self.cache))

    def build_of(self, number: int) -> Any:
        """What to compile with this N."""
        raise NotImplementedError

    def value(self, build: Any = None) -> int:
        """N + MORE as the compiled file has it, compiled first where it is not kept."""
        raise NotImplementedError

    def key(self) -> str:
        """The key of what the build makes now."""
        raise NotImplementedError

    def is_built(self) -> bool:
        """Whether `value` would not compile."""
        raise NotImplementedError

    def change_flag(self, patch: Any) -> None:
        """Have the same compiled with other flags."""
        raise NotImplementedError

    def change_compiler(self, patch: Any) -> None:
        """Have the same compiled by what says that it is another compiler."""
        raise NotImplementedError

    def delay(self, seconds: float) -> None:
        """Have the compiler wait before it compiles, once it has counted the call."""
        raise NotImplementedError

    def set_more(self, number: int) -> None:
        (self.top / "more.h").write_text(f"#define MORE {number}\n")

    def calls(self) -> int:
        """How often the compiler compiled, in all processes."""
        return len(self.log.read_text().split()) if self.log.exists() else 0

    def kept(self) -> list[str]:
        """The names in the store, without those of locks."""
        folder = self.cache / "kernels"
        return sorted(name for name in os.listdir(folder) if not name.endswith(".lock")) if folder.is_dir() else []

    def entry(self) -> Path:
        """The one file in the store."""
        (name,) = self.kept()
        return self.cache / "kernels" / name

    def child(self, code: str) -> str:
        """Code for another process, which knows this room and its build by these names."""
        kind = type(self).__name__
        return f"from rooms import cxx, {kind}\nroom = {kind}(Path({str(self.top)!r}))\nroom.count()\nbuild = room.build\n{code}"

    def count(self) -> None:
        """Count this process's calls of the compiler, where it does not do so itself."""


class CxxRoom(Room):
    main_name = "main.cpp"
    main_text = """
#include "more.h"
#if __has_include("planted.h")
#error "a folder from the environment was searched"
#endif
int hidden(int x) { return x; }
extern "C" __attribute__((visibility("default"))) int add(int x) { return x + N + MORE; }
"""

    @staticmethod
    def missing() -> str | None:
        return None if GXX else "no g++ or clang++ on the PATH"

    def enter(self, patch: Any) -> None:
        super().enter(patch)
        patch.setenv("SEPCONV_CXX", self.wrap())

    def build_of(self, number: int) -> cxx.Build:
        return cxx.Build("add", self.main, ("-O1",), (("N", number),), "any")

    def value(self, build: cxx.Build | None = None) -> int:
        cxx._loaded.clear()  # so that the store is asked each time
        return int(cxx.library(build or self.build).add(0))

    def key(self) -> str:
        return cxx.artifact(self.build).key

    def is_built(self) -> bool:
        cxx._loaded.clear()
        return cxx.is_built(self.build)

    def change_flag(self, patch: Any) -> None:
        patch.setattr(self, "build", cxx.Build("add", self.main, ("-O2",), (("N", 3),), "any"))

    def change_compiler(self, patch: Any) -> None:
        patch.setenv("SEPCONV_CXX", str(GXX))

    def delay(self, seconds: float) -> None:
        self.wrap(f"sleep {seconds}")

    def wrap(self, before: str = "") -> str:
        """The path of a compiler that runs these shell commands before it compiles; they are one line."""
        script = self.top / "compiler"
        compiling = f"echo $$ >> {shlex.quote(str(self.log))}; {before or ':'}"
        script.write_text(
            f'#!/bin/sh\ncase " $* " in *" -shared "*) {compiling};; esac\nexec {shlex.quote(str(GXX))} "$@"\n'
        )
        script.chmod(0o755)
        return str(script)


class CudaRoom(Room):
    main_name = "main.cu"
    main_text = """
#include "more.h"
__constant__ unsigned marked[4] = {0x5ec0117u, 0x0ddba11u, N + MORE, 0u};
extern "C" __global__ void look(unsigned* p) { *p = marked[*p & 3u]; }
"""
    mark = b"".join(word.to_bytes(4, "little") for word in (0x5EC0117, 0x0DDBA11))

    @staticmethod
    def missing() -> str | None:
        return nvrtc.missing()

    def enter(self, patch: Any) -> None:
        super().enter(patch)
        patch.setattr(nvrtc, "compiled", self._counting(nvrtc.compiled))

    def count(self) -> None:
        nvrtc.compiled = self._counting(nvrtc.compiled)

    def _counting(self, compiled: Any) -> Any:
        def counted(wanted: Any, folder: Path) -> Any:
            with self.log.open("a") as log:
                log.write(f"{os.getpid()}\n")
            pause = self.top / "pause"
            time.sleep(float(pause.read_text()) if pause.exists() else 0.0)
            return compiled(wanted, folder)

        return counted

    def build_of(self, number: int) -> nvrtc.Build:
        return nvrtc.Build("look", self.main, (("N", number),), "sm_90a")

    def value(self, build: nvrtc.Build | None = None) -> int:
        code = nvrtc.cubin(build or self.build)
        if code[:4] != b"\x7fELF":
            raise CompilerError("this is no compiled kernel")
        start = code.index(self.mark) + len(self.mark)
        return int.from_bytes(code[start : start + 4], "little")

    def key(self) -> str:
        return nvrtc.artifact(self.build).key

    def is_built(self) -> bool:
        return nvrtc.is_built(self.build)

    def change_flag(self, patch: Any) -> None:
        patch.setattr(nvrtc, "STANDARD", "c++14")

    def change_compiler(self, patch: Any) -> None:
        patch.setattr(nvrtc, "version", lambda _: "99.9")
        patch.setattr(nvrtc, "_compiler", nvrtc._compiler.__wrapped__)  # which asks again

    def delay(self, seconds: float) -> None:
        (self.top / "pause").write_text(str(seconds))


ROOMS = {"C++": CxxRoom, "CUDA": CudaRoom}
