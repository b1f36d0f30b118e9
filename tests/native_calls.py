"""The CPU's kernels in programs of their own (tests/native/driver.cpp): under sanitizers, or for another kind of machine."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from sepconv.backends import cpu
from sepconv.jit import cxx

DRIVER = Path(__file__).parent / "native" / "driver.cpp"
_SIZES = {"float": 4}  # of an element in bytes; all others have 2


class Native:
    """Stands in for `cxx.library`: compiles the driver for a build, and runs one process for each call.

    `compiler` is a command with its flags, of which the build's own are a part unless `isa` is False; `runner` is put before
    the program.
    """

    def __init__(self, folder: Path, compiler: Sequence[str], runner: Sequence[str] = (), isa: bool = True) -> None:
        self.folder, self.compiler, self.runner, self.isa = folder, list(compiler), list(runner), isa
        self.made: dict[tuple[object, ...], Library] = {}

    def __call__(self, build: cxx.Build) -> "Library":
        key = (build.defines, build.flags)
        if key not in self.made:
            program = self.folder / f"driver{len(self.made)}"
            flags = [flag for flag in build.flags if self.isa or not flag.startswith("-m")]
            defines = [f"-D{name}={value}" for name, value in build.defines]
            command = [self.compiler[0], str(DRIVER), f"-I{cpu.SOURCES}", *flags, *self.compiler[1:], *defines]
            subprocess.run([*command, "-o", str(program)], check=True)
            self.made[key] = Library(
                [*self.runner, str(program)], _SIZES.get(str(dict(build.defines)["SEPCONV_ELEMENT"]), 2)
            )
        return self.made[key]


class Library:
    """The two functions of a kernel's library, as ctypes gives them."""

    def __init__(self, program: list[str], element: int) -> None:
        self.program, self.element, self.calls = program, element, 0
        self.sepconv_workspace = _Function(lambda _: 0)
        self.sepconv_forward = _Function(lambda reference: self._forward(reference._obj))

    def _forward(self, call: cpu.Call) -> int:
        self.calls += 1
        given, found = Path(self.program[-1] + ".call"), Path(self.program[-1] + ".result")
        sizes = {name: self.element * count for name, count in _counts(call).items()}
        with given.open("wb") as file:
            file.write(bytes(call))
            for name in cpu.Operands._fields:
                address = getattr(call, name)
                file.write(bytes(ctypes.c_long(sizes[name] if address else -1)))
                file.write(ctypes.string_at(address, sizes[name]) if address else b"")
            file.write(bytes(ctypes.c_long(sizes["y"])))
        command = [*self.program, str(given), str(found)]
        environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # the driver frees nothing
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stderr[:4000]
        result = found.read_bytes()
        assert len(result) == sizes["y"] + 1
        ctypes.memmove(call.y, result, sizes["y"])
        return result[-1]


class _Function:
    """A function that takes ctypes' settings."""

    restype: object

    def __init__(self, body: Callable[..., object]) -> None:
        self.body = body

    def __call__(self, *args: object) -> object:
        return self.body(*args)


def _counts(call: cpu.Call) -> dict[str, int]:
    """The elements from the first to the last one of each tensor."""
    axes = ("batch", "n"), ("channels", "c"), ("in_h", "h"), ("in_w", "w")
    middle, y = call.channels * call.multiplier, call.batch * call.outputs * call.out_h * call.out_w
    return {
        "x": 1 + sum((getattr(call, size) - 1) * getattr(call, f"x_stride_{axis}") for size, axis in axes),
        "depthwise_weight": middle * call.kernel_h * call.kernel_w,
        "pointwise_weight": call.outputs * middle,
        "depthwise_bias": middle,
        "pointwise_bias": call.outputs,
        "residual": y,
        "y": y,
    }
