"""Memory of large results that is used again: never while anybody can still see it, and not beyond the limit."""

import copy
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from calls import same_bits
from torch import Tensor

import sepconv
from sepconv import ops, settings
from sepconv.backends import results

SHAPE, STRIDES = (2, 128, 32), (4096, 32, 1)
SIZE = 4 * 2 * 128 * 32
MIB = 1 << 20
LIKE = torch.zeros(1)


@pytest.fixture(autouse=True)
def _small_results_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(settings.KEEP_RESULTS.name, raising=False)
    monkeypatch.setattr(results, "SMALLEST", SIZE)
    results.forget()
    yield
    results.forget()


def fresh(shape: tuple[int, ...] = SHAPE, strides: tuple[int, ...] = STRIDES) -> Tensor:
    return results.empty(LIKE, shape, strides)


def separable(x: Tensor, **keywords: Any) -> Tensor:
    channels = x.shape[1]
    depthwise = torch.linspace(-1, 1, channels * 9).reshape(channels, 1, 3, 3)
    pointwise = torch.linspace(-1, 1, 8 * channels).reshape(8, channels, 1, 1)
    return sepconv.separable_conv2d(x, depthwise, pointwise, padding=1, **keywords)


def inputs(value: float = 1.0) -> Tensor:
    return torch.full((1, 4, 48, 48), value)


# --- used again


def test_this_pytorch_says_who_holds_a_storage() -> None:
    assert results._tells_who_holds()


def test_a_result_lies_where_a_dead_one_was() -> None:
    first = fresh()
    address = first.data_ptr()
    del first
    again = fresh()
    assert again.data_ptr() == address
    assert again.shape == SHAPE
    assert again.stride() == STRIDES


def test_other_dtypes_and_strides_of_the_same_size() -> None:
    address = fresh().data_ptr()
    half = results.empty(LIKE.bfloat16(), (2, 128, 64), (128 * 64, 1, 128))
    assert half.data_ptr() == address
    assert half.dtype is torch.bfloat16
    assert half.stride() == (128 * 64, 1, 128)


def test_a_call_uses_the_memory_of_the_one_before() -> None:
    y = separable(inputs())
    address, expected = y.data_ptr(), y.clone()
    del y
    again = separable(inputs())
    assert again.data_ptr() == address
    assert same_bits(again, expected)


def test_a_small_result_is_not_kept() -> None:
    small = fresh((2, 128, 31), (128 * 31, 31, 1))
    assert not small.untyped_storage().nbytes() >= results.SMALLEST
    assert not results._results()._blocks


# --- never while anybody can still see it

HOLDERS: dict[str, Callable[[Tensor], object]] = {
    "the tensor": lambda y: y,
    "a view": lambda y: y[1:, 5, 3:4],
    "a detached tensor": Tensor.detach,
    "a tensor of other shape": lambda y: y.view(-1),
    "a tensor of other dtype": lambda y: y.view(torch.int16),
    "a tensor that took its data": lambda y: torch.nn.Parameter(torch.empty(0)).data.set_(y),
    "a numpy array": Tensor.numpy,
    "a view of a numpy array": lambda y: y.numpy()[1:, ::2],
    "a memoryview": lambda y: memoryview(y.numpy()),
    "a DLPack capsule": torch.utils.dlpack.to_dlpack,
    "a tensor from DLPack": torch.from_dlpack,
    "an untyped storage": Tensor.untyped_storage,
    "a slice of a storage": lambda y: torch.empty(0).set_(y.untyped_storage(), 7, (2,), (1,)),
    "a typed storage": lambda y: torch.storage.TypedStorage(
        wrap_storage=y.untyped_storage(), dtype=y.dtype, _internal=True
    ),
    "a weak reference to the storage": lambda y: weakref.ref(y.untyped_storage()),
    "a list": lambda y: [[y]],
    "a graph that saved it": lambda y: y.requires_grad_().square(),
    "a lazy clone": lambda y: torch._lazy_clone(y),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_not_handed_out(name: str) -> None:
    y = fresh().fill_(7)
    address = y.data_ptr()
    holder = HOLDERS[name](y)
    del y
    others = [fresh().fill_(i) for i in range(3)]
    if name != "a lazy clone":  # a copy in waiting, which takes the memory over or leaves it
        assert address not in [other.data_ptr() for other in others]
    for value in values_of(holder):
        assert (value == 7).all(), "someone wrote into it"
    del holder


def values_of(holder: object) -> list[Tensor]:
    if isinstance(holder, Tensor) and holder.dtype is torch.float32 and holder.grad_fn is None:
        return [holder]
    return []


@pytest.mark.parametrize("name", [name for name in HOLDERS if name not in ("a lazy clone",)])
def test_what_is_held_no_longer_is_handed_out_again(name: str) -> None:
    y = fresh()
    address = y.data_ptr()
    holder = HOLDERS[name](y)
    del y, holder
    assert fresh().data_ptr() == address


def test_a_result_that_backward_needs() -> None:
    x = inputs().requires_grad_()
    y = separable(x)
    expected = y.detach().clone()
    loss = y.square().sum()
    del y
    for value in (2.0, 3.0):
        separable(inputs(value))
    (grad,) = torch.autograd.grad(loss, x)
    x = inputs().requires_grad_()
    (right,) = torch.autograd.grad(separable(x), x, 2 * expected)
    assert same_bits(grad, right)


# --- what was changed is dropped

CHANGES: dict[str, Callable[[Tensor], object]] = {
    "resized to more": lambda y: y.resize_(4 * SIZE),
    "freed": lambda y: y.untyped_storage().resize_(0),
    "moved to shared memory": Tensor.share_memory_,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_storage_is_not_handed_out(name: str) -> None:
    y = fresh()
    CHANGES[name](y)
    address = y.data_ptr()
    del y
    again = fresh()
    assert again.data_ptr() != address or name == "freed"
    assert again.untyped_storage().nbytes() == SIZE
    assert not again.is_shared()
    again.fill_(1)


def test_a_result_is_an_ordinary_tensor() -> None:
    for _ in range(2):
        y = separable(inputs())
        assert y.untyped_storage().resizable()
        assert y.untyped_storage().nbytes() == y.numel() * y.element_size()
        assert not y._is_view()
        assert not y.is_inference()
        assert y.is_leaf
        assert same_bits(copy.deepcopy(y), y)
        del y


# --- modes, threads, processes


def test_inference_mode_leaves_no_trace() -> None:
    with torch.inference_mode():
        first = separable(inputs())
        assert first.is_inference()
        address = first.data_ptr()
        del first
    y = separable(inputs().requires_grad_())
    assert y.data_ptr() == address
    assert not y.is_inference()
    y.sum().backward()


def test_in_the_middle_of_a_device_context() -> None:
    with torch.device("meta"):
        results._tells_who_holds.cache_clear()
        assert fresh().device.type == "cpu"
        assert results._tells_who_holds()


def test_compiled() -> None:
    compiled = torch.compile(lambda x: separable(x) + separable(2 * x), backend="aot_eager", fullgraph=True)
    x = inputs()
    assert same_bits(compiled(x), separable(x) + separable(2 * x))


def test_threads_get_memory_of_their_own() -> None:
    def work(number: int) -> bool:
        kept = []
        for step in range(50):
            y = fresh().fill_(100 * number + step)
            kept = [*kept[-1:], (y, 100 * number + step)]
            if not all((t == value).all() for t, value in kept):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    """Even where another thread of the parent held the lock."""
    kept = results._results()
    y = fresh()
    with kept._lock:
        child = os.fork()
        if child == 0:
            z = fresh()
            os._exit(0 if z.data_ptr() != y.data_ptr() and results._results() is not kept else 1)
    assert os.waitpid(child, 0)[1] == 0


# --- the limit


def blocks() -> list[int]:
    return [block.size for block in results._results()._blocks]


def test_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.KEEP_RESULTS.name, "1")
    ops.forget_plans()
    held = [fresh() for _ in range(MIB // SIZE + 5)]
    assert sum(blocks()) == MIB
    assert len({y.data_ptr() for y in held}) == len(held)
    large = fresh((MIB // 2,), (1,))
    assert large.untyped_storage().nbytes() == 2 * MIB
    assert sum(blocks()) == MIB


def test_the_oldest_goes_first() -> None:
    kept = results.Results(3 * SIZE)
    first, second, third = (kept.empty(LIKE, SHAPE, STRIDES) for _ in range(3))
    addresses = [y.data_ptr() for y in (first, second, third)]
    del first
    again = kept.empty(LIKE, SHAPE, STRIDES)
    assert again.data_ptr() == addresses[0]
    other = kept.empty(LIKE, (SIZE // 8,), (1,))
    found = [block.storage.data_ptr() for block in kept._blocks]
    assert found == [addresses[2], addresses[0], other.data_ptr()]


def test_nothing_is_kept_where_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.KEEP_RESULTS.name, "0")
    ops.forget_plans()
    separable(inputs())
    fresh()
    assert not blocks()


@pytest.mark.parametrize("what", ["no count", "a count that misses holders"])
def test_a_pytorch_that_does_not_say_who_holds_a_storage(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "no count":
        monkeypatch.delattr(torch._C, "_storage_Use_Count")
    else:
        monkeypatch.setattr(results.Block, "_state", lambda _: (1, 2))
    results._tells_who_holds.cache_clear()
    try:
        fresh()
        assert not blocks()
    finally:
        monkeypatch.undo()
        results._tells_who_holds.cache_clear()


def test_forgetting_gives_the_memory_back() -> None:
    fresh()
    assert blocks()
    ops.forget_plans()
    assert not blocks()
