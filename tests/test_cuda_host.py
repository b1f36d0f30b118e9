"""What the host does for a kernel on a GPU, with a driver that only notes what it is told: no GPU, and nothing computed."""

import ctypes
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_cases import PATCHES, SHAPES, UNITS, A, B, Shape

from sepconv.backends import cuda, cuda_driver
from sepconv.jit import nvrtc
from sepconv.problem import Operands, Problem
from sepconv.tuning import hopper, hopper_candidates

SMS, CLUSTERS, CACHE = 132, 60, 60 << 20


class Driver:
    """Every function gives `status`; the names of those that were called are kept, with their arguments."""

    status = 0

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.parameters: list[bytes] = []  # of launches

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cuOccupancyMaxActiveClusters":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int))[0] = CLUSTERS
            if name == "cuLaunchKernelEx":
                parameter = ctypes.c_void_p.from_address(arguments[2].value)
                self.parameters.append(ctypes.string_at(parameter.value, ctypes.sizeof(cuda.Call)))
            return self.status

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    told = Driver()
    monkeypatch.setattr(cuda_driver, "driver", lambda: told)
    monkeypatch.setattr(nvrtc, "cubin", lambda _: b"machine code")
    monkeypatch.setattr(
        cuda_driver, "empty", lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
    )
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    facts = SimpleNamespace(multi_processor_count=SMS, L2_cache_size=CACHE)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    cuda._kernel.cache_clear()
    yield told
    cuda._kernel.cache_clear()


def kernel_of(problem: Problem) -> cuda.Kernel:
    config = hopper_candidates.configuration(problem, UNITS)
    assert config is not None
    return cuda._kernel(problem, config, 0)


def call_of(problem: Problem) -> cuda.Call:
    return cuda.Call.from_buffer_copy(ctypes.string_at(kernel_of(problem).launch().address, ctypes.sizeof(cuda.Call)))


def grid_of(problem: Problem) -> int:
    return int(kernel_of(problem).launch()._config.grid_x)


def operands_of(problem: Problem) -> Operands:
    make = {"dtype": problem.dtype}
    x = torch.zeros(problem.batch, problem.in_channels, *problem.in_size, **make)
    ones = (1,) * problem.rank
    depthwise = torch.zeros(problem.in_channels, 1, *problem.kernel_size, **make)
    return Operands(
        x, depthwise, torch.zeros(problem.out_channels, problem.in_channels, *ones, **make), None, None, None
    )


def test_a_launch_has_the_grid_the_shared_memory_and_the_stream(driver: Driver) -> None:
    problem = replace(B, batch=1, size=(1024,)).problem(torch.float32, "high")
    kernel = kernel_of(problem)
    y = kernel.compute(operands_of(problem))
    assert y.shape == (1, 512, 1024)
    ((config, *_),) = driver.named("cuLaunchKernelEx")
    how = cuda_driver.LaunchConfig.from_address(config.value)
    assert (how.grid_x, how.grid_y, how.grid_z) == (1024 // 64 * 512 // hopper.PASS, 1, 1)  # fewer than there are SMs
    chosen = hopper_candidates.configuration(problem, UNITS)
    assert chosen is not None
    assert (how.block_x, how.block_y, how.block_z) == (cuda.THREADS, 1, 1)
    assert (how.shared, how.stream, how.count) == (hopper.shared_bytes(problem, chosen), 77, 0)


def test_a_kernel_runs_on_the_device_of_its_operands_whichever_is_current(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, of_results = [0], []

    @contextmanager
    def other_device(device: int):
        current.append(device)
        yield
        current.pop()

    def empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        of_results.append(current[-1])
        return torch.empty_strided(size, stride, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "device", other_device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[-1])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device)
    monkeypatch.setattr(cuda_driver, "empty", empty)
    problem = replace(B, batch=1, size=(1024,)).problem(torch.float32, "high")
    config = hopper_candidates.configuration(problem, UNITS)
    assert config is not None
    streams = []
    for device in (1, 0, 1):
        cuda._kernel(problem, config, device).compute(operands_of(problem))
        launched = driver.named("cuLaunchKernelEx")[-1][0]
        streams.append(cuda_driver.LaunchConfig.from_address(launched.value).stream)
    assert (streams, of_results, current) == ([71, 70, 71], [1, 0, 1], [0])
    assert len(driver.named("cuModuleLoadData")) == 2  # once on each device


def test_no_more_clusters_than_run_at_once(driver: Driver) -> None:
    problem = replace(A, outputs=256).problem(torch.float16, "ieee")
    config = hopper_candidates.configuration(problem, UNITS)
    assert config is not None
    assert config.cluster == 2
    assert grid_of(problem) == 2 * CLUSTERS
    assert grid_of(A.problem(torch.float16, "ieee")) == SMS


@pytest.mark.parametrize(
    ("items", "most", "right"), [(1024, 132, 128), (132, 132, 132), (133, 132, 132), (64, 60, 60), (5, 132, 5)]
)
def test_blocks_have_as_many_items_each_where_few_are_left_out_for_it(items: int, most: int, right: int) -> None:
    assert cuda._walkers(items, most) == right


def test_input_stays_in_l2_where_the_result_does_not_fit(driver: Driver) -> None:
    small, large = (replace(A, batch=n).problem(torch.float32, "high") for n in (1, 16))  # results of 128 MiB and 2 GiB
    tile_row = 64 * 128 * 4
    assert [call_of(p).stays for p in (small, large)] == [-(-CACHE // (SMS * tile_row))] * 2
    assert call_of(replace(A, batch=1, size=(256, 256)).problem(torch.float32, "high")).stays == 0
    assert call_of(B.problem(torch.float32, "high")).stays == 0  # whole windows
    clusters = replace(A, outputs=256).problem(torch.float16, "ieee")
    assert call_of(clusters).stays == -(-CACHE // (CLUSTERS * 64 * 128 * 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_boxes_are_what_a_stage_a_result_and_a_part_of_the_weights_hold(driver: Driver, dtype: torch.dtype) -> None:
    problem = B.problem(dtype, "high" if dtype is torch.float32 else "ieee")
    kernel_of(problem)
    maps = driver.named("cuTensorMapEncodeTiled")
    boxes = [tuple(arguments[6]) for arguments in maps]
    sizes = [tuple(arguments[4]) for arguments in maps]
    lead = 32 // dtype.itemsize
    assert boxes == [(128 + 2 * lead, 1, 16, 1), (128 // dtype.itemsize, 1, 64, 1), (128 // dtype.itemsize, 64)]
    assert sizes == [(4096, 1, 256, 32), (4096, 1, 512, 32), (256, 512)]


def test_a_tensor_map_is_changed_only_where_its_tensor_is_another(driver: Driver) -> None:
    problem = replace(B, batch=1, size=(1024,)).problem(torch.float16, "ieee")
    launch = kernel_of(problem).launch()

    def fill(*addresses: int) -> None:
        assert launch.fill(addresses)
        launch.addresses = addresses

    for _ in range(3):
        fill(0x100, 0x200, 0x300, 0, 0x400, 0, 0x500)
    assert [tensor for _, tensor in driver.named("cuTensorMapReplaceAddress")] == [0x100, 0x500, 0x300]
    fill(0x100, 0x200, 0x700, 0, 0x400, 0, 0x500)
    ((address, tensor),) = driver.named("cuTensorMapReplaceAddress")[3:]
    assert tensor == 0x700
    assert address == launch.address + cuda.Call.weight_map.offset
    call = cuda.Call.from_address(launch.address)
    assert (call.x, call.depthwise_weight, call.pointwise_weight) == (0x100, 0x200, 0x700)
    assert (call.depthwise_bias, call.pointwise_bias, call.y) == (None, 0x400, 0x500)


def test_weights_that_stay_need_no_map(driver: Driver) -> None:
    problem = SHAPES[0].problem(torch.float16, "ieee")
    kernel, operands = kernel_of(problem), operands_of(problem)
    kernel.compute(operands)
    assert len(driver.named("cuTensorMapEncodeTiled")) == 2
    assert operands.pointwise_weight.data_ptr() not in [at for _, at in driver.named("cuTensorMapReplaceAddress")]


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        (replace(B, batch=1, size=(1024,)), torch.float32, "pointwise_weight"),
        (PATCHES, torch.float16, "depthwise_weight"),
        (replace(PATCHES, biases=(True, False)), torch.float16, "depthwise_bias"),
    ],
    ids=str,
)
def test_what_is_not_on_sixteen_bytes_is_copied(driver: Driver, shape: Shape, dtype: torch.dtype, name: str) -> None:
    problem = shape.problem(dtype, "high" if dtype is torch.float32 else "ieee")
    operands = operands_of(problem)
    usual = operands._replace(depthwise_bias=torch.zeros(shape.channels, dtype=dtype))
    unaligned = torch.zeros(getattr(usual, name).numel() + 1, dtype=dtype)[1:].view(getattr(usual, name).shape)
    operands = operands._replace(**{name: unaligned})
    kernel = kernel_of(problem)
    assert unaligned.data_ptr() % 16
    assert kernel.compute_dense(operands) is None
    assert kernel.compute(operands) is not None
    call = cuda.Call.from_buffer_copy(driver.parameters[-1])
    assert getattr(call, name) % 16 == 0
    assert getattr(call, name) != unaligned.data_ptr()
    assert not any(at % 16 for _, at in driver.named("cuTensorMapReplaceAddress"))


def test_what_the_driver_refuses_is_said(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "status", 1)
    with pytest.raises(RuntimeError, match=r"CUDA refused loading of a fused kernel: unknown \(error 1\)"):
        kernel_of(A.problem(torch.float16, "ieee"))
