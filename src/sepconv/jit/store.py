"""Compiled files on disk, each built once: found again only where nothing but this user's own builds could have written it.

An entry is one file, named `<name>-<key>-<checksum><suffix>`. The checksum is the SHA-256 of the artifact's whole key and of
the content, so a truncated, altered or renamed file names itself wrongly and is a miss. An entry is written in a private
folder, flushed, and renamed: a process that is killed leaves nothing that is ever found.
"""

import atexit
import contextlib
import hashlib
import itertools
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from sepconv import settings
from sepconv.errors import CacheWarning, SettingError, StoreError
from sepconv.jit.artifact import Artifact
from sepconv.jit.locks import alone
from sepconv.jit.trust import folder_fault, make_folder, read_own, resolved

Build = Callable[[Path], None]

PRIVATE = "tmp-"  # what the name of a file begins with while it is being written
EXPECTED = f"expected a folder that only you can write to. Set `{settings.CACHE_DIR.name}` to such a folder."
_STALE = 24 * 3600.0  # seconds; no build takes as long


class Store:
    """The compiled files in one folder.

    Where the folder cannot be used, results go to a temporary folder of this process, and the first time a CacheWarning says
    why.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = resolved(folder)

    def has(self, artifact: Artifact) -> bool:
        """Whether `fetch` would find the artifact built."""
        return self._found(artifact) is not None

    def fetch(self, artifact: Artifact, build: Build) -> Path:
        """The file with the artifact; `build` makes it where it is missing.

        `build` gets the path of the file to write, in a folder of its own that it may fill with what it needs on the way. It is
        called once, whatever number of threads and processes ask at the same time. What it raises passes through, but for
        OSError: then the temporary folder is tried. Raises StoreError where that fails too.
        """
        found = self._found(artifact)
        if found is not None:
            return found
        try:
            return self._make(artifact, build)
        except OSError as error:
            warn_once(self.folder, reason_of(error))
        try:
            return temporary()._make(artifact, build)
        except OSError as error:
            tried = f"{self.folder}, nor in a temporary folder"
            raise StoreError(f"`{artifact.name}` cannot be kept in {tried} ({reason_of(error)}); {EXPECTED}") from error

    def _found(self, artifact: Artifact) -> Path | None:
        return next(filter(None, (store._find(artifact) for store in (self, *_temporary.values()))), None)

    def _find(self, artifact: Artifact) -> Path | None:
        if folder_fault(self.folder):
            return None
        try:
            return next((path for path in self._entries(artifact) if _is_whole(path, artifact)), None)
        except OSError:  # cannot be listed or read
            return None

    def _entries(self, artifact: Artifact) -> Iterator[Path]:
        """The files that claim to be this artifact."""
        for name in os.listdir(self.folder):
            if name.startswith(f"{artifact.stem}-") and name.endswith(artifact.suffix):
                yield self.folder / name

    def _make(self, artifact: Artifact, build: Build) -> Path:
        make_folder(self.folder)
        with alone(self.folder / f"{artifact.stem}.lock"):
            found = self._find(artifact)
            if found is not None:
                return found
            sweep(self.folder)
            self._discard_damaged(artifact)
            private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=self.folder))
            try:
                made = private / f"{artifact.name}{artifact.suffix}"
                build(made)
                return self._publish(artifact, made)
            finally:
                shutil.rmtree(private, ignore_errors=True)

    def _publish(self, artifact: Artifact, made: Path) -> Path:
        made.chmod(0o600)
        with made.open("rb+") as file:
            content = file.read()
            os.fsync(file.fileno())
        path = self.folder / _entry_name(artifact, content)
        os.replace(made, path)
        return path

    def _discard_damaged(self, artifact: Artifact) -> None:
        for entry in self._entries(artifact):
            if not _is_whole(entry, artifact):
                _discard(entry)


def sweep(folder: Path) -> None:
    """Remove the private files and folders that killed processes left in a folder."""
    for path in folder.glob(f"{PRIVATE}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - _STALE:
                _discard(path)


def default_store() -> Store:
    """The store in the folder that the settings name now."""
    try:
        return _store((settings.cache_dir() / "kernels").absolute())
    except SettingError as error:
        warn_once(None, str(error))
        return temporary()


def warn_once(folder: Path | None, reason: str) -> None:
    """Warn, the first time in this process, that compiled kernels are not kept in a folder, and say what to do."""
    if next(_warnings):  # counting is atomic
        return
    where = f"`{folder}`" if folder else "the cache"
    effect = "Until then kernels go to a temporary folder, and each process compiles them again."
    warnings.warn(f"{where} cannot keep compiled kernels ({reason}); {EXPECTED} {effect}", CacheWarning, stacklevel=2)


def temporary() -> Store:
    """The store in a temporary folder of this process, which removes it when it ends. Raises StoreError."""
    process = os.getpid()  # a forked child makes its own, because its parent may end first
    if process not in _temporary:
        try:
            folder = Path(tempfile.mkdtemp(prefix="sepconv-"))
        except OSError as error:
            raise StoreError(f"a temporary folder cannot be made ({reason_of(error)}); {EXPECTED}") from error
        atexit.register(_remove, folder, process)
        _temporary.setdefault(process, Store(folder))  # another thread may be faster
    return _temporary[process]


_temporary: dict[int, Store] = {}
_warnings = itertools.count()


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _store(folder: Path) -> Store:
    return Store(folder)


def _entry_name(artifact: Artifact, content: bytes) -> str:
    checksum = hashlib.sha256(artifact.key.encode() + content).hexdigest()
    return f"{artifact.stem}-{checksum}{artifact.suffix}"


def _is_whole(path: Path, artifact: Artifact) -> bool:
    content = read_own(path)
    return content is not None and path.name == _entry_name(artifact, content)


def _discard(path: Path) -> None:
    """Remove whatever lies there, where that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def reason_of(error: OSError) -> str:
    """What the system, or sepconv itself, says in an error, with the file that it is about."""
    if isinstance(error, StoreError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
