"""What the key of a compiled thing holds."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import ADD
from children import finish, start

from sepconv.errors import ArgumentValueError
from sepconv.jit import artifact as artifacts
from sepconv.jit.artifact import read_sources


@pytest.mark.parametrize(
    "change",
    [
        {"name": "sub"},
        {"sources": (("add.cpp", "int y;"),)},
        {"sources": (("sub.cpp", "int x;"),)},
        {"sources": (*ADD.sources, ("add.h", ""))},
        {"flags": ("-O3",)},
        {"flags": ("-O2", "-g")},
        {"defines": (("N", "4"),)},
        {"defines": (("M", "3"),)},
        {"compiler": "g++ 13"},
        {"target": "x86_64 avx512"},
        {"suffix": ".cubin"},
    ],
    ids=str,
)
def test_everything_is_in_the_key(change: dict[str, object]) -> None:
    assert replace(ADD, **change).key != ADD.key


def test_the_key_is_unambiguous_and_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replace(ADD, flags=("ab", "c")).key != replace(ADD, flags=("a", "bc")).key
    assert replace(ADD, flags=("a", "b"), defines=()).key != replace(ADD, flags=("a",), defines=(("b", ""),)).key
    assert len(ADD.key) == 64
    assert ADD.stem == f"add-{ADD.key[:32]}"
    assert finish(start(f"from sepconv.jit.artifact import Artifact; print({ADD!r}.key)")).strip() == ADD.key
    monkeypatch.setattr(artifacts, "FORMAT", artifacts.FORMAT + 1)
    assert replace(ADD).key != ADD.key


def test_an_artifact_says_what_it_means() -> None:
    with pytest.raises(ArgumentValueError, match="`flags` has '-march=native'; expected"):
        replace(ADD, flags=("-O2", "-march=native"))
    with pytest.raises(ArgumentValueError, match=r"`name` is '../x'; expected"):
        replace(ADD, name="../x")


def test_the_sources_are_every_file_that_can_be_included(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.cpp").write_text('#include <cmath>\n  # include "parts/a.h"\n#ifdef X\n#include "b.h"\n#endif\n')
    (tmp_path / "parts" / "a.h").write_text('#include "a.h"\n#include "../b.h"\n#include "c.h"\n')
    (tmp_path / "b.h").write_text('#include "parts/a.h"\n//#include "absent.h"\n')
    (tmp_path / "parts" / "c.h").write_text("int c;\n")
    (tmp_path / "unused.h").write_text("")
    read = read_sources(tmp_path / "main.cpp")
    assert [name for name, _ in read] == ["main.cpp", "parts/a.h", "b.h", "parts/c.h"]
    assert dict(read)["parts/c.h"] == "int c;\n"
    assert [name for name, _ in read_sources(tmp_path / "parts" / "a.h")][:2] == ["parts/a.h", "b.h"]
    (tmp_path / "parts" / "c.h").unlink()
    with pytest.raises(FileNotFoundError, match=r'a\.h has #include "c\.h".*parts/c\.h'):
        read_sources(tmp_path / "main.cpp")
