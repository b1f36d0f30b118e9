"""Which C++ compiler is found, and what is said where there is none."""

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sepconv.errors import CompilerError, SettingError
from sepconv.jit import cxx
from sepconv.jit.compilers import Compiler, find_compiler

GXX = shutil.which("g++") or shutil.which("clang++")


def fake(folder: Path, name: str, version: str, triple: str = "x86_64-test") -> Path:
    """A program that answers like a compiler."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\ncase $1 in --version) echo '{version}';; *) echo '{triple}';; esac\n")
    script.chmod(0o755)
    return script


GCC_SAYS = "g++ (Test) 1.2\nCopyright Free Software Foundation, Inc."


@pytest.mark.skipif(GXX is None, reason="no g++ or clang++ on the PATH")
def test_the_systems_compiler_answers() -> None:
    found = find_compiler()
    assert Path(found.path).is_absolute()
    assert found.kind in ("gcc", "clang")
    assert found.version
    assert "-" in found.triple
    assert found is find_compiler(), "it was asked twice"


def test_the_order_of_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEPCONV_CXX", raising=False)
    monkeypatch.setenv("CXX", str(fake(tmp_path / "other", "unheard", GCC_SAYS)))
    folders: list[str] = []
    for name, says, kind in (
        ("c++", "Apple clang version 15.0.0\nmore", "clang"),
        ("clang++", "clang version 19.1\nmore", "clang"),
        ("g++", GCC_SAYS, "gcc"),
    ):
        path = fake(tmp_path / name, name, says)
        folders.append(str(path.parent))
        monkeypatch.setenv("PATH", ":".join(folders))
        assert find_compiler() == Compiler(str(path), kind, says.splitlines()[0], "x86_64-test")
    named = fake(tmp_path / "named", "g++-99", GCC_SAYS)
    monkeypatch.setenv("SEPCONV_CXX", str(named))
    assert find_compiler().path == str(named)


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "bin", "mine", GCC_SAYS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPCONV_CXX", "bin/mine")
    assert find_compiler().path == str(tmp_path / "bin" / "mine")


def test_a_compilers_identity_tells_versions_and_targets_apart(tmp_path: Path) -> None:
    one = Compiler(str(fake(tmp_path, "g++", GCC_SAYS)), "gcc", "g++ 12", "x86_64-linux-gnu")
    others = [replace(one, path="/other"), replace(one, version="g++ 13"), replace(one, triple="aarch64-linux-gnu")]
    assert len({compiler.identity for compiler in (one, *others)}) == 4
    (tmp_path / "link").symlink_to(one.path)
    assert replace(one, path=str(tmp_path / "link")).identity == one.identity


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEPCONV_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    build = cxx.Build("empty", Path(__file__), (), (), "any")
    for ask in (find_compiler, lambda: cxx.library(build), lambda: cxx.is_built(build)):
        with pytest.raises(CompilerError) as caught:
            ask()
        text = str(caught.value)
        for word in ("`PATH`", "g++: not found; clang++: not found; c++: not found", "expected", "apt install g++"):
            assert word in text
        assert "`SEPCONV_CXX`" in text


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("no-such-compiler", "not found"),
        ("/bin/true", "neither gcc nor clang"),
        ("/bin/false", "does not answer"),
        ("{broken}", "does not answer"),
    ],
)
def test_a_named_compiler_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, words: str) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    (tmp_path / "broken").chmod(stat.S_IRWXU)
    named = named.format(broken=tmp_path / "broken")
    monkeypatch.setenv("SEPCONV_CXX", named)
    with pytest.raises(CompilerError, match=f"`SEPCONV_CXX` is '{named}'") as caught:
        find_compiler()
    assert words in str(caught.value)


def test_a_compiler_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEPCONV_CXX", raising=False)
    fake(tmp_path, "g++", "something else")
    good = fake(tmp_path, "clang++", "clang version 19.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler().path == str(good)


def test_a_blank_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_CXX", " ")
    with pytest.raises(SettingError, match="`SEPCONV_CXX` is ' '; expected the name or the path of a C"):
        find_compiler()
