"""The store: what the key holds, what is trusted, one build among many askers, and what happens where nothing can be kept."""

import errno
import itertools
import os
import pwd
import signal
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import finish, start, wait_until

from sepconv.errors import ArgumentValueError, CacheWarning, SepconvError, SettingError, StoreError
from sepconv.jit import artifact as artifacts
from sepconv.jit import locks
from sepconv.jit import store as stores
from sepconv.jit.artifact import Artifact, read_sources
from sepconv.jit.store import Store, default_store

ADD = Artifact("add", (("add.cpp", "int x;"),), ("-O2",), (("N", "3"),), "g++ 12", "x86_64 avx2", ".so")
OTHER = replace(ADD, target="x86_64 avx512")


class Builder:
    """Writes its content, and counts how often."""

    def __init__(self, content: bytes = b"right") -> None:
        self.content, self.calls = content, 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_bytes(self.content)


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "the disk")

    return fail


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No warning given yet, and temporary folders in the test's own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(stores, "_temporary", {})
    monkeypatch.setattr(stores, "_warnings", itertools.count())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "kernels")


# --- the key


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


# --- an entry


def test_a_thing_is_built_once_and_found_again(store: Store) -> None:
    builder = Builder()
    assert not store.has(ADD)
    assert not store.folder.exists(), "asking made a folder"
    path = store.fetch(ADD, builder)
    assert path.read_bytes() == b"right"
    assert path.parent == store.folder
    assert path.name.startswith(ADD.stem)
    assert path.suffix == ".so"
    assert store.has(ADD)
    assert not store.has(OTHER)
    assert Store(store.folder).fetch(ADD, builder) == path
    assert builder.calls == 1
    assert sorted(os.listdir(store.folder)) == sorted([path.name, f"{ADD.stem}.lock"])


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_made_is_for_this_user_only(store: Store, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = store.fetch(ADD, Builder())
    finally:
        os.umask(before)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (store.folder.parent, store.folder)] == [0o700, 0o700]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store.has(ADD)


def test_a_failed_build_leaves_nothing(store: Store) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.fetch(ADD, fail)
    assert os.listdir(store.folder) == [f"{ADD.stem}.lock"]
    assert store.fetch(ADD, Builder()).read_bytes() == b"right"


def swap(path: Path) -> None:
    """The content of another artifact, whole as it is, under this one's name."""
    other = Store(path.parent).fetch(OTHER, Builder(b"of another"))
    os.replace(other, path)


def rename(path: Path) -> None:
    """Another artifact's content, with the checksum that fits it there."""
    other = Store(path.parent).fetch(OTHER, Builder(b"of another"))
    os.replace(other, path.with_name(other.name.replace(OTHER.stem, ADD.stem)))
    path.unlink()


def link(path: Path) -> None:
    """The very same content, behind a symbolic link."""
    os.replace(path, path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, 3),
    "empty": lambda path: os.truncate(path, 0),
    "a flipped byte": lambda path: path.write_bytes(b"risht"),
    "longer": lambda path: path.write_bytes(b"right "),
    "swapped": swap,
    "renamed": rename,
    "a symbolic link": link,
    "writable by the group": lambda path: path.chmod(0o620),
    "writable by all": lambda path: path.chmod(0o602),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
    "a folder": lambda path: (path.unlink(), path.mkdir(mode=0o700), (path / "file").touch()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(store: Store, damage: str) -> None:
    builder = Builder()
    path = store.fetch(ADD, builder)
    DAMAGE[damage](path)
    assert not store.has(ADD)
    builder.content = b"right again"
    again = store.fetch(ADD, builder)
    assert builder.calls == 2
    assert again.read_bytes() == b"right again"
    assert [name for name in os.listdir(store.folder) if name.startswith(ADD.stem)].count(again.name) == 1
    assert len([name for name in os.listdir(store.folder) if name.startswith(f"{ADD.stem}-")]) == 1


def give_away(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The system says that a file or a folder belongs to another user."""
    inode, user = os.lstat(path).st_ino, os.geteuid() + 1

    def of(ask: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def answer(*args: object, **words: object) -> os.stat_result:
            status = ask(*args, **words)
            return status if status.st_ino != inode else os.stat_result([*status[:4], user, *status[5:]])

        return answer

    monkeypatch.setattr(os, "lstat", of(os.lstat))
    monkeypatch.setattr(os, "fstat", of(os.fstat))


def test_an_entry_of_another_user_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    give_away(monkeypatch, store.fetch(ADD, builder))
    assert not store.has(ADD)
    store.fetch(ADD, builder)
    assert builder.calls == 2
    assert store.has(ADD)


# --- a folder that cannot be used


def assert_falls_back(store: Store, *words: str) -> None:
    """Results come from a temporary folder, each built once, and one warning names the folder and says what to do."""
    builder = Builder()
    with pytest.warns(CacheWarning) as caught:
        paths = [store.fetch(artifact, builder) for artifact in (ADD, OTHER, ADD)]
    assert len(caught) == 1
    text = str(caught[0].message)
    for word in (str(store.folder), "`SEPCONV_CACHE_DIR`", "expected", *words):
        assert word in text, text
    assert builder.calls == 2
    assert paths[0] == paths[2]
    assert store.has(ADD)
    assert all(path.read_bytes() == b"right" for path in paths)
    assert all(path.parent.parent == Path(tempfile.gettempdir()) for path in paths)
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777, 0o720])
def test_a_store_that_others_can_write_to(store: Store, mode: int) -> None:
    path = store.fetch(ADD, Builder(b"planted"))
    store.folder.chmod(mode)
    assert not store.has(ADD)
    assert_falls_back(store, "others can write to", "`chmod 700`")
    assert path.read_bytes() == b"planted"
    assert stat.S_IMODE(store.folder.stat().st_mode) == mode, "the folder was changed silently"


@pytest.mark.parametrize("mode", [0o777, 0o770])
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_above_that_others_can_write_to(store: Store, mode: int, exists: bool) -> None:
    if exists:
        store.fetch(ADD, Builder())
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.parent.chmod(mode)
    assert_falls_back(store, "others can write to", "`chmod go-w`")
    assert store.folder.exists() == exists


def test_a_sticky_folder_above_is_fine(store: Store) -> None:
    store.folder.parent.mkdir()
    store.folder.parent.chmod(0o1777)
    assert store.fetch(ADD, Builder()).parent == store.folder


@pytest.mark.parametrize("which", ["the store", "the folder above"])
def test_a_folder_of_another_user(store: Store, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    store.fetch(ADD, Builder(b"planted"))
    give_away(monkeypatch, store.folder if which == "the store" else store.folder.parent)
    assert_falls_back(store, f"belongs to the user {os.geteuid() + 1}")


def test_symbolic_links(store: Store, tmp_path: Path) -> None:
    store.fetch(ADD, Builder())
    (tmp_path / "link").symlink_to(store.folder.parent)
    assert Store(tmp_path / "link" / "kernels").has(ADD), "a link above the store is followed, and its target checked"
    (tmp_path / "direct").symlink_to(store.folder)
    assert_falls_back(Store(tmp_path / "direct"), "is not a folder")


def test_a_link_into_a_folder_that_others_can_write_to(store: Store, tmp_path: Path) -> None:
    store.fetch(ADD, Builder(b"planted"))
    (tmp_path / "link").symlink_to(store.folder.parent)
    store.folder.parent.chmod(0o777)
    linked = Store(tmp_path / "link" / "kernels")
    assert not linked.has(ADD)
    assert_falls_back(linked, "others can write to")


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_falls_back(Store(tmp_path / "file" / "kernels"), "Not a directory")


def test_a_read_only_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = store.fetch(replace(ADD, name="kept"), Builder())
    make = tempfile.mkdtemp

    def mkdtemp(prefix: str, dir: Path | None = None) -> str:
        return make(prefix=prefix, dir=dir) if dir != store.folder else failing(errno.EROFS)()

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    assert store.fetch(replace(ADD, name="kept"), Builder()) == entry, "what is there needs no writing"
    assert_falls_back(store, "Read-only file system: the disk")


def test_a_folder_that_cannot_be_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fetch(ADD, Builder(b"unseen"))
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: failing(errno.EACCES)() if path == store.folder else listed(path))
    assert not store.has(ADD)
    assert_falls_back(store, "Permission denied")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(store: Store, code: int) -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        if path.is_relative_to(store.folder):
            failing(code)()
        path.write_bytes(b"right")

    with pytest.warns(CacheWarning, match=os.strerror(code)) as caught:
        assert store.fetch(ADD, build).read_bytes() == b"right"
    assert len(caught) == 1
    assert os.listdir(store.folder) == [f"{ADD.stem}.lock"]


def test_a_disk_that_is_full_when_the_result_is_flushed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flush, fails = os.fsync, iter([failing(errno.ENOSPC)])
    monkeypatch.setattr(os, "fsync", lambda descriptor: next(fails, flush)(descriptor))
    with pytest.warns(CacheWarning, match="No space left"):
        path = store.fetch(ADD, Builder())
    assert path.read_bytes() == b"right"
    assert not path.is_relative_to(store.folder)


def test_nothing_can_be_written_anywhere(store: Store) -> None:
    with pytest.warns(CacheWarning), pytest.raises(StoreError) as caught:
        store.fetch(ADD, failing(errno.ENOSPC))
    assert isinstance(caught.value, SepconvError)
    assert isinstance(caught.value, OSError)
    text = str(caught.value)
    assert all(
        word in text for word in ("`add`", str(store.folder), "No space left", "expected", "`SEPCONV_CACHE_DIR`")
    )


def test_a_temporary_folder_is_trusted_no_more_than_any_other(store: Store, tmp_path: Path) -> None:
    store.folder.mkdir(parents=True)
    store.folder.chmod(0o777)
    (tmp_path / "temporary").chmod(0o777)
    with pytest.warns(CacheWarning), pytest.raises(StoreError, match="others can write to"):
        store.fetch(ADD, Builder())


def test_no_temporary_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", failing(errno.EROFS))
    with pytest.warns(CacheWarning), pytest.raises(StoreError, match="Read-only file system"):
        store.fetch(ADD, Builder())


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_user(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_user)
    for name in ("HOME", "XDG_CACHE_HOME", "SEPCONV_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(CacheWarning, match="`HOME` is not set; expected") as caught:
        paths = [default_store().fetch(ADD, Builder()) for _ in range(2)]
    assert len(caught) == 1
    assert "`SEPCONV_CACHE_DIR`" in str(caught[0].message)
    assert paths[0] == paths[1]
    monkeypatch.setenv("SEPCONV_CACHE_DIR", "~/cache")
    with pytest.raises(SettingError, match="`SEPCONV_CACHE_DIR` is '~/cache'; expected a folder"):
        stores.settings.cache_dir()


def test_the_store_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path / "one"))
    first = default_store()
    assert first.folder == tmp_path / "one" / "kernels"
    assert default_store() is first
    monkeypatch.setenv("SEPCONV_CACHE_DIR", str(tmp_path / "two"))
    assert default_store().folder == tmp_path / "two" / "kernels"


def test_the_temporary_folder_goes_with_the_process_that_made_it(tmp_path: Path) -> None:
    code = """
from sepconv.jit import store
folder = store.temporary().folder
child = os.fork()
if not child:
    assert store.temporary().folder != folder
    sys.exit(0)
os.waitpid(child, 0)
assert folder.is_dir(), "the child removed its parent's folder"
print(folder)
"""
    folder = Path(finish(start(code, TMPDIR=str(tmp_path))).strip())
    assert folder.parent == tmp_path
    assert not list(tmp_path.glob("sepconv-*"))


# --- many askers


def ask_at_once(ask: Callable[[], Path], count: int = 8) -> list[Path]:
    """The answers of threads that ask at the same time."""
    barrier = threading.Barrier(count, timeout=30)

    def run(_: int) -> Path:
        barrier.wait()
        return ask()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def slow(builder: Builder) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        threading.Event().wait(0.1)
        builder(path)

    return build


@pytest.fixture(params=["locks", "no locks here", "no such system"])
def kind_of_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file system with locks, one without, and a system without."""
    if request.param == "no locks here":
        monkeypatch.setattr(locks, "fcntl", SimpleNamespace(flock=failing(errno.ENOLCK), LOCK_EX=2, LOCK_UN=8))
    elif request.param == "no such system":
        monkeypatch.setattr(locks, "fcntl", None)
    yield request.param
    assert not locks._open


def test_threads_build_once(store: Store, kind_of_locks: str) -> None:
    builder = Builder()
    assert len(set(ask_at_once(lambda: store.fetch(ADD, slow(builder))))) == 1
    assert builder.calls == 1


def test_threads_of_a_store_that_cannot_be_used_build_once_and_warn_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    builder, store = Builder(), Store(tmp_path / "file" / "kernels")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(set(ask_at_once(lambda: store.fetch(ADD, slow(builder))))) == 1
    assert builder.calls == len(caught) == 1


def test_different_things_are_built_at_the_same_time(store: Store) -> None:
    together = threading.Barrier(2, timeout=10)

    def build(path: Path) -> None:
        together.wait()
        path.write_bytes(b"right")

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(lambda artifact: store.fetch(artifact, build), (ADD, OTHER)))) == 2


def test_a_lock_that_fails_otherwise_makes_the_folder_unusable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, fails = locks.fcntl.flock, iter([failing(errno.EIO)])
    fake = SimpleNamespace(flock=lambda *args: next(fails, flock)(*args), LOCK_EX=2, LOCK_UN=8)
    monkeypatch.setattr(locks, "fcntl", fake)
    with pytest.warns(CacheWarning, match=os.strerror(errno.EIO)):
        store.fetch(ADD, Builder())


# --- processes that end badly, and forked ones

CHILD = f"""
from sepconv.jit.artifact import Artifact
from sepconv.jit import locks, store as stores
artifact = {ADD!r}
def build(path):
    path.write_bytes(b"right")
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def waiting(path):
    started.set()
    go.wait(30)
    build(path)
started, go = threading.Event(), threading.Event()
"""


def in_child(store: Store, code: str) -> str:
    return f"{CHILD}store = stores.Store(Path({str(store.folder)!r}))\n{code}"


@pytest.mark.parametrize(
    "death",
    [
        "store.fetch(artifact, lambda path: (path.write_bytes(b'ri'), kill()))",
        "os.replace = kill; store.fetch(artifact, build)",
        "os.fsync = kill; store.fetch(artifact, build)",
    ],
)
def test_a_killed_process_leaves_nothing_that_is_trusted(store: Store, death: str) -> None:
    finish(start(in_child(store, death)), -signal.SIGKILL)
    left = [path for path in store.folder.iterdir() if path.name.startswith("tmp-")]
    assert len(left) == 1
    assert not store.has(ADD)
    builder = Builder()
    assert store.fetch(ADD, builder).read_bytes() == b"right"
    assert builder.calls == 1
    assert left[0].exists(), "it could be another process's, at work"
    os.utime(left[0], (0, 0))
    store.fetch(OTHER, builder)
    assert not left[0].exists()


def test_a_forked_child_outlives_its_parent_without_the_lock(store: Store, tmp_path: Path) -> None:
    """The child inherits the open lock file, and would hold the lock for as long as it lives."""
    code = f"""
threading.Thread(target=store.fetch, args=(artifact, waiting), daemon=True).start()
started.wait(30)
child = os.fork()
if child:
    Path({str(tmp_path / "child")!r}).write_text(str(child))
    kill()
assert not locks._open
for stream in (1, 2):
    os.close(stream)
time.sleep(60)
"""
    finish(start(in_child(store, code)), -signal.SIGKILL)
    child = int((tmp_path / "child").read_text())
    try:
        with ThreadPoolExecutor(1) as pool:
            path = pool.submit(store.fetch, ADD, Builder()).result(timeout=20)
        assert path.read_bytes() == b"right"
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_forked_in_the_middle_of_a_build_can_fetch(store: Store) -> None:
    code = """
threading.Thread(target=store.fetch, args=(artifact, waiting)).start()
started.wait(30)
child = os.fork()
if not child:
    def refuse(path):
        raise AssertionError("the parent's build was there to be found")
    assert store.fetch(artifact, refuse).read_bytes() == b"right"
    print("found", flush=True)
    os._exit(0)
go.set()
assert os.waitpid(child, 0)[1] == 0
"""
    assert finish(start(in_child(store, code))).strip() == "found"


def test_a_lock_is_waited_for_until_its_holder_is_killed(store: Store) -> None:
    holder = start(in_child(store, "store.fetch(artifact, lambda path: (print('in', flush=True), time.sleep(60)))"))
    assert holder.stdout
    assert holder.stdout.readline() == "in\n"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.fetch, ADD, Builder())
        wait_until(lambda: locks._open)
        threading.Event().wait(0.2)
        assert not asked.done(), "the lock did not keep a second builder out"
        holder.kill()
        assert asked.result(timeout=20).read_bytes() == b"right"
    finish(holder, -signal.SIGKILL)
