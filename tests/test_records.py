"""Records of measured choices: what is found again, what counts as absent, and writers that meet or are killed."""

import errno
import json
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import failing
from children import finish, start

from sepconv import settings
from sepconv.device import Device
from sepconv.errors import SettingError, StoreError
from sepconv.problem import CHANNELS_LAST, Activation, Epilogue, Problem
from sepconv.tuning import records
from sepconv.tuning.config import CpuConfig
from sepconv.tuning.facts import device_facts, device_from, problem_facts, problem_from
from sepconv.tuning.records import Record, lookup, save

DEVICE = Device("cpu", "Test CPU (R)", units=4, isa="avx512", cache=1 << 20, memory=1 << 30)
EPILOGUE = Epilogue(True, Activation("leaky_relu", 0.1), True, Activation("relu6"), True)
PLAIN = Problem(2, 16, 24, 1, (30, 40), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
FULL = Problem(
    1, 8, 4, 2, (99,), (4,), (2,), ((1, 2),), (3,), torch.bfloat16, CHANNELS_LAST, "ieee", EPILOGUE, "forward"
)
RECORD = Record(PLAIN, CpuConfig(5, 40, False), 1.5, 1.75, 3.0, torch.__version__)
OTHER = Record(FULL, CpuConfig(1, 7, True), 0.1 + 0.2, 1e-9, 1e9, "2.9.0")
_FOLDER = records.folder  # conftest.py puts another in its place


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder for records, which does not exist yet."""
    monkeypatch.setattr(records, "folder", _FOLDER)
    monkeypatch.setenv(settings.CACHE_DIR.name, str(tmp_path / "cache"))
    records.forget()
    yield tmp_path / "cache" / "tuning"
    records.forget()


def change(path: Path, **changes: Any) -> None:
    """Write other facts into a file of records: of the top, or of its first record."""
    facts = json.loads(path.read_text())
    for name, value in changes.items():
        target = facts if name in facts else facts["records"][0]
        if value is None:
            del target[name]
        else:
            target[name] = value
    path.write_text(json.dumps(facts))
    records.forget()


# --- found again


def test_a_record_is_found_again(cache: Path) -> None:
    assert lookup(PLAIN, DEVICE) is None
    assert not cache.exists(), "asking made a folder"
    path = save([RECORD], DEVICE)
    assert path.parent == cache
    assert lookup(PLAIN, DEVICE) == RECORD
    assert lookup(FULL, DEVICE) is None
    save([OTHER], DEVICE)
    records.forget()
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (RECORD, OTHER)
    assert sorted(os.listdir(cache)) == sorted([path.name, "records.lock"])


def test_a_newer_record_takes_the_place_of_the_older_one() -> None:
    save([RECORD, OTHER], DEVICE)
    newer = replace(RECORD, config=CpuConfig(1, 8, True), ms=1.0)
    path = save([newer], DEVICE)
    assert lookup(PLAIN, DEVICE) == newer
    assert len(json.loads(path.read_text())["records"]) == 2


@pytest.mark.parametrize(
    "change",
    [{"batch": 3}, {"stride": (2, 1)}, {"dtype": torch.float16}, {"layout": CHANNELS_LAST}, {"epilogue": EPILOGUE}],
    ids=str,
)
def test_a_record_speaks_for_its_own_problem_only(change: dict[str, Any]) -> None:
    save([RECORD], DEVICE)
    assert lookup(replace(PLAIN, **change), DEVICE) is None


@pytest.mark.parametrize("change", [{"units": 2}, {"isa": "avx2"}, {"name": "Test CPU R"}, {"cache": 1 << 21}], ids=str)
def test_a_record_speaks_for_its_own_device_only(change: dict[str, Any]) -> None:
    save([RECORD], DEVICE)
    assert lookup(PLAIN, replace(DEVICE, **change)) is None
    assert lookup(PLAIN, replace(DEVICE, memory=1, index=0)) == RECORD


def test_a_device_without_a_kernel_has_no_records() -> None:
    assert lookup(PLAIN, Device("abacus", "abacus")) is None


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_made_is_for_this_user_only(cache: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = save([RECORD], DEVICE)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (cache.parent, cache, path)] == [0o700, 0o700, 0o600]
    assert lookup(PLAIN, DEVICE) == RECORD


def test_a_file_is_read_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save([RECORD], DEVICE)
    assert lookup(PLAIN, DEVICE) == RECORD
    reads: list[Path] = []
    monkeypatch.setattr(records, "read_own", reads.append)
    path.unlink()
    assert lookup(PLAIN, DEVICE) == RECORD
    assert reads == []
    records.forget()
    assert lookup(PLAIN, DEVICE) is None
    assert reads == [path]


def test_a_table_of_the_package_counts_until_something_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    tables.mkdir(mode=0o777)
    save([RECORD, OTHER], DEVICE).rename(tables / records.file_name(DEVICE))
    monkeypatch.setattr(records, "TABLES", tables)
    records.forget()
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (RECORD, OTHER)
    measured = replace(RECORD, ms=0.5)
    save([measured], DEVICE)
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (measured, OTHER)
    monkeypatch.delenv("SEPCONV_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(settings, "default_cache_dir", failing(errno.ENOENT))
    assert lookup(PLAIN, DEVICE) == RECORD


def test_the_facts_of_problems_and_devices_come_back() -> None:
    for problem in (PLAIN, FULL, replace(FULL, dtype=torch.float64, precision="tf32", direction="backward")):
        assert problem_from(json.loads(json.dumps(problem_facts(problem)))) == problem
    for device in (DEVICE, Device("cuda", "GPU", 1, (9, 0), 132, 1 << 37)):
        assert device_from(json.loads(json.dumps(device_facts(device)))) == device


# --- counts as absent


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"device"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"device": {}, "records": []}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_file_is_absent_and_replaced(content: bytes) -> None:
    path = save([RECORD], DEVICE)
    path.write_bytes(content)
    records.forget()
    assert lookup(PLAIN, DEVICE) is None
    save([OTHER], DEVICE)
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (None, OTHER)


def test_a_truncated_file_is_absent() -> None:
    path = save([RECORD], DEVICE)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        records.forget()
        assert lookup(PLAIN, DEVICE) is None


CONFIG = {"tile_rows": 5, "tile_columns": 40, "shared": False}
BAD: list[dict[str, Any]] = [
    {"records": None},
    {"records": 3},
    {"device": None},
    {"problem": None},
    {"problem": 3},
    {"problem": {}},
    {"problem": problem_facts(PLAIN) | {"dtype": "int8"}},
    {"problem": problem_facts(PLAIN) | {"dtype": []}},
    {"problem": problem_facts(PLAIN) | {"batch": []}},
    {"problem": problem_facts(PLAIN) | {"batch": "2"}},
    {"problem": problem_facts(PLAIN) | {"padding": [1, 1]}},
    {"problem": problem_facts(PLAIN) | {"epilogue": 1}},
    {"problem": problem_facts(PLAIN) | {"unknown": 1}},
    {"config": None},
    {"config": 3},
    {"config": CONFIG | {"tile_rows": 5.0}},
    {"config": CONFIG | {"tile_rows": "5"}},
    {"config": CONFIG | {"tile_rows": True}},
    {"config": CONFIG | {"shared": 0}},
    {"config": CONFIG | {"unknown": 1}},
    {"config": {"tile_rows": 5, "tile_columns": 40}},
    {"config": CONFIG | {"tile_rows": 0}},  # these are not legal
    {"config": CONFIG | {"tile_rows": 10**30}},
    {"config": CONFIG | {"tile_rows": 61}},
    {"config": CONFIG | {"tile_columns": 41}},
    {"ms": None},
    {"ms": 0.0},
    {"ms": -1.0},
    {"ms": "1.5"},
    {"ms": 10**400},
    {"ms": float("nan")},
    {"model_ms": float("inf")},
    {"eager_ms": None},
    {"torch": None},
    {"torch": 2},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_facts_that_do_not_fit_are_absent(bad: dict[str, Any]) -> None:
    change(save([RECORD], DEVICE), **bad)
    assert lookup(PLAIN, DEVICE) is None


def test_what_is_changed_and_fits_is_found() -> None:
    """The test above would pass where nothing is ever found."""
    change(save([RECORD], DEVICE), config=CONFIG | {"tile_rows": 6}, ms=2.5, torch="3")
    assert lookup(PLAIN, DEVICE) == replace(RECORD, config=CpuConfig(6, 40, False), ms=2.5, torch="3")


def test_one_bad_record_does_not_hide_the_others() -> None:
    change(save([RECORD, OTHER], DEVICE), config={})
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (None, OTHER)


@pytest.mark.parametrize("name", ["kernels", "format", "units", "name"])
def test_another_version_or_device_under_our_name_is_absent(name: str) -> None:
    path = save([RECORD], DEVICE)
    facts = json.loads(path.read_text())["device"]
    change(path, device=facts | {name: "another"})
    assert lookup(PLAIN, DEVICE) is None


def test_other_kernels_have_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save([RECORD], DEVICE)
    monkeypatch.setattr(records, "_kernels", lambda kind: "other sources")
    records.forget()
    assert lookup(PLAIN, DEVICE) is None
    assert save([OTHER], DEVICE) != path
    monkeypatch.undo()
    assert len(records._kernels("cpu")) == 16


def test_the_checksum_of_the_kernels_hangs_on_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    monkeypatch.setattr(records.kernels, "__file__", str(tmp_path / "__init__.py"))
    seen = set()
    for name, text in (("a.cpp", "1"), ("a.h", "1"), ("a.h", "2"), ("notes.txt", "1")):
        (tmp_path / "cpu" / name).write_text(text)
        records._kernels.cache_clear()
        seen.add(records._kernels("cpu"))
    records._kernels.cache_clear()
    assert len(seen) == 3, "all but the notes count"


# --- trust


@pytest.mark.parametrize("what", ["file", "folder", "above"])
def test_what_others_can_write_is_absent(cache: Path, what: str) -> None:
    path = save([RECORD], DEVICE)
    place, mode = {"file": (path, 0o622), "folder": (cache, 0o722), "above": (cache.parent, 0o722)}[what]
    place.chmod(mode)
    records.forget()
    assert lookup(PLAIN, DEVICE) is None


def test_a_file_of_another_user_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save([RECORD], DEVICE)
    inode, look = path.stat().st_ino, os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        return os.stat_result([*found[:4], os.geteuid() + 1, *found[5:]]) if found.st_ino == inode else found

    monkeypatch.setattr(os, "fstat", fstat)
    records.forget()
    assert lookup(PLAIN, DEVICE) is None


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_plain_file_is_absent(kind: str, tmp_path: Path) -> None:
    path = save([RECORD], DEVICE)
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    records.forget()
    assert lookup(PLAIN, DEVICE) is None


def test_a_folder_that_others_can_write_is_not_written(cache: Path) -> None:
    save([RECORD], DEVICE)
    cache.chmod(0o777)
    with pytest.raises(StoreError, match=r"others can write to .*expected a folder that only you can write to"):
        save([OTHER], DEVICE)
    cache.chmod(0o700)
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (RECORD, None)


def test_without_a_home_folder_nothing_is_found_and_saving_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (settings.CACHE_DIR.name, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(_: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert lookup(PLAIN, DEVICE) is None
    with pytest.raises(SettingError, match="`HOME` is not set"):
        save([RECORD], DEVICE)


def test_a_read_only_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is found; what cannot be written is an error that says so, and harms nothing."""
    path = save([RECORD], DEVICE)
    monkeypatch.setattr(tempfile, "mkstemp", failing(errno.EROFS))
    with pytest.raises(StoreError, match=f"`{path}` cannot be written .Read-only file system"):
        save([OTHER], DEVICE)
    assert (lookup(PLAIN, DEVICE), lookup(FULL, DEVICE)) == (RECORD, None)


def test_a_path_through_a_file(cache: Path) -> None:
    cache.parent.write_text("")
    assert lookup(PLAIN, DEVICE) is None
    with pytest.raises(StoreError, match="Not a directory"):
        save([RECORD], DEVICE)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = save([RECORD], DEVICE)
    monkeypatch.setattr(os, step, failing(errno.ENOSPC))
    with pytest.raises(StoreError, match="No space left"):
        save([OTHER], DEVICE)
    monkeypatch.undo()
    assert sorted(os.listdir(cache)) == sorted([path.name, "records.lock"])


# --- several writers

_CHILD = """
import torch
from dataclasses import replace
from test_records import DEVICE, RECORD, PLAIN
from sepconv.tuning import records
"""


def test_writers_at_the_same_time_lose_nothing(cache: Path) -> None:
    """Eight processes with four records each, one file."""
    environment = {settings.CACHE_DIR.name: str(cache.parent)}
    code = f"""{_CHILD}
number = int(os.environ["NUMBER"])
while not os.path.exists({str(cache.parent.parent / "go")!r}):
    time.sleep(0.001)
for batch in range(4 * number + 1, 4 * number + 5):
    records.save([replace(RECORD, problem=replace(PLAIN, batch=2 * batch), ms=float(batch))], DEVICE)
"""
    writers = [start(code, **environment, NUMBER=str(number)) for number in range(8)]
    (cache.parent.parent / "go").touch()
    for writer in writers:
        finish(writer)
    found = [lookup(replace(PLAIN, batch=2 * batch), DEVICE) for batch in range(1, 33)]
    assert [record and record.ms for record in found] == [float(batch) for batch in range(1, 33)]
    assert not list(cache.glob("tmp-*"))


def test_a_killed_writer_leaves_what_was_there(cache: Path) -> None:
    path = save([RECORD], DEVICE)
    code = f"""{_CHILD}
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
records.save([replace(RECORD, ms=9.0)], DEVICE)
"""
    finish(start(code, **{settings.CACHE_DIR.name: str(cache.parent)}), -signal.SIGKILL)
    left = list(cache.glob("tmp-*"))
    assert len(left) == 1
    assert lookup(PLAIN, DEVICE) == RECORD
    save([OTHER], DEVICE)
    assert left[0].exists(), "it could be of a process that still writes, where a file system has no locks"
    os.utime(left[0], (0, 0))
    save([replace(RECORD, ms=2.0)], DEVICE)
    assert sorted(os.listdir(cache)) == sorted([path.name, "records.lock"])
    assert lookup(FULL, DEVICE) == OTHER
