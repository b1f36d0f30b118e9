"""What the device can do, as the benchmark measures it; and the pages that PyTorch's tensors lie in."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sepconv.backends import probe
from sepconv.bench import pages, roofline, timing
from sepconv.device import describe
from sepconv.errors import CompilerError
from sepconv.tuning.model import LANES

CPU = torch.device("cpu")
TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize(
    ("isa", "dtype", "name"),
    [
        ("generic", torch.float64, "float64 matrix product"),
        ("generic", torch.float32, "float32 FMA in registers (generic)"),
        ("generic", torch.bfloat16, "float32 FMA in registers (generic)"),
        ("amx", torch.bfloat16, "bfloat16 matrix product, a stand-in for its units (amx)"),
    ],
)
def test_ceilings_are_measured_and_named(
    isa: str, dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "describe", lambda _: replace(describe(CPU), isa=isa))
    monkeypatch.setitem(roofline._COPY_BYTES, "cpu", 2**20)
    found = roofline.Gauge(CPU, dtype, timing.Timer(CPU)).sample()
    assert found.copy > 1e6  # far below any machine: this one may be busy
    assert found.arithmetic > 1e6
    assert name in str(found)


def test_without_a_compiler_a_matrix_product_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> float:
        raise CompilerError("`PATH` has no C++ compiler")

    monkeypatch.setattr(probe, "multiply_add_rate", none)
    found = roofline.Gauge(CPU, torch.float32, timing.Timer(CPU)).sample()
    assert found.arithmetic > 1e6
    assert "float32 matrix product, a stand-in for FMA" in str(found)


@pytest.mark.parametrize("count", [1, 2])
def test_the_probe_counts_every_thread_and_every_round(count: int) -> None:
    before, rounds, isa = torch.get_num_threads(), 1_000_000, describe(CPU).isa
    torch.set_num_threads(count)
    shares = []  # of the time of a call that its rate accounts for; less where a thread had to wait for a core
    try:
        probe.multiply_add_rate(isa, 1)
        for _ in range(5):
            start = time.perf_counter()
            rate = probe.multiply_add_rate(isa, rounds)
            shares.append(2 * 12 * LANES[isa] * rounds * count / rate / (time.perf_counter() - start))
    finally:
        torch.set_num_threads(before)
    assert 0.3 < max(shares) <= 1


def test_a_steady_gauge_gives_the_median_of_its_start() -> None:
    class Drifting:
        timer = timing.Timer(CPU)
        rates = iter(range(1, 100))

        def sample(self) -> roofline.Ceilings:
            return roofline.Ceilings(next(self.rates) * 1e9, 1e12, "FMA")

    steady = roofline.Steady(Drifting())
    assert steady.timer is Drifting.timer
    assert [steady.sample().copy for _ in range(3)] == [5e9] * 3


_IN_A_NEW_PROCESS = """
import sys
import time
from sepconv.bench import pages
pages.ask_for(sys.argv[1])
print(pages.found())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are told on Linux only")
@pytest.mark.parametrize("kept", [False, True])
def test_pages_are_told_by_what_is_seen(kept: bool) -> None:
    keeping = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)} if kept else {}
    for wanted in (pages.HUGE, pages.SMALL):
        words = [sys.executable, "-c", _IN_A_NEW_PROCESS, wanted]
        found = subprocess.run(
            words, capture_output=True, text=True, check=True, env=os.environ | keeping
        ).stdout.strip()
        assert found.endswith(pages.KEPT) == kept
        if wanted == pages.SMALL and "[always]" not in TRANSPARENT.read_text():
            assert found.startswith(pages.SMALL)
        if wanted == pages.HUGE and "[never]" not in TRANSPARENT.read_text():
            assert found.startswith(pages.HUGE)
