"""The store among threads and processes: one build for all who ask, and none of what a killed one leaves is trusted."""

import errno
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import ADD, OTHER, Builder, failing
from children import finish, start, wait_until

from sepconv.errors import CacheWarning
from sepconv.jit import locks
from sepconv.jit.store import Store

pytestmark = pytest.mark.usefixtures("fresh_cache")


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
