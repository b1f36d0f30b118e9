"""The modules: a plain pair in every respect but speed, and each child's own call where it does more than convolve."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from budget import check
from calls import MODULES, same_bits
from cases import activation
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import sepconv
from sepconv.errors import ArgumentTypeError, ArgumentValueError
from sepconv.problem import Activation

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (17,), 2: (9, 8), 3: (5, 6, 7)}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"stride": 2, "padding": 1, "bias": True},
    {"padding": "same", "dilation": 2},
    {"padding": "valid"},
    {"depth_multiplier": 3, "padding": 1, "bias": True},
    {"padding": 2, "padding_mode": "reflect", "bias": True},
    {"padding": 2, "padding_mode": "replicate", "stride": 2},
    {"padding": 2, "padding_mode": "circular", "depth_multiplier": 2},
    {"padding": "same", "padding_mode": "reflect", "dilation": 2},
    {"padding": 1, "depthwise_activation": "relu6", "pointwise_activation": ("leaky_relu", 0.2), "bias": True},
]
ranks = pytest.mark.parametrize("rank", [1, 2, 3])


class Pair(nn.Module):
    """What people write today: two convolutions as attributes."""

    def __init__(
        self,
        rank: int,
        C: int,
        O: int,  # noqa: E741
        K: int,
        bias: bool = False,
        depth_multiplier: int = 1,
        depthwise_activation: Any = None,
        pointwise_activation: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.words = depthwise_activation, pointwise_activation
        self.depthwise = CONVS[rank](C, C * depth_multiplier, K, groups=C, bias=bias, **options)
        self.pointwise = CONVS[rank](C * depth_multiplier, O, 1, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        first, second = (activation(word) for word in self.words)
        y = second(self.pointwise(first(self.depthwise(x))))
        return y if residual is None else y + residual


def both(rank: int, **options: Any) -> tuple[Any, Pair]:
    """A module and a plain pair with the same seed."""
    torch.manual_seed(3)
    module = MODULES[rank](4, 6, 3, **options)
    torch.manual_seed(3)
    return module, Pair(rank, 4, 6, 3, **options)


def sample(rank: int, N: int = 2, C: int = 4) -> Tensor:
    return torch.randn(N, C, *SIZES[rank], generator=torch.Generator().manual_seed(5))


def agrees(module: Callable[..., Tensor], plain: nn.Module, *inputs: Tensor) -> None:
    """Hold the module's result to the budget of the pair's."""
    right = copy.deepcopy(plain).double()(*[t.double() for t in inputs])
    check(module(*inputs), right, plain(*inputs), torch.float32)


# --- equal to the pair


@ranks
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_seed_gives_the_same_parameters_and_results(rank: int, options: dict[str, Any], device: str) -> None:
    module, plain = both(rank, **options)
    ours, theirs = module.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    assert all(same_bits(ours[name], theirs[name]) for name in ours)
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in plain.named_parameters()]
    x = sample(rank).to(device)
    module.to(device), plain.to(device)
    agrees(module, plain, x)
    agrees(module, plain, x[0])
    residual = torch.randn_like(plain(x))
    agrees(module, plain, x, residual)


@ranks
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_those_of_the_pair(rank: int, options: dict[str, Any]) -> None:
    module, plain = both(rank, **options)
    exact = copy.deepcopy(plain).double()
    grads = []
    for m, x in ((module, sample(rank)), (exact, sample(rank).double()), (plain, sample(rank))):
        x.requires_grad_()
        m(x).tanh().sum().backward()
        grads.append([x.grad, *[p.grad for p in m.parameters()]])
    for ours, right, eager in zip(*grads, strict=True):
        check(ours, right, eager, torch.float32)


@ranks
def test_state_dicts_go_both_ways(rank: int) -> None:
    module, plain = MODULES[rank](4, 6, 3, bias=True), Pair(rank, 4, 6, 3, bias=True)
    module.load_state_dict(plain.state_dict(), strict=True)
    agrees(module, plain, sample(rank))
    other = Pair(rank, 4, 6, 3, bias=True)
    other.load_state_dict(module.state_dict(), strict=True)
    agrees(module, other, sample(rank))


@ranks
def test_the_children_are_real_convolutions(rank: int) -> None:
    module = MODULES[rank](4, 6, 3, depth_multiplier=2, bias=True)
    assert [type(child) for child in module.children()] == [CONVS[rank]] * 2
    assert [name for name, _ in module.named_children()] == ["depthwise", "pointwise"]
    assert (module.depthwise.groups, module.depthwise.out_channels, module.pointwise.in_channels) == (4, 8, 8)
    nn.init.ones_(module.depthwise.weight)
    module.apply(lambda m: nn.init.zeros_(m.bias) if isinstance(m, CONVS[rank]) else None)
    assert not module.pointwise.bias.any()


# --- pairs taken over and given back


@ranks
def test_from_pair_and_back_share_the_parameters(rank: int) -> None:
    plain = Pair(rank, 4, 6, 3, padding=1, bias=True)
    module = MODULES[rank].from_pair(plain.depthwise, plain.pointwise)
    assert type(module) is MODULES[rank]
    assert module.depthwise is plain.depthwise
    assert module.pointwise is plain.pointwise
    agrees(module, plain, sample(rank))
    depthwise, pointwise = module.to_pair()
    assert type(depthwise) is type(pointwise) is CONVS[rank]
    assert depthwise.weight is plain.depthwise.weight
    assert pointwise.bias is plain.pointwise.bias
    with torch.no_grad():
        plain.depthwise.weight.mul_(2)
    agrees(module, plain, sample(rank))


def test_from_pair_keeps_the_options_and_the_mode() -> None:
    plain = Pair(2, 4, 6, 3).eval()
    module = sepconv.SeparableConv2d.from_pair(
        plain.depthwise, plain.pointwise, depthwise_activation="silu", pointwise_activation="relu", precision="high"
    )
    assert not module.training
    assert module.precision == "high"
    plain.words = ("silu", "relu")
    agrees(module, plain, sample(2))


@pytest.mark.parametrize(
    ("depthwise", "pointwise", "words"),
    [
        (nn.Conv2d(4, 4, 3), nn.Conv2d(4, 6, 1), ("depthwise", "1 groups")),
        (nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 6, 1), ("depthwise", "2 groups")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 3), ("pointwise", "kernel (3, 3)")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1, stride=2), ("pointwise", "stride (2, 2)")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1, padding=1), ("pointwise", "padding (1, 1)")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1, groups=2), ("pointwise", "2 groups")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(5, 6, 1), ("pointwise", "5 channels")),
        (nn.Conv1d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1), ("depthwise", "Conv1d")),
        (nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 6), ("pointwise", "Linear")),
        (nn.ConvTranspose2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1), ("depthwise", "ConvTranspose2d")),
        (nn.LazyConv2d(4, 3, groups=4), nn.Conv2d(4, 6, 1), ("depthwise", "LazyConv2d")),
    ],
)
def test_from_pair_refuses_what_is_no_pair(depthwise: nn.Module, pointwise: nn.Module, words: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        sepconv.SeparableConv2d.from_pair(depthwise, pointwise)
    assert f"`{words[0]}`" in str(caught.value)
    for word in (*words[1:], "expected"):
        assert word in str(caught.value)


@pytest.mark.parametrize("bad", [None, 3, torch.zeros(3)])
def test_from_pair_refuses_what_is_no_module(bad: Any) -> None:
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match="`depthwise`"):
        sepconv.SeparableConv2d.from_pair(bad, nn.Conv2d(4, 6, 1))


# --- children that do more than their convolution


class _Counted(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class _Adapter(nn.Module):
    """Another module in a child's place, as adapters for fine-tuning put there."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.scale = base, nn.Parameter(torch.full((1,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * self.scale


def _own_forward(child: nn.Module) -> nn.Module:
    original = child.forward
    child.forward = lambda x: original(x) + 1
    return child


def _other_class(child: nn.Module) -> nn.Module:
    other = _Counted(child.in_channels, child.out_channels, child.kernel_size, groups=child.groups, bias=False)
    other.load_state_dict(child.state_dict())
    return other


def _hooked(register: str, hook: Callable[..., Any]) -> Callable[[nn.Module], nn.Module]:
    def change(child: nn.Module) -> nn.Module:
        getattr(child, register)(hook)
        return child

    return change


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "forward hook": _hooked("register_forward_hook", lambda m, i, o: o * 3),
    "forward hook with keywords": lambda c: (c.register_forward_hook(lambda m, a, k, o: o * 3, with_kwargs=True), c)[1],
    "forward pre-hook": _hooked("register_forward_pre_hook", lambda m, i: (i[0] + 1,)),
    "weight norm": parametrizations.weight_norm,
    "spectral norm": lambda c: parametrizations.spectral_norm(c.eval()),
    "old pruning": lambda c: prune.l1_unstructured(c, "weight", 0.5),
    "another class": _other_class,
    "another module": _Adapter,
    "own forward": _own_forward,
}


@pytest.mark.parametrize("name", ["depthwise", "pointwise"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_children_are_called_one_after_the_other(change: str, name: str) -> None:
    torch.manual_seed(3)
    module = sepconv.SeparableConv2d(4, 6, 3, depthwise_activation="silu", pointwise_activation="tanh")
    before = module(sample(2))
    setattr(module, name, CHANGES[change](getattr(module, name)))
    x = sample(2)
    y = module(x)
    expected = torch.tanh(module.pointwise(F.silu(module.depthwise(x))))
    assert same_bits(y, expected)
    if change != "weight norm":  # the one that keeps the weight's value
        assert not torch.equal(y, before)
    residual = torch.randn_like(y)
    assert same_bits(module(x, residual), expected + residual)
    y.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_children_are_called(kind: str) -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    called: list[str] = []
    for name, child in module.named_children():
        getattr(child, kind)(lambda *_, name=name: called.append(name))
    module(sample(2).requires_grad_()).sum().backward()
    assert called == ["pointwise", "depthwise"]


def test_a_removed_hook_leaves_a_plain_child() -> None:
    module, plain = both(2)
    called: list[int] = []
    handle = module.depthwise.register_forward_hook(lambda *_: called.append(1))
    module(sample(2))
    handle.remove()
    agrees(module, plain, sample(2))
    assert called == [1]


def test_hooks_of_the_module_itself_are_called() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    seen: list[torch.Size] = []
    module.register_forward_hook(lambda m, i, o: seen.append(o.shape))
    y = module(sample(2))
    assert seen == [y.shape]


def test_global_hooks_see_the_children() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: seen.append(type(m).__name__))
    try:
        module(sample(2))
    finally:
        handle.remove()
    assert seen == ["Conv2d", "Conv2d", "SeparableConv2d"]


def test_hooks_on_parameters_are_called() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    seen: list[str] = []
    module.depthwise.weight.register_hook(lambda g: seen.append("hook"))
    module.pointwise.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    module(sample(2)).sum().backward()
    assert sorted(seen) == ["accumulated", "hook"]


class DTensor(Tensor):
    """A stand-in by name: what a sharded child's weight is."""


@pytest.mark.parametrize("name", ["depthwise", "pointwise"])
def test_a_sharded_child_says_to_shard_the_parent(name: str) -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    child = getattr(module, name)
    child.weight = nn.Parameter(child.weight.detach().as_subclass(DTensor))
    with pytest.raises(ArgumentTypeError, match=f"`{name}_weight`.*[Ss]hard.*parent"):
        module(sample(2))


# --- as any module


@ranks
def test_copies_and_pickles(rank: int, tmp_path: Any) -> None:
    module, plain = both(rank, bias=True, padding=1, depthwise_activation=("leaky_relu", 0.3))
    module.precision = "high"
    x = sample(rank)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert same_bits(other(x), module(x))
        assert other.depthwise.weight is not module.depthwise.weight
        assert other.precision == "high"
    torch.save(module.state_dict(), tmp_path / "state.pt")
    fresh = MODULES[rank](4, 6, 3, bias=True, padding=1, depthwise_activation=("leaky_relu", 0.3))
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same_bits(fresh(x), module(x))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert same_bits(torch.load(file, weights_only=False)(x), module(x))
    agrees(module, plain, x)


@ranks
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes(rank: int, dtype: torch.dtype) -> None:
    module, plain = both(rank, bias=True)
    module.to(dtype)
    assert {p.dtype for p in module.parameters()} == {dtype}
    right = plain.double()(sample(rank).to(dtype).double()) if dtype is torch.float64 else None
    y = module(sample(rank).to(dtype))
    assert y.dtype is dtype
    if right is not None:
        check(y, right, right, dtype)
    direct = MODULES[rank](4, 6, 3, dtype=dtype)
    assert {p.dtype for p in direct.parameters()} == {dtype}


@pytest.mark.parametrize(("rank", "fmt"), [(2, torch.channels_last), (3, torch.channels_last_3d)])
def test_channels_last_weights_decide_the_layout(rank: int, fmt: torch.memory_format) -> None:
    module, plain = both(rank, padding=1)
    module.to(memory_format=fmt)
    y = module(sample(rank))
    assert y.is_contiguous(memory_format=fmt)
    y.sum().backward()
    assert all(p.grad.stride() == torch.empty_like(p).stride() for p in module.parameters())
    agrees(module, plain, sample(rank))


def test_device_and_meta(device: str) -> None:
    module = sepconv.SeparableConv2d(4, 6, 3, device=device)
    assert {p.device.type for p in module.parameters()} == {device}
    empty = sepconv.SeparableConv2d(4, 6, 3, bias=True, device="meta")
    assert empty(torch.empty(2, 4, 9, 8, device="meta")).shape == (2, 6, 7, 6)
    real = empty.to_empty(device=device)
    for child in real.children():
        child.reset_parameters()
    assert real(sample(2).to(device)).isfinite().all()


def test_train_and_eval() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    assert module.training
    assert module.eval() is module
    assert not module.depthwise.training
    assert module.train().training
    x = sample(2)
    assert same_bits(module(x), module.eval()(x))


def test_freezing_a_child() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3)
    module.depthwise.requires_grad_(False)
    module(sample(2)).sum().backward()
    assert module.depthwise.weight.grad is None
    assert module.pointwise.weight.grad is not None


def test_repr() -> None:
    module = sepconv.SeparableConv2d(
        4, 6, 3, stride=2, depthwise_activation=("leaky_relu", 0.1), pointwise_activation="relu", precision="tf32"
    )
    text = repr(module)
    for word in (
        "SeparableConv2d(",
        "depthwise_activation=leaky_relu(0.1)",
        "pointwise_activation=relu",
        "precision=tf32",
    ):
        assert word in text
    assert "(depthwise): Conv2d(4, 4, kernel_size=(3, 3), stride=(2, 2), groups=4, bias=False)" in text
    assert "(pointwise): Conv2d(4, 6, kernel_size=(1, 1), stride=(1, 1), bias=False)" in text
    assert "activation" not in repr(sepconv.SeparableConv2d(4, 6, 3))


def test_precision_reaches_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import sepconv.nn as module_file

    seen: list[Any] = []
    original = module_file.call

    def spy(rank: int, operands: Any, words: Any) -> Tensor:
        seen.append(words[-1])
        return original(rank, operands, words)

    monkeypatch.setattr(module_file, "call", spy)
    for precision in (None, "ieee", "high", "tf32"):
        sepconv.SeparableConv2d(4, 6, 3, precision=precision)(sample(2))
    assert seen == [None, "ieee", "high", "tf32"]


@ranks
def test_compiled(rank: int) -> None:
    module, plain = both(rank, padding=1, bias=True, depthwise_activation="relu")
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    agrees(compiled, plain, sample(rank))
    compiled(sample(rank)).sum().backward()
    expected = copy.deepcopy(module)
    expected.zero_grad()
    expected(sample(rank)).sum().backward()
    assert all(same_bits(a.grad, b.grad) for a, b in zip(module.parameters(), expected.parameters(), strict=True))


def test_compiled_with_a_hooked_child_and_with_reflected_padding() -> None:
    module = sepconv.SeparableConv2d(4, 6, 3, padding=1, padding_mode="reflect")
    x = sample(2)
    torch._dynamo.reset()
    assert same_bits(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))
    module.depthwise.register_forward_hook(lambda m, i, o: o * 3)
    torch._dynamo.reset()
    assert same_bits(torch.compile(module, backend="aot_eager")(x), module(x))


def test_training_goes_as_the_pair_trains() -> None:
    module, plain = both(2, padding=1, bias=True, depthwise_activation="relu")
    exact = copy.deepcopy(plain).double()
    x, target = sample(2), torch.randn(2, 6, 9, 8)
    for m, dtype in ((module, torch.float32), (plain, torch.float32), (exact, torch.float64)):
        optimizer = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(m(x.to(dtype)), target.to(dtype)).backward()
            optimizer.step()
    for ours, right, eager in zip(module.parameters(), exact.parameters(), plain.parameters(), strict=True):
        check(ours.detach(), right.detach(), eager.detach(), torch.float32)


# --- torch.fx and other users of `__torch_function__`


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_module_is_recorded_by_torch_fx_as_one_call(rank: int) -> None:
    module = (sepconv.SeparableConv1d, sepconv.SeparableConv2d, sepconv.SeparableConv3d)[rank - 1](
        4, 6, 3, padding=1, bias=True, depthwise_activation="relu", pointwise_activation=("leaky_relu", 0.2)
    )
    graph = torch.fx.symbolic_trace(module)
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert [call for call in calls if call is not Activation] == [getattr(sepconv, f"separable_conv{rank}d")]
    x = torch.randn(2, 4, *(7, 5, 6)[:rank])
    assert torch.equal(graph(x), module(x))


def test_a_mode_sees_the_public_function() -> None:
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    module = sepconv.SeparableConv2d(4, 6, 3)
    x = torch.randn(2, 4, 7, 7)
    with Watch():
        y = module(x)
    assert sepconv.separable_conv2d in seen
    assert torch.equal(y, module(x))


def test_a_tensor_subclass_stays_one() -> None:
    class Named(torch.Tensor):
        pass

    module = sepconv.SeparableConv2d(4, 6, 3)
    y = module(torch.randn(2, 4, 7, 7).as_subclass(Named))
    assert type(y) is Named
