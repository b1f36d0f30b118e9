"""CUDA kernels without a GPU: every distinct kernel compiles, with nothing spilled and no matrix product held up."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from children import finish, start
from cuda_cases import A_LAST, PRECISIONS, SHAPES, UNITS, A, B, Shape

from sepconv.backends import cuda
from sepconv.backends.cuda import CudaBackend
from sepconv.device import Device
from sepconv.errors import CompilerError
from sepconv.jit import nvrtc
from sepconv.problem import Problem
from sepconv.tuning import hopper, hopper_candidates

H200 = Device("cuda", "NVIDIA H200", 0, (9, 0), 132, 1 << 37)


def built(problem: Problem) -> nvrtc.Build:
    config = hopper_candidates.configuration(problem, UNITS)
    assert config is not None
    return cuda.build(problem, config)


needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason="cuda.core is not installed")


@needs_nvrtc
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, A, A_LAST, B], ids=str)
def test_every_kernel_compiles_well(shape: Shape, dtype: torch.dtype, precision: str, tmp_path: Path) -> None:
    problem = shape.problem(dtype, precision)
    reasons = CudaBackend().reasons(problem, H200)
    if reasons:
        expected = "do not fit in shared memory" if hopper.copied_in_rows(problem) else "no multiple of 16"
        expected = "reaches" if hopper.columns_read(problem) > hopper.most_read(problem) else expected
        assert expected in reasons[0]
        assert dtype is torch.float32 or not hopper.copied_in_rows(problem)
        return
    code, log = nvrtc.compiled(nvrtc.artifact(built(problem)), tmp_path)
    assert code[:4] == b"\x7fELF"
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spills
    assert not any(spills), log
    assert re.findall(r"(\d+) bytes stack frame", log) == ["0"], log
    assert not re.search(r"C75\d\d|serialized|ignored", log), log
    assert all(int(n) <= 96 for n in re.findall(r"Used (\d+) registers", log)), log


@needs_nvrtc
def test_a_kernel_comes_from_the_store_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("SEPCONV_CACHE_DIR", folder)
        wanted = built(SHAPES[1].problem(torch.float32, "high"))
        assert not nvrtc.is_built(wanted)
        code = nvrtc.cubin(wanted)
        assert nvrtc.is_built(wanted)
        monkeypatch.setattr(nvrtc, "compiled", None)
        assert nvrtc.cubin(wanted) == code


@needs_nvrtc
def test_the_compilers_words_come_with_its_error(tmp_path: Path) -> None:
    main = tmp_path / "wrong.cu"
    main.write_text("this is no C++")
    with pytest.raises(CompilerError, match="NVRTC cannot compile `wrong` for sm_90a"):
        nvrtc.cubin(nvrtc.Build("wrong", main, (), "sm_90a"))


FIRST_THREADS = """
from sepconv.jit import nvrtc
sys.setswitchinterval(1e-6)
all_there, parts = threading.Barrier(8), []

def ask():
    all_there.wait()
    parts.append(hasattr(nvrtc._core(), "ProgramOptions"))

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(parts.count(True))
"""


@needs_nvrtc
def test_threads_that_compile_first_all_get_the_whole_compiler() -> None:
    children = [start(FIRST_THREADS) for _ in range(6)]  # without the lock about half of them fail
    assert [finish(child).strip() for child in children] == ["8"] * 6


def test_without_cuda_core_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> object:
        raise CompilerError("cuda.core cannot be imported")

    monkeypatch.setattr(nvrtc, "_compiler", absent)
    assert CudaBackend().unavailable(H200) == ["cuda.core cannot be imported"]


def test_other_gpus_get_a_reason_and_no_warning() -> None:
    older = replace(H200, name="NVIDIA A100", capability=(8, 0))
    assert CudaBackend().unavailable(older) == []
    assert CudaBackend().reasons(A.problem(torch.float32, "high"), older) == [
        "runs on Hopper (compute capability 9.0) only"
    ]


@needs_nvrtc
@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5], SHAPES[9], SHAPES[14]], ids=str)
def test_python_and_the_kernel_agree_on_shared_memory(
    shape: Shape, dtype: torch.dtype, precision: str, tmp_path: Path
) -> None:
    problem = shape.problem(dtype, precision)
    config = hopper_candidates.configuration(problem, UNITS)
    if config is None:
        return
    build = built(problem)
    main = tmp_path / "size.cu"
    text = f'#include "{cuda.SOURCES / "walk.cuh"}"\nstatic_assert(sepconv::kSharedBytes == {{}}, "differs");'
    size = hopper.shared_bytes(problem, config)
    for claimed, right in ((size, True), (size + 16, False)):
        main.write_text(text.format(claimed))
        wanted = nvrtc.artifact(nvrtc.Build("size", main, build.defines, "sm_90a"))
        if right:
            nvrtc.compiled(wanted, tmp_path)
        else:
            with pytest.raises(CompilerError, match="differs"):
                nvrtc.compiled(wanted, tmp_path)


CASES = [
    ({"layout": "channels_last", "in_channels": 30}, "input pixels of 120 bytes"),
    ({"layout": "channels_last", "dilation": (1, 12)}, "reaches 24 columns"),
    ({"depth_multiplier": 2}, "multiplier"),
    ({"layout": "channels_last", "in_channels": 1200}, "do not fit in shared memory"),
    ({"in_channels": 62, "out_channels": 1100}, "do not fit in shared memory"),
    ({"dtype": torch.float16, "in_size": (64, 63)}, "multiple of 16"),
    ({"dtype": torch.float64}, "float64"),
    ({"direction": "backward"}, "forward pass only"),
]


@pytest.mark.parametrize(("change", "word"), CASES, ids=str)
def test_what_it_cannot_take_yet_has_a_reason(change: dict[str, object], word: str) -> None:
    problem = replace(A.problem(torch.float32, "high"), **change)
    assert any(word in reason for reason in CudaBackend().reasons(problem, H200))
