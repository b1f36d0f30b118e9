"""The CPU's kernels in programs of their own: under sanitizers, and compiled for aarch64 and run by qemu."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cases import ACTIVATED, BY_ID, ENDINGS, FORMS, TABLE, Case, tensors_of
from kernels import DTYPES, LAYOUTS, check_result, plan_of, run
from native_calls import Native
from test_cpu import ODD
from torch import Tensor

from sepconv import ops
from sepconv.jit import cxx
from sepconv.tuning.config import CpuConfig

GXX = shutil.which("g++")
CROSS, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
SANITIZERS = {
    "address and undefined": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
_QUICK = (
    *("1d-prime", "1d-one-token", "1d-stride-dilation", "1d-same-even-dilated", "1d-kernel-over-map", "1d-long-stride"),
    *("2d-prime", "2d-all-ones", "2d-mixed", "2d-mixed-other-way", "2d-same-mixed", "2d-stride-over-kernel"),
    *("2d-long-stride", "2d-map-under-padding", "2d-multiplier-3", "2d-residual-activated"),
)
QUICK = [*ODD, *(BY_ID[name] for name in _QUICK)]
EVERY = [case for case in (*TABLE, *ENDINGS, *ACTIVATED) if case.rank < 3 and case.N * case.C < 10_000] + ODD
by_dtype = {"ids": lambda value: str(value).removeprefix("torch.")}
Check = Callable[[Case, torch.dtype, str, bool], None]


def _configs(plan_config: CpuConfig, rows: int, columns: int) -> list[CpuConfig]:
    """The model's configuration, a part of a row, and tiles that reach from one image into the next."""
    across = min(rows, 1 + rows // 2)
    return [plan_config, CpuConfig(1, max(1, columns - 1), True), CpuConfig(across, columns, False)]


pytestmark = pytest.mark.usefixtures("terms_for_any_size")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Native], Check]]:
    """Puts a compiler of drivers in place of the libraries; gives what checks a case with it."""

    def put(native: Native) -> Check:
        monkeypatch.setattr(cxx, "library", native)
        ops.forget_plans()
        return _check

    before = torch.get_num_threads()
    yield put
    monkeypatch.undo()
    ops.forget_plans()
    torch.set_num_threads(before)


def _check(case: Case, dtype: torch.dtype, form: str, every: bool) -> None:
    tensors = tensors_of(case, dtype, form=form)
    plan = plan_of(tensors, case)
    if not plan.problem.batch:
        return
    rows, columns = plan.problem.batch * (plan.problem.out_size[0] if case.rank == 2 else 1), plan.problem.out_size[-1]
    configs = dict.fromkeys(_configs(plan.config, rows, columns))
    for config in list(configs) if every else list(configs)[-2:]:
        _check_with(config, tensors, case)


def _check_with(config: CpuConfig, tensors: list[Tensor | None], case: Case) -> None:
    try:
        check_result(run(tensors, case, config), tensors, case)
    except AssertionError as error:
        raise AssertionError(f"{case} with {config}: {error}") from error


def _sanitized(folder: Path, flags: tuple[str, ...]) -> Native:
    if GXX is None:
        pytest.skip("no g++ on the PATH")
    (folder / "empty.cpp").write_text("int main() {}")
    trial = [GXX, *flags, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    if subprocess.run(trial, capture_output=True).returncode or subprocess.run([folder / "empty"]).returncode:
        pytest.skip(f"programs with {' '.join(flags)} do not run here")
    return Native(folder, [GXX, "-O1", "-g1", *flags])


def test_the_sanitizers_see_what_is_wrong(tmp_path: Path) -> None:
    """Otherwise they would prove nothing: a result that is one element too long for its memory is reported."""
    native = _sanitized(tmp_path, SANITIZERS["address and undefined"])
    source = "#include <cstdlib>\nint main(int n, char**) { char* p = (char*)std::malloc(n); p[n] = 1; return p[n]; }"
    (tmp_path / "wrong.cpp").write_text(source)
    subprocess.run([*native.compiler, str(tmp_path / "wrong.cpp"), "-o", str(tmp_path / "wrong")], check=True)
    done = subprocess.run([tmp_path / "wrong"], capture_output=True, text=True)
    assert done.returncode
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_nothing_outside_of_the_buffers_is_touched(
    dtype: torch.dtype, form: str, compiled: Callable[[Native], Check], tmp_path: Path, few_builds: set[tuple[int, ...]]
) -> None:
    """Nor does a kernel do anything that C++ leaves undefined."""
    few_builds.add((3, 3))
    torch.set_num_threads(2)
    check = compiled(_sanitized(tmp_path, SANITIZERS["address and undefined"]))
    for case in QUICK:
        check(case, dtype, form, False)


@pytest.mark.parametrize("form", LAYOUTS)
def test_threads_do_not_race(
    form: str, compiled: Callable[[Native], Check], tmp_path: Path, few_builds: set[tuple[int, ...]]
) -> None:
    """On threads of the kernel's own: the sanitizer does not know those of OpenMP."""
    few_builds.add((3, 3))
    torch.set_num_threads(3)
    check = compiled(_sanitized(tmp_path, SANITIZERS["thread"]))
    for case in ODD:
        check(case, torch.bfloat16, form, True)


@pytest.mark.by_hand
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
@pytest.mark.parametrize("isa", ["", "avx2", "generic"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_every_problem_under_every_sanitizer(
    sanitizer: str,
    isa: str,
    dtype: torch.dtype,
    form: str,
    compiled: Callable[[Native], Check],
    tmp_path: Path,
    few_builds: set[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_builds.update({(3, 3), (1, 5)})
    monkeypatch.setenv("SEPCONV_ISA", isa)
    torch.set_num_threads(3)
    check = compiled(_sanitized(tmp_path, SANITIZERS[sanitizer]))
    for case in EVERY if sanitizer != "thread" else [*ODD, *ENDINGS]:
        if dtype in case.dtypes:
            check(case, dtype, form, True)


@pytest.mark.skipif(CROSS is None or QEMU is None, reason="no aarch64-linux-gnu-g++ or no qemu-aarch64 on the PATH")
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_dtype)
def test_aarch64(
    dtype: torch.dtype,
    form: str,
    compiled: Callable[[Native], Check],
    tmp_path: Path,
    few_builds: set[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_builds.add((3, 3))
    monkeypatch.setenv("SEPCONV_ISA", "generic")
    torch.set_num_threads(2)
    check = compiled(Native(tmp_path, [str(CROSS), "-static"], [str(QEMU)]))
    for case in QUICK:
        check(case, dtype, form, False)
