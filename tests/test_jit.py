"""C++ kernels: compiled once for many processes, loaded and right, and what is said where that fails."""

import ctypes
import errno
import os
import shlex
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import finish, start, wait_until
from rooms import CxxRoom

import sepconv
from sepconv.errors import CacheWarning, CompilerError, StoreError
from sepconv.jit import compilers, cxx
from sepconv.jit.compilers import find_compiler

pytestmark = pytest.mark.skipif(CxxRoom.missing() is not None, reason=str(CxxRoom.missing()))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: None) -> CxxRoom:
    (tmp_path / "room").mkdir()
    room = CxxRoom(tmp_path / "room")
    monkeypatch.setattr(compilers, "_PATIENCE", 60)
    room.enter(monkeypatch)
    return room


# --- a library


def test_a_library_is_loaded_once_and_shows_its_own_names_only(room: CxxRoom) -> None:
    library = cxx.library(room.build)
    assert library.add(4) == 1007
    assert not hasattr(library, "_Z6hiddeni")
    assert cxx.library(room.build) is library
    assert room.kept() == [Path(library._name).name]


def test_what_is_loaded_needs_no_store(room: CxxRoom) -> None:
    cxx.library(room.build)
    shutil.rmtree(room.cache)
    assert cxx.is_built(room.build)
    assert cxx.library(room.build).add(4) == 1007
    assert room.calls() == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses options of the GNU linker")
def test_a_library_links_what_its_flags_name(room: CxxRoom) -> None:
    other = cxx.library(room.build)._name
    (room.top / "main.cpp").write_text('extern "C" int add(int);\nextern "C" int twice(int x) { return 2 * add(x); }')
    flags = ("-fvisibility=default", "-Wl,--as-needed", "-Wl,--no-undefined", other)
    assert cxx.library(replace(room.build, flags=flags)).twice(4) == 2014


def test_eight_threads_compile_once(room: CxxRoom) -> None:
    with ThreadPoolExecutor(8) as pool:
        libraries = list(pool.map(lambda _: cxx.library(room.build), range(8)))
    assert len(set(map(id, libraries))) == 1
    assert room.calls() == 1


def test_a_forked_child_uses_what_is_loaded_and_compiles_more(room: CxxRoom) -> None:
    code = """
import dataclasses
library = cxx.library(build)
child = os.fork()
if not child:
    assert cxx.library(build) is library
    print(library.add(4), cxx.library(dataclasses.replace(build, defines=(("N", 6),))).add(4), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert finish(start(room.child(code))) == "1007 1010\n"


def test_this_room_does_without_torch(room: CxxRoom) -> None:
    assert finish(start(room.child("print('torch' in sys.modules)"))) == "False\n"


# --- a compilation that ends badly


def is_alive(process: str) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["interrupted", "too slow"])
def test_a_compilation_that_is_given_up(room: CxxRoom, how: str) -> None:
    """The compiler ends together with what it started, and nothing is left."""
    pass_ = room.top / "pass"
    room.wrap(f"sleep 60 & echo $! > {shlex.quote(str(pass_))}; wait")
    if how == "interrupted":
        code = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background ignores it
try:
    cxx.library(build)
except KeyboardInterrupt:
    print("interrupted")
"""
        child = start(room.child(code))
        wait_until(lambda: pass_.exists() and pass_.read_text())
        child.send_signal(signal.SIGINT)
        assert finish(child, limit=20) == "interrupted\n"
    else:
        code = """
from sepconv.jit import compilers
compilers._COMPILES_WITHIN = 0.5
try:
    cxx.library(build)
except compilers.CompilerError as error:
    print(error)
"""
        printed = finish(start(room.child(code)), limit=20)
        assert "`add` takes more than 0 s to compile" in printed
        assert "expected a few seconds" in printed
        assert "`SEPCONV_CXX`" in printed
    for process in (pass_.read_text().strip(), room.log.read_text().strip()):
        wait_until(lambda process=process: not is_alive(process), limit=5)
    assert room.kept() == []


def test_a_compile_error_shows_the_first_lines(room: CxxRoom) -> None:
    (room.top / "main.cpp").write_text("\n".join(f"#error number {i}." for i in range(100)))
    with pytest.raises(CompilerError) as caught:
        cxx.library(room.build)
    text = str(caught.value)
    assert "`add` does not compile" in text
    assert str(room.top / "compiler") in text
    assert "number 0." in text
    assert "number 99." not in text
    assert len(text.splitlines()) == 21
    assert isinstance(caught.value, sepconv.SepconvError)
    assert isinstance(caught.value, RuntimeError)
    assert room.kept() == []


def test_a_header_that_is_not_there(room: CxxRoom) -> None:
    (room.top / "more.h").unlink()
    with pytest.raises(FileNotFoundError, match=r"more\.h"):
        cxx.library(room.build)


def test_a_disk_that_the_compiler_finds_full(room: CxxRoom) -> None:
    full = 'echo "fatal error: error writing to x.s: No space left on device" >&2; exit 1'
    room.wrap(f"case $PWD in {shlex.quote(str(room.cache))}*) {full};; esac")
    with pytest.warns(CacheWarning, match="No space left on device") as caught:
        assert cxx.library(room.build).add(4) == 1007
    assert len(caught) == 1
    assert room.kept() == []


def test_a_disk_that_is_full_everywhere(room: CxxRoom) -> None:
    room.wrap("echo 'No space left on device' >&2; exit 1")
    with pytest.warns(CacheWarning), pytest.raises(StoreError, match="No space left on device"):
        cxx.library(room.build)


def test_a_folder_from_which_nothing_can_be_loaded(room: CxxRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> ctypes.CDLL:
        if Path(path).is_relative_to(room.cache):
            raise OSError(f"{path}: failed to map segment from shared object")
        return ctypes.CDLL(path)

    monkeypatch.setattr(cxx, "ctypes", SimpleNamespace(CDLL=load))
    with pytest.warns(CacheWarning, match="failed to map segment") as caught:
        assert cxx.library(room.build).add(4) == 1007
    assert len(caught) == 1
    assert str(room.cache / "kernels") in str(caught[0].message)
    assert cxx.library(room.build).add(4) == 1007
    assert room.calls() == 2


def test_what_cannot_be_loaded_anywhere(room: CxxRoom) -> None:
    room.wrap('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"; exit 0')
    with pytest.raises(CompilerError, match="`add` is compiled but cannot be loaded") as caught:
        cxx.library(room.build)
    assert "expected" in str(caught.value)
    assert not cxx._loaded


# --- what is said, and what is not listened to


@pytest.mark.parametrize("patience", [0.05, 60])
def test_a_long_compilation_says_so(
    room: CxxRoom, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], patience: float
) -> None:
    monkeypatch.setattr(compilers, "_PATIENCE", patience)
    room.wrap("sleep 0.3")
    cxx.library(room.build)
    said = "sepconv: compiling `add` for this machine, once (a few seconds) ...\n" if patience < 1 else ""
    assert capfd.readouterr() == ("", said)
    wait_until(lambda: not [t for t in threading.enumerate() if isinstance(t, threading.Timer)], limit=5)


def test_patience_lasts_a_second() -> None:
    assert finish(start("from sepconv.jit import compilers; print(compilers._PATIENCE)")) == "1.0\n"


@pytest.mark.parametrize("name", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_folders_from_the_environment_are_not_searched(
    room: CxxRoom, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (room.top / "planted").mkdir()
    (room.top / "planted" / "planted.h").write_text("")
    monkeypatch.setenv(name, str(room.top / "planted"))
    assert cxx.library(room.build).add(4) == 1007


def test_the_compiler_speaks_english_reads_nothing_and_leaves_nothing(
    room: CxxRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its standard input is closed, and its temporary files lie in the private folder."""
    seen = room.top / "seen"
    room.wrap(f'cat > {seen}; echo "$LC_ALL $LIBRARY_PATH $TMPDIR" >> {seen}')
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LIBRARY_PATH", "/nowhere")
    cxx.library(room.build)
    language, folder = seen.read_text().split()
    assert language == "C"
    assert Path(folder).is_relative_to(room.cache / "kernels")
    assert Path(folder).parent.name.startswith("tmp-")


def test_a_compiler_that_vanishes(room: CxxRoom) -> None:
    find_compiler()
    (room.top / "compiler").unlink()
    with pytest.raises(CompilerError, match=f"cannot be started .{os.strerror(errno.ENOENT)}"):
        cxx.library(room.build)
