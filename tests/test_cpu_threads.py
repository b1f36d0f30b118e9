"""The CPU backend among threads and processes: whose threads it runs on, and what a forked child may do."""

import ctypes
import ctypes.util
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from calls import same_bits, separable
from cases import Case, pair, tensors_of
from kernels import CPU, DTYPES, LAYOUTS, check_result, plan_of, run
from torch._subclasses.fake_tensor import FakeTensorMode

from sepconv import ops
from sepconv.backends import threads
from sepconv.backends.workspace import workspace
from sepconv.device import describe
from sepconv.tuning.config import CpuConfig

CASE = Case("threads", 3, 8, 40, (31, 33), (3, 3), padding=1, bias="dp", residual=True)
CONFIGS = (CpuConfig(7, 33, False), CpuConfig(31, 33, True), CpuConfig(1, 16, True), CpuConfig(93, 33, False))
by_dtype = {"ids": lambda value: str(value).removeprefix("torch.")}


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- threads


@pytest.mark.parametrize("own", [False, True], ids=["pytorch's", "own"])
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_the_number_of_threads_changes_no_bit(
    dtype: torch.dtype, form: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it matter whose threads these are, or that there are more of them than cores."""
    if own:
        monkeypatch.setattr(threads, "_openmp", lambda: (None, None, None))
    tensors, found = tensors_of(CASE, dtype, form=form), []
    for count in (1, 2, 4, 7):
        torch.set_num_threads(count)
        assert threads.threads().count == count
        found += [run(tensors, CASE, config) for config in CONFIGS]
        found.append(separable(tensors, CASE))
    check_result(found[0], tensors, CASE)
    assert all(same_bits(y, found[0]) for y in found)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_the_rest_of_the_batch_changes_no_bit(dtype: torch.dtype, form: str) -> None:
    tensors = tensors_of(CASE, dtype, form=form)
    whole = separable(tensors, CASE)
    for i in range(CASE.N):
        x, *weights, residual = tensors
        alone = separable([x[i : i + 1], *weights, residual[i : i + 1]], CASE)
        assert same_bits(alone, whole[i : i + 1])


def test_the_threads_are_those_of_pytorch() -> None:
    found = threads.threads()
    assert found.count == torch.get_num_threads()
    assert found.parallel
    assert found.number_here
    assert found.count_here
    own = Path(torch.__file__).parent
    assert Path(threads._loaded_runtimes()[0]).is_relative_to(own) or not list(own.parent.rglob("libgomp*"))


def test_without_openmp_there_are_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_loaded_runtimes", lambda: ["/nowhere/libgomp.so.1", ctypes.util.find_library("c")])
    assert threads._openmp.__wrapped__() == (None, None, None)


def test_many_python_threads_at_once() -> None:
    cases = [Case("one of many", 1 + i % 3, 4 + i, 9 + i, (17, 20 + i), (3, 3), padding=1) for i in range(8)]
    tensors = [tensors_of(case, seed=i) for i, case in enumerate(cases)]
    for y, t, case in zip(map(separable, tensors, cases), tensors, cases, strict=True):
        check_result(y, t, case)
    right = [separable(t, case) for t, case in zip(tensors, cases, strict=True)]
    together = threading.Barrier(8)

    def work(i: int) -> bool:
        together.wait()
        return all(same_bits(separable(tensors[i], cases[i]), right[i]) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_scratch_memory_belongs_to_one_thread() -> None:
    mine = workspace(64)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(workspace, 64).result()
    assert mine.address != theirs.address
    assert workspace(64) is mine
    assert workspace(mine.size + 1).size > mine.size


def test_pytorch_and_the_kernel_take_turns() -> None:
    case = Case("turns", 2, 16, 32, (24, 25), (3, 3), padding=1)
    tensors = tensors_of(case)
    first, theirs = separable(tensors, case), pair(tensors, case)
    for _ in range(20):
        assert same_bits(separable(tensors, case), first)
        assert same_bits(pair(tensors, case), theirs)
    check_result(first, tensors, case)


# --- modes of PyTorch


def test_modes_change_no_bit() -> None:
    tensors = tensors_of(CASE)
    right = separable(tensors, CASE)
    with torch.inference_mode():
        assert same_bits(separable(tensors, CASE).clone(), right)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert same_bits(separable(tensors, CASE), right)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_fake_mode_leaves_nothing_behind() -> None:
    """Planned and compiled first inside of the mode, as while a model is exported; then run outside of it."""
    case = Case("fake", 2, 5, 6, (13, 14), (3, 3), padding=1)
    tensors = tensors_of(case)
    ops.forget_plans()
    with FakeTensorMode() as mode:
        fake = [t if t is None else mode.from_tensor(t) for t in tensors]
        assert separable(fake, case).shape == case.out_shape
        assert plan_of(fake, case).backend.name == "cpu"
    check_result(separable(tensors, case), tensors, case)


# --- processes


# In a forked child PyTorch's own loops over many elements hang (OpenMP's threads are the parent's), so that what is compared
# there are bytes.
_SCRIPT = """
import os, threading, warnings
import torch
import kernels, threads_child
from calls import separable
from threads_child import CASE, DATA, compute
from sepconv.backends import threads
warnings.filterwarnings("ignore", category=DeprecationWarning)  # Python 3.12 about os.fork
torch.set_num_threads(2)

def in_child(work):
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child

def ended(child):
    assert os.waitpid(child, 0)[1] == 0, "the child failed"

def warm():
    for data in DATA:  # the pair too, so that PyTorch's pool has threads
        kernels.check_result(separable(data, CASE), data, CASE)
    return [compute(i) for i in range(3)]
"""

SCENES = {
    "a forked child": """
right = warm()
ended(in_child(lambda: threads.threads().count == 2 and all(compute(0) == right[0] for _ in range(20))))
assert compute(0) == right[0]
""",
    "a forked child that is the first to call": """
torch.randn(600, 600) @ torch.randn(600, 600)
out, into = os.pipe()
ended(in_child(lambda: os.write(into, threads_child.digest(compute(0)))))
assert os.read(out, 99) == threads_child.digest(compute(0))
warm()
""",
    "parent and children at once": """
right = warm()
def work(i):
    return all(compute(i) == right[i] for _ in range(50))
children = [in_child(lambda i=i: work(i)) for i in (1, 2)]
assert work(0)
for child in children:
    ended(child)
""",
    "a fork while another thread computes": """
right = warm()
busy = threading.Thread(target=lambda: [compute(1) for _ in range(300)])
busy.start()
for _ in range(5):
    ended(in_child(lambda: compute(0) == right[0]))
busy.join()
""",
    "a child of a child": """
right = warm()
def work():
    ended(in_child(lambda: compute(0) == right[0]))
    return compute(0) == right[0]
ended(in_child(work))
""",
    "a pool of forked processes": """
import multiprocessing
right = warm()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(compute, range(3)) == right
""",
    "a pool of spawned processes": """
import multiprocessing
right = warm()
with multiprocessing.get_context("spawn").Pool(1) as pool:
    assert pool.map(compute, range(3)) == right
""",
    "forked workers of a DataLoader": """
right = warm()
loader = torch.utils.data.DataLoader(threads_child.Results(), None, num_workers=2, multiprocessing_context="fork")
assert list(loader) == right
""",
    "spawned workers of a DataLoader": """
right = warm()
loader = torch.utils.data.DataLoader(threads_child.Results(), None, num_workers=1, multiprocessing_context="spawn")
assert list(loader) == right
""",
}
_CHILD = """
import hashlib
import torch
from calls import separable
from cases import Case, tensors_of
CASE = Case("child", 2, 16, 24, (40, 41), (3, 3), padding=1)
DATA = [tensors_of(CASE, seed=seed) for seed in range(3)]

def compute(i):
    return separable(DATA[i], CASE).numpy().tobytes()

def digest(data):
    return hashlib.sha256(data).digest()

class Results(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return compute(i)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("scene", SCENES)
def test_processes(scene: str, tmp_path: Path) -> None:
    (tmp_path / "threads_child.py").write_text(_CHILD)
    script = tmp_path / "script.py"
    body = "\n".join(f"    {line}" for line in SCENES[scene].strip().splitlines())
    script.write_text(f"{_SCRIPT}\nif __name__ == '__main__':\n{body}\n    print('done')\n")
    paths = [str(tmp_path), str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,  # seconds; a child that hangs ends here
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_scratch_memory_of_its_own() -> None:
    scratch = workspace(64)
    ctypes.memset(scratch.address, 1, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 about threads and forks
        child = os.fork()
    if not child:
        ctypes.memset(scratch.address, 2, 64)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ctypes.string_at(scratch.address, 64) == b"\x01" * 64


def test_the_description_follows_the_threads() -> None:
    torch.set_num_threads(3)
    assert describe(CPU).units == 3
