"""The store: what is found again, what is trusted, and what happens where nothing can be kept."""

import errno
import os
import pwd
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ADD, DAMAGE, OTHER, Builder, failing, give_away
from children import finish, start

from sepconv.errors import CacheWarning, SepconvError, SettingError, StoreError
from sepconv.jit import store as stores
from sepconv.jit.store import Store, default_store

pytestmark = pytest.mark.usefixtures("fresh_cache")

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


EVERY_DAMAGE = {**DAMAGE, "swapped": swap, "renamed": rename}


@pytest.mark.parametrize("damage", EVERY_DAMAGE)
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(store: Store, damage: str) -> None:
    builder = Builder()
    path = store.fetch(ADD, builder)
    EVERY_DAMAGE[damage](path)
    assert not store.has(ADD)
    builder.content = b"right again"
    again = store.fetch(ADD, builder)
    assert builder.calls == 2
    assert again.read_bytes() == b"right again"
    assert [name for name in os.listdir(store.folder) if name.startswith(ADD.stem)].count(again.name) == 1
    assert len([name for name in os.listdir(store.folder) if name.startswith(f"{ADD.stem}-")]) == 1


def test_an_entry_of_another_user_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    path = store.fetch(ADD, builder)
    os.link(path, store.folder / "held")  # so that no new file gets its inode
    give_away(monkeypatch, path)
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
