"""Who may have written a file or a folder: only what this user alone could have written is ever loaded.

The rules are those of OpenSSH's StrictModes, for the folder and each one above it up to the root.
"""

import contextlib
import os
import stat
from pathlib import Path

from sepconv.errors import StoreError

_POSIX = os.name == "posix"  # elsewhere, owners and modes say nothing
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def resolved(folder: Path) -> Path:
    """The folder with the links above it followed once, so that what was checked is what is used."""
    return Path(os.path.realpath(folder.absolute().parent), folder.name)


def folder_fault(folder: Path) -> str | None:
    """Why the files in a folder cannot be trusted, in words that say what to do; None where they can.

    `folder` is absolute and without symbolic links above its last part.
    """
    try:
        status = os.lstat(folder)
        above = next(filter(None, map(_parent_fault, folder.parents)), None)
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if _POSIX and status.st_uid != os.geteuid():
        return f"{folder} belongs to the user {status.st_uid}"
    return _mode_fault(folder, status, "chmod 700") or above


def make_folder(folder: Path) -> None:
    """Make a folder and the missing ones above it, for this user only (0700), each below one that can be trusted.

    Raises StoreError where the folder, made now or found, cannot be trusted, and OSError where it cannot be made.
    """
    for place in (*reversed(folder.parents), folder):
        if not os.path.lexists(place):
            fault = _parent_fault(place.parent)
            if fault:
                raise StoreError(fault)
            with contextlib.suppress(FileExistsError):  # another process was faster
                place.mkdir(0o700)
    fault = folder_fault(folder)
    if fault:
        raise StoreError(fault)


def read_own(path: Path) -> bytes | None:
    """What a file holds, where it is a plain file of this user that no one else can write to; None otherwise."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        if not _is_own_file(os.fstat(descriptor)):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _is_own_file(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    return not _POSIX or (status.st_uid == os.geteuid() and not _others_write(status))


def _parent_fault(folder: Path) -> str | None:
    """Why another user could exchange what is in a folder that only passes through to ours; None where none could."""
    status = os.lstat(folder)
    # Whoever owns the root can exchange everything; in a user namespace that is not user 0.
    if _POSIX and status.st_uid not in (os.geteuid(), 0, os.lstat("/").st_uid):
        return f"{folder} belongs to the user {status.st_uid}, who can exchange what is in it"
    return None if status.st_mode & stat.S_ISVTX else _mode_fault(folder, status, "chmod go-w")


def _mode_fault(folder: Path, status: os.stat_result, remedy: str) -> str | None:
    if _POSIX and _others_write(status):
        return f"others can write to {folder} (mode {stat.S_IMODE(status.st_mode):o}; `{remedy}` would end that)"
    return None


def _others_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
