"""What every test shares: the devices, fresh memory that is NaN, and how hard hypothesis looks."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by PyTorch's deterministic mode; read once

import pytest
import torch
from hypothesis import HealthCheck, settings
from kernels import few_builds, terms_for_any_size  # noqa: F401

from sepconv.jit import cxx, store
from sepconv.tuning import records

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

_SHARED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("ci", derandomize=True, max_examples=150, **_SHARED)
settings.register_profile("thorough", derandomize=False, max_examples=2000, print_blob=True, **_SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device of this machine; float32 is exact on it, unless a test says otherwise."""
    return request.param


_FLAGS = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """PyTorch's own convolutions and products in full float32, so that the budget means what it says.

    By the older flags: PyTorch's exporters read these, and that fails where the newer ones were set to another value.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = _FLAGS


@pytest.fixture(autouse=True)
def deterministic_cudnn() -> Iterator[None]:
    """PyTorch's own kernels give the same bits in every call, so that results can be compared bit by bit."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was measured on this machine decides nothing in a test."""
    monkeypatch.setattr(records, "folder", lambda: tmp_path_factory.getbasetemp() / "no-records")


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No warning given yet about the cache of compiled kernels, nothing loaded, and temporary folders in the test's own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(store, "_temporary", {})
    monkeypatch.setattr(store, "_warnings", itertools.count())
    monkeypatch.setattr(cxx, "_loaded", {})


@pytest.fixture(name="store")
def empty_store(tmp_path: Path) -> store.Store:
    """A store for compiled kernels that does not exist yet, nor the folder above it."""
    return store.Store(tmp_path / "cache" / "kernels")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch uses one thread, so that its sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nan_in_fresh_memory() -> Iterator[None]:
    """Every tensor that is made without a value is NaN, so that an element left unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]
