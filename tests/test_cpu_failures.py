"""What the CPU backend does where it cannot compile or keep its kernels, and the memory that a call takes."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from calls import same_bits, separable
from cases import Case, tensors_of
from kernels import check_result, plan_of

import sepconv
from sepconv import dispatch, ops
from sepconv.device import describe
from sepconv.errors import BackendWarning, CacheWarning

GXX = shutil.which("g++") or shutil.which("clang++")
CASE = Case("first", 2, 5, 6, (9, 11), (3, 3), padding=1, bias="dp")
pytestmark = [
    pytest.mark.skipif(GXX is None, reason="no g++ or clang++ on the PATH"),
    pytest.mark.usefixtures("fresh_cache", "few_builds"),
]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, no warning given yet, and nothing planned before or after."""
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(dispatch, "_warnings", itertools.count())
    ops.forget_plans()
    yield
    monkeypatch.undo()
    ops.forget_plans()


def _compiler(folder: Path, compiling: str) -> str:
    """A compiler that answers like the real one, and runs these shell commands when it should compile."""
    script = folder / "compiler"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) {compiling};; esac\nexec {shlex.quote(str(GXX))} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def _explained() -> str:
    return sepconv.explain(*tensors_of(CASE)[:5], **CASE.arguments)


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The call is right all the same, and the user is told once; a compiler that is named later is used."""
    monkeypatch.setenv("SEPCONV_CXX", _compiler(tmp_path, "echo 'internal error 7' >&2; exit 1"))
    tensors = tensors_of(CASE)
    assert "backend   cpu" in _explained()
    with pytest.warns(BackendWarning, match="internal error 7") as caught:
        y = separable(tensors, CASE)
    assert len(caught) == 1
    check_result(y, tensors, CASE)
    assert "backend   eager (chosen by default)" in _explained()
    assert "not cpu: `forward` does not compile" in _explained()
    assert same_bits(separable(tensors, CASE), y)
    other = Case("other", 3, 5, 6, (10, 11), (3, 3), padding=1)
    check_result(separable(tensors_of(other), other), tensors_of(other), other)
    monkeypatch.setenv("SEPCONV_CXX", str(GXX))
    ops.forget_plans()
    assert plan_of(tensors, CASE).backend.name == "cpu"
    check_result(separable(tensors, CASE), tensors, CASE)
    assert plan_of(tensors, CASE).backend.name == "cpu"


@pytest.mark.skipif(describe(torch.device("cpu")).isa != "amx", reason="no operand is split into terms without AMX")
@pytest.mark.usefixtures("terms_for_any_size")
def test_the_second_kernel_of_a_call_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An infinity does not split into terms, and the kernel without them is compiled only then."""
    fail = 'case " $* " in *" -mamx-tile "*) ;; *) echo "internal error 8" >&2; exit 1;; esac'
    monkeypatch.setenv("SEPCONV_CXX", _compiler(tmp_path, fail))
    tensors = tensors_of(CASE)
    check_result(separable(tensors, CASE), tensors, CASE)
    tensors[0][0, 0, 4, 5] = float("inf")
    with pytest.warns(BackendWarning, match="internal error 8"):
        y = separable(tensors, CASE)
    check_result(y, tensors, CASE)
    assert "backend   eager (chosen by default)" in _explained()


def test_a_forced_backend_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEPCONV_CXX", _compiler(tmp_path, "exit 1"))
    monkeypatch.setenv("SEPCONV_BACKEND", "cpu")
    with pytest.raises(sepconv.UnsupportedError, match="does not compile"):
        separable(tensors_of(CASE), CASE)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEPCONV_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    tensors = tensors_of(CASE)
    with pytest.warns(BackendWarning, match="`PATH` has no C\\+\\+ compiler") as caught:
        y = separable(tensors, CASE)
    assert len(caught) == 1
    check_result(y, tensors, CASE)
    assert "backend   eager (chosen by default)" in _explained()
    assert "not cpu: `PATH` has no C++ compiler" in _explained()


def test_a_cache_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path / "file"))
    tensors = tensors_of(CASE)
    with pytest.warns(CacheWarning, match=re.escape(str(tmp_path / "file"))) as caught:
        y = separable(tensors, CASE)
    assert len(caught) == 1
    check_result(y, tensors, CASE)
    assert plan_of(tensors, CASE).backend.name == "cpu"
    check_result(separable(tensors_of(CASE, torch.bfloat16), CASE), tensors_of(CASE, torch.bfloat16), CASE)


def test_neither_a_cache_nor_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = 'echo "No space left on device" >&2; exit 1'
    monkeypatch.setenv("SEPCONV_CXX", _compiler(tmp_path, full))
    tensors = tensors_of(CASE)
    with pytest.warns(BackendWarning, match="cannot be kept"), pytest.warns(CacheWarning):
        y = separable(tensors, CASE)
    check_result(y, tensors, CASE)
    assert "not cpu: `forward` cannot be kept" in _explained()


# --- memory

_PEAK = """
import torch, sepconv
from sepconv.bench import memory
x, wd, wp = torch.randn(1, 64, 512, 512), torch.randn(64, 1, 3, 3), torch.randn(128, 64, 1, 1)
with torch.no_grad():
    call = lambda: sepconv.separable_conv2d(x, wd, wp, padding=1)
    assert "backend   cpu" in sepconv.explain(x, wd, wp, padding=1)
    call()
    print(memory.peak_growth(call, x.device).bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("huge_pages", ["0", "1"])
def test_a_call_takes_no_more_memory_than_its_result(huge_pages: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SEPCONV_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PEAK],
        env=environment | {"SEPCONV_HUGE_PAGES": huge_pages, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result, growth = 4 * 128 * 512 * 512, done.stdout.strip()
    if growth == "None":
        pytest.skip("this system does not let the peak be reset")
    assert result // 2 < int(growth) <= result + (8 << 20)
