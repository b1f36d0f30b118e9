"""What the machine is, and PyTorch's own float32 switches around an exact computation."""

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sepconv.device import Device, describe, in_full_float32, is_capturing, resolve_precision

SWITCHES: dict[str, tuple[Any, ...]] = {
    "cpu": (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul),
    "cuda": (torch.backends.cudnn.conv, torch.backends.cuda.matmul),
}
REDUCED = {"cpu": "bf16", "cuda": "tf32"}


@pytest.fixture(params=["cpu", "cuda"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kind of device whose switches are put back after the test; no such device is needed."""
    before = [switch.fp32_precision for switch in SWITCHES[request.param]]
    yield request.param
    for switch, value in zip(SWITCHES[request.param], before, strict=True):
        switch.fp32_precision = value


def _set(kind: str, value: str) -> None:
    for switch in SWITCHES[kind]:
        switch.fp32_precision = value


def _values(kind: str) -> list[str]:
    return [switch.fp32_precision for switch in SWITCHES[kind]]


def test_describe(device: str) -> None:
    record = describe(torch.device(device))
    assert record.kind == device
    assert record.name
    assert record.units >= 1
    assert record.memory > 1 << 20
    assert record.name in str(record)
    assert record is describe(torch.device(device))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.kind = "other"
    if device == "cuda":
        assert record.capability == torch.cuda.get_device_capability()
        assert f"sm_{record.capability[0]}{record.capability[1]}" in str(record)
    else:
        assert record.isa


def test_a_device_without_data_stands_for_itself() -> None:
    assert describe(torch.device("meta")) == Device("meta", "meta")
    assert "meta" in str(describe(torch.device("meta")))


def test_nothing_is_captured_outside_of_a_graph(device: str) -> None:
    assert is_capturing(device) is False
    assert is_capturing("meta") is False


@pytest.mark.parametrize("precision", [None, "ieee", "high", "tf32"])
def test_precision_speaks_for_float32_on_cuda_alone(precision: str | None) -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert resolve_precision(precision, dtype, "cuda") == "ieee"
    for other in ("cpu", "meta"):
        assert resolve_precision(precision, torch.float32, other) == "ieee"
    if precision:
        assert resolve_precision(precision, torch.float32, "cuda") == precision


@pytest.mark.parametrize(("switch", "expected"), [("tf32", "high"), ("ieee", "ieee")])
def test_an_open_precision_reads_the_switch(switch: str, expected: str) -> None:
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = switch
    try:
        assert resolve_precision(None, torch.float32, "cuda") == expected
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


def test_exact_calls_raise_the_switches_and_put_them_back(kind: str) -> None:
    _set(kind, REDUCED[kind])
    assert in_full_float32(kind, _values, kind) == ["ieee", "ieee"]
    assert _values(kind) == [REDUCED[kind]] * 2


def test_exact_calls_inside_each_other(kind: str) -> None:
    def outer(value: int, *, more: int) -> int:
        assert in_full_float32(kind, _values, kind) == ["ieee", "ieee"]
        assert _values(kind) == ["ieee", "ieee"]
        return value + more

    _set(kind, REDUCED[kind])
    assert in_full_float32(kind, outer, 3, more=4) == 7
    assert _values(kind) == [REDUCED[kind]] * 2


def test_exact_calls_put_the_switches_back_after_an_error(kind: str) -> None:
    _set(kind, REDUCED[kind])
    with pytest.raises(ZeroDivisionError):
        in_full_float32(kind, lambda: 1 / 0)
    assert _values(kind) == [REDUCED[kind]] * 2


def test_exact_calls_touch_nothing_where_all_is_exact(kind: str) -> None:
    _set(kind, "ieee")
    assert in_full_float32(kind, _values, kind) == ["ieee", "ieee"]
    assert _values(kind) == ["ieee", "ieee"]


def test_exact_calls_of_an_unknown_device() -> None:
    assert in_full_float32("meta", lambda: 3) == 3


def test_exact_calls_from_several_threads(kind: str) -> None:
    _set(kind, REDUCED[kind])
    wrong: list[list[str]] = []

    def work() -> None:
        for _ in range(200):
            seen = in_full_float32(kind, _values, kind)
            if seen != ["ieee", "ieee"]:
                wrong.append(seen)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert _values(kind) == [REDUCED[kind]] * 2
