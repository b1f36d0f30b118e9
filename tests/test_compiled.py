"""Compiled files of both kinds, C++ and CUDA: compiled once for all who ask, and nothing else is ever taken for them."""

import errno
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import DAMAGE, failing, give_away
from children import finish, start, wait_until
from rooms import ROOMS, CudaRoom, Room

from sepconv.errors import CacheWarning, CompilerError
from sepconv.jit import compilers, nvrtc


@pytest.fixture(params=ROOMS)
def room(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: None) -> Room:
    kind = ROOMS[request.param]
    missing = kind.missing()
    if missing:
        pytest.skip(missing)
    monkeypatch.setattr(compilers, "_PATIENCE", 60)
    (tmp_path / "room").mkdir()
    room = kind(tmp_path / "room")
    room.enter(monkeypatch)
    return room


def in_another_process(room: Room, code: str = "print(room.value())") -> str:
    """What code prints in a process of its own, which ends with all that it loaded: a file in use must not be harmed."""
    return finish(start(room.child(code)))


def test_a_second_call_and_a_second_process_do_not_compile(room: Room) -> None:
    assert not room.is_built()
    assert not room.cache.exists(), "asking made a folder"
    assert room.value() == 1003
    assert room.is_built()
    assert room.value() == 1003
    assert len(room.kept()) == 1
    assert in_another_process(room, "print(room.is_built(), room.value())") == "True 1003\n"
    assert room.calls() == 1


def test_what_changes_the_result_is_compiled_anew(room: Room) -> None:
    assert room.value() == 1003
    assert room.value(room.build_of(5)) == 1005
    key = room.key()
    room.set_more(2000)
    assert not room.is_built()
    assert room.value() == 2003
    room.set_more(1000)
    assert room.key() == key
    assert room.value() == 1003
    assert room.calls() == len(room.kept()) == 3


@pytest.mark.parametrize("what", ["change_flag", "change_compiler"])
def test_other_flags_and_compilers_compile_anew(room: Room, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    assert room.value() == 1003
    key = room.key()
    getattr(room, what)(monkeypatch)
    assert room.key() != key
    assert not room.is_built()
    assert room.value() == 1003
    assert len(room.kept()) == 2


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_never_loaded_and_is_compiled_again(room: Room, damage: str) -> None:
    in_another_process(room)
    entry = room.entry()
    content = entry.read_bytes()
    DAMAGE[damage](entry)
    assert not room.is_built()
    assert room.value() == 1003
    assert room.calls() == 2
    assert room.is_built()
    assert [len(room.entry().read_bytes()), room.entry().is_symlink()] == [len(content), False]


def test_a_file_of_another_user_is_never_loaded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.value()
    entry = room.entry()
    os.link(entry, room.top / "held")  # so that no new file gets its inode
    give_away(monkeypatch, entry)
    assert not room.is_built()
    assert room.value() == 1003
    assert room.calls() == 2


def test_another_kernels_file_under_this_name_is_never_loaded(room: Room) -> None:
    in_another_process(room, "room.value(room.build_of(5))")
    other = room.entry()
    in_another_process(room)
    (own,) = (name for name in room.kept() if name != other.name)
    shutil.copy(other, other.with_name(own))
    assert not room.is_built()
    assert room.value() == 1003
    assert room.calls() == 3


def test_eight_processes_compile_once(room: Room) -> None:
    room.delay(0.3)
    ready, go = room.top / "ready", room.top / "go"
    ready.mkdir()
    code = f"""
Path({str(ready)!r}, str(os.getpid())).touch()
while not Path({str(go)!r}).exists():
    time.sleep(0.005)
print(room.value())
"""
    children = [start(room.child(code)) for _ in range(8)]
    wait_until(lambda: len(os.listdir(ready)) == 8)
    go.touch()
    assert {finish(child) for child in children} == {"1003\n"}
    assert room.calls() == 1


def test_eight_threads_compile_once(room: Room) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: room.value(), range(8))) == {1003}
    assert room.calls() == 1


def test_a_process_killed_while_it_compiles(room: Room) -> None:
    room.delay(1)
    child = start(room.child("room.value()"))
    wait_until(room.calls)
    child.kill()
    finish(child, -signal.SIGKILL)
    assert not [name for name in room.kept() if not name.startswith("tmp-")]
    room.delay(0)
    assert room.value() == 1003
    (left,) = (name for name in room.kept() if name.startswith("tmp-"))
    os.utime(room.cache / "kernels" / left, (0, 0))
    assert room.value(room.build_of(5)) == 1005
    assert not [name for name in room.kept() if name.startswith("tmp-")]


def test_a_source_that_does_not_compile_leaves_nothing(room: Room) -> None:
    text = room.main.read_text()
    room.main.write_text(f"{text}\n#error this one\n")
    with pytest.raises(CompilerError, match="this one"):
        room.value()
    assert room.kept() == []
    room.main.write_text(text)
    assert room.value() == 1003


def read_only(folder: Path) -> Callable[..., str]:
    make = tempfile.mkdtemp

    def mkdtemp(prefix: str, dir: Path | None = None) -> str:
        return make(prefix=prefix, dir=dir) if dir != folder else failing(errno.EROFS)()

    return mkdtemp


def test_a_read_only_store_is_read_and_what_it_lacks_goes_elsewhere(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.value()
    monkeypatch.setattr(tempfile, "mkdtemp", read_only(room.cache / "kernels"))
    assert room.value() == 1003
    assert room.calls() == 1, "what is there needs no writing"
    with pytest.warns(CacheWarning, match="Read-only file system") as caught:
        assert [room.value(room.build_of(5)) for _ in range(2)] == [1005] * 2
    assert len(caught) == 1
    assert room.calls() == 2
    assert len(room.kept()) == 1


def test_a_cuda_kernel_on_disk_needs_nothing_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: None
) -> None:
    """Importing cuda.core takes longer than all the rest of a first call that finds its kernel."""
    if CudaRoom.missing():
        pytest.skip(str(CudaRoom.missing()))
    room = CudaRoom(tmp_path)
    room.enter(monkeypatch)
    code = "print(room.value(), 'cuda.core' in sys.modules)"
    assert [in_another_process(room, code) for _ in range(2)] == ["1003 True\n", "1003 False\n"]


@pytest.mark.parametrize("absent", ["cuda", "cuda.core"])
def test_a_missing_cuda_core_is_noticed_without_importing_it(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setattr(nvrtc, "_compiler", nvrtc._compiler.__wrapped__)
    monkeypatch.delitem(sys.modules, "cuda.core", raising=False)
    monkeypatch.setitem(sys.modules, absent, None)
    assert "cuda.core is not installed" in str(nvrtc.missing())
    assert "sepconv[cuda13]" in str(nvrtc.missing())


def test_nvrtc_that_is_no_package_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    if CudaRoom.missing():
        pytest.skip(str(CudaRoom.missing()))
    monkeypatch.setattr(nvrtc, "_compiler", nvrtc._compiler.__wrapped__)
    monkeypatch.setattr(nvrtc, "_versions", lambda *_: iter(()))
    assert re.fullmatch(r"NVRTC \d+\.\d+", nvrtc._compiler())
