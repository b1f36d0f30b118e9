"""One builder at a time, among the threads of a process and among processes; a killed one leaves no lock behind."""

import contextlib
import errno
import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _system_locks() -> Any:
    try:
        return importlib.import_module("fcntl")
    except ImportError:  # not on this system: processes may build the same thing twice, which harms nothing
        return None


fcntl = _system_locks()
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}  # of a file system, such as some NFS

_threads: dict[Path, threading.Lock] = {}
_open: set[int] = set()


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Hold the lock of this name; waits for the thread or the process that has it.

    A file system without locks lets every process in. Raises OSError where the file cannot be made.
    """
    with _threads.setdefault(file, threading.Lock()), _among_processes(file):
        yield


@contextlib.contextmanager
def _among_processes(file: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _open.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        if descriptor in _open:  # else this is a forked child, and closed already
            _open.remove(descriptor)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would not do while a forked child has it open
            os.close(descriptor)


def _forget() -> None:
    """In a forked child: no thread of the parent lives here, and the parent's locks must not outlive it in the child."""
    _threads.clear()
    while _open:
        os.close(_open.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
