"""`scan` and `fuse`: what is found and what is not, that results stay, and that nothing else changes."""

import copy
import io
import json
import math
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import models
import pytest
import torch
from models import CHANNELS, WIDTH, BatchNormAct2d, Pair, Plain, depthwise, image, pointwise
from pytorchcv.model_provider import get_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import sepconv
from sepconv.bench.budget import Errors, budget, errors, within
from sepconv.bench.models import quartznet5x5, randomize_batchnorm

fuse_module = sys.modules["sepconv.fuse"]  # `sepconv.fuse` is the function


def sequence(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


def evaluated(model: nn.Module) -> nn.Module:
    """The model in eval mode, with BatchNorm that has something to fold."""
    return randomize_batchnorm(model.eval(), seed=1)


def first(result: Tensor | tuple) -> Tensor:
    return result[0] if isinstance(result, (tuple, list)) else result


def assert_same_results(before: nn.Module, after: nn.Module, *inputs: Tensor) -> None:
    """The error of `after` against float64 is at most twice that of `before` + 2 eps, in norm and in maximum."""
    assert_same_on_each(before, after, [inputs])


def assert_same_on_each(before: nn.Module, after: nn.Module, calls: list[tuple[Tensor, ...]]) -> None:
    """The same for the typical error, the geometric mean, of several calls: some models scatter it by a factor of 10."""
    exact = copy.deepcopy(before).double()
    found: dict[str, list[Errors]] = {"before": [], "after": []}
    with torch.no_grad():
        for inputs in calls:
            right = first(exact(*[x.double() if x.is_floating_point() else x for x in inputs]))
            found["before"].append(errors(first(before(*inputs)), right))
            found["after"].append(errors(first(after(*inputs)).cpu(), right))
    plain, ours = (Errors(*map(geometric_mean, zip(*e, strict=True))) for e in found.values())
    dtype = calls[0][0].dtype
    assert within(ours, budget(dtype, "ieee", plain)), (ours, plain)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(max(value, 1e-30)) for value in values]
    return math.exp(sum(logs) / len(logs))


def fused_copy(model: nn.Module, *inputs: Tensor) -> tuple[nn.Module, sepconv.Report]:
    """A fused copy of a model that gives the same results, and its report, which is that of `scan` as well."""
    fused = copy.deepcopy(model)
    found = sepconv.scan(fused)
    report = sepconv.fuse(fused)
    assert found == report
    assert_same_results(model, fused, *inputs)
    return fused, report


def modules_of(model: nn.Module) -> dict[str, int]:
    return {path: id(module) for path, module in model.named_modules(remove_duplicate=False)}


# --- what is fused

CHAINS: dict[str, Callable[[], nn.Module]] = {
    "nothing between": lambda: sequence(depthwise(), pointwise()),
    "BatchNorm between": lambda: sequence(depthwise(), nn.BatchNorm2d(CHANNELS), pointwise()),
    "BatchNorm and biases": lambda: sequence(
        depthwise(bias=True),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        pointwise(bias=True),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU6(),
    ),
    "no biases": lambda: sequence(
        depthwise(bias=False), nn.BatchNorm2d(CHANNELS), nn.SiLU(), pointwise(bias=False), nn.BatchNorm2d(WIDTH)
    ),
    "two BatchNorms before": lambda: sequence(
        depthwise(), nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS), nn.Tanh(), pointwise()
    ),
    "BatchNorm after the activation": lambda: sequence(
        depthwise(), nn.ReLU(), nn.BatchNorm2d(CHANNELS), pointwise(bias=False)
    ),
    "two BatchNorms after the activation": lambda: sequence(
        depthwise(), nn.Sigmoid(), nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS), pointwise()
    ),
    "BatchNorm on both sides of the activation": lambda: sequence(
        depthwise(), nn.BatchNorm2d(CHANNELS), nn.GELU(), nn.BatchNorm2d(CHANNELS), pointwise(), nn.BatchNorm2d(WIDTH)
    ),
    "BatchNorm without parameters": lambda: sequence(
        depthwise(), nn.BatchNorm2d(CHANNELS, affine=False), pointwise(), nn.BatchNorm2d(WIDTH, affine=False)
    ),
    "BatchNorm behind only": lambda: sequence(depthwise(), pointwise(), nn.BatchNorm2d(WIDTH), nn.Hardswish()),
    "two BatchNorms behind": lambda: sequence(depthwise(), pointwise(), nn.BatchNorm2d(WIDTH), nn.BatchNorm2d(WIDTH)),
    "BatchNorm behind the last activation": lambda: sequence(
        depthwise(), pointwise(), nn.ReLU(), nn.BatchNorm2d(WIDTH)
    ),
    "BatchNormAct2d": lambda: sequence(
        depthwise(),
        BatchNormAct2d(CHANNELS, nn.SiLU(), nn.Dropout(0.5)),
        pointwise(),
        BatchNormAct2d(WIDTH, nn.Identity()),
    ),
    "BatchNormAct2d behind BatchNorm": lambda: sequence(
        depthwise(), nn.BatchNorm2d(CHANNELS), BatchNormAct2d(CHANNELS), pointwise(), BatchNormAct2d(WIDTH)
    ),
    "Identity and dropout": lambda: sequence(
        depthwise(),
        nn.Identity(),
        nn.Dropout2d(0.5),
        nn.BatchNorm2d(CHANNELS),
        nn.Dropout(0.2),
        pointwise(),
        nn.Identity(),
    ),
    "multiplier, stride, dilation": lambda: sequence(
        depthwise(out_channels=12, stride=(2, 1), dilation=(1, 2), padding=(0, 3)), nn.BatchNorm2d(12), pointwise(12)
    ),
    "kernel 5x1, same": lambda: sequence(
        depthwise(kernel_size=(5, 1), padding="same"), nn.BatchNorm2d(CHANNELS), pointwise()
    ),
    "reflected padding": lambda: sequence(
        depthwise(padding=(2, 1), padding_mode="reflect"), nn.BatchNorm2d(CHANNELS), nn.ReLU(), pointwise()
    ),
    "circular padding, same": lambda: sequence(
        depthwise(padding="same", padding_mode="circular"), nn.BatchNorm2d(CHANNELS), pointwise(padding="same")
    ),
    "channels_last": lambda: sequence(depthwise(), nn.BatchNorm2d(CHANNELS), pointwise()).to(
        memory_format=torch.channels_last
    ),
    "a block with a residual": models.Residual,
    "a function behind": models.FunctionalAfter,
    "chain over two blocks": models.Blocks,
    "in part of what cannot be recorded": lambda: models.Outer(Pair()),
    "around what cannot be recorded": models.TwoParts,
    "a number read by what cannot be recorded": lambda: models.NumberReader(models.Features()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_fuses_a_chain(name: str) -> None:
    model = evaluated(CHAINS[name]())
    fused, report = fused_copy(model, image())
    assert len(report.fused) == 1, str(report)
    assert sum(isinstance(m, sepconv.SeparableConv2d) for m in fused.modules()) == 1
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules()) or "behind the last" in name
    folded = [path for path in report.fused[0].absorbed if isinstance(model.get_submodule(path), nn.BatchNorm2d)]
    with pytest.raises(sepconv.FuseError, match=" and ".join(folded)) if folded else nullcontext():
        fused.train()


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.SiLU(inplace=True), nn.Hardswish(), nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU(0.3),
    nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(), nn.Hardtanh(0.0, 6.0),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_absorbs_an_activation_on_either_side(activation: nn.Module) -> None:
    model = evaluated(
        sequence(
            depthwise(),
            nn.BatchNorm2d(CHANNELS),
            activation,
            pointwise(),
            nn.BatchNorm2d(WIDTH),
            copy.deepcopy(activation),
        )
    )
    fused, report = fused_copy(model, image() * 3)
    assert report.fused[0].absorbed == ("1", "2", "4", "5")
    assert all(type(fused[i]) is nn.Identity for i in (1, 2, 3, 4, 5))


def test_fuses_in_one_dimension() -> None:
    convolution = nn.Conv1d(6, 12, 5, 2, 4, 2, groups=6)
    model = evaluated(sequence(convolution, nn.BatchNorm1d(12), nn.ReLU(), nn.Conv1d(12, 5, 1), nn.BatchNorm1d(5)))
    fused, report = fused_copy(model, torch.randn(2, 6, 30))
    assert type(fused[0]) is sepconv.SeparableConv1d
    assert report.fused[0].description == (
        "depthwise 5 of 6 channels, multiplier 2, stride 2, dilation 2 + batch norm + relu; pointwise to 5 + batch norm"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_keeps_dtype_layout_and_mode(dtype: torch.dtype) -> None:
    model = evaluated(sequence(depthwise(), nn.BatchNorm2d(CHANNELS), pointwise())).to(dtype)
    model = model.to(memory_format=torch.channels_last)
    fused, _ = fused_copy(model, image(dtype=dtype))
    for old, new in ((model[0], fused[0].depthwise), (model[2], fused[0].pointwise)):
        assert new.weight.dtype == dtype
        assert new.weight.stride() == old.weight.stride()
        assert not new.weight.requires_grad
    assert not fused.training
    assert not any(m.training for m in fused.modules())


def test_what_follows_stays_and_is_named() -> None:
    assert (
        sepconv.scan(evaluated(models.Residual()))
        .fused[0]
        .description.endswith("; the residual add stays in the model's forward")
    )
    assert (
        sepconv.scan(evaluated(models.FunctionalAfter()))
        .fused[0]
        .description.endswith("; the function relu stays in the model's forward")
    )


def test_a_fused_model_has_nothing_left() -> None:
    model = evaluated(Pair())
    assert len(sepconv.fuse(model).fused) == 1
    assert sepconv.fuse(model).pairs == ()


# --- what is left alone, and why


def with_hook(path: str, register: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Pair()
        getattr(model.get_submodule(path), register)(lambda *_: None)
        return model

    return make


def changed(make: Callable[[], nn.Module], change: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def changed_model() -> nn.Module:
        model = evaluated(make())
        change(model)
        return model

    return changed_model


def own_forward(module: nn.Module) -> None:
    module.forward = module.forward


def odd_weight(module: nn.Module) -> None:
    class Sharded(nn.Parameter):
        pass

    module._parameters["weight"] = Sharded(module.weight.detach())


def complex_weight(module: nn.Module) -> None:
    module.weight = nn.Parameter(module.weight.detach().to(torch.complex64))


def large_scale(model: nn.Module) -> None:
    model.half().bn.weight.data.fill_(6e4)
    model.bn.running_var.fill_(1e-3)


def vanishing_scale(model: nn.Module) -> None:
    """Large values in the middle, scaled down by the BatchNorm: the scaled weights are below float16."""
    model[0].weight.data.mul_(1000)
    model[2].weight.data.fill_(1e-5)
    for tensor in (model[0].bias, model[2].bias, model[2].running_mean):
        tensor.data.zero_()
    model[3].weight.data.mul_(1e-3)
    model.half()


REASONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "3x3 behind": (
        lambda: sequence(depthwise(), nn.Conv2d(CHANNELS, WIDTH, 3)),
        "'1' is no 1x1 convolution of a pair: `pointwise` has kernel (3, 3), not 1",
    ),
    "strided": (lambda: sequence(depthwise(), pointwise(stride=2)), "`pointwise` has stride (2, 2), not 1"),
    "padded": (lambda: sequence(depthwise(), pointwise(padding=1)), "`pointwise` has padding (1, 1), not 0"),
    "grouped": (lambda: sequence(depthwise(), pointwise(groups=2)), "`pointwise` has 2 groups, not 1"),
    "other rank": (lambda: sequence(depthwise(), nn.Conv1d(CHANNELS, 2, 1)), "'1' is a Conv1d behind a Conv2d"),
    "GroupNorm": (
        lambda: sequence(depthwise(), nn.GroupNorm(2, CHANNELS), pointwise()),
        "'1' (GroupNorm) lies between and cannot be absorbed",
    ),
    "pooling": (
        lambda: sequence(depthwise(), nn.MaxPool2d(2), pointwise()),
        "'1' (MaxPool2d) lies between and cannot be absorbed",
    ),
    "unknown activation": (
        lambda: sequence(depthwise(), nn.ELU(), pointwise()),
        "'1' (ELU) lies between and cannot be absorbed",
    ),
    "hardtanh": (lambda: sequence(depthwise(), nn.Hardtanh(), pointwise()), "'1' (Hardtanh) lies between"),
    "two activations": (
        lambda: sequence(depthwise(), nn.ReLU(), nn.Tanh(), pointwise()),
        "'2' (Tanh) is a second activation between",
    ),
    "two activations, one of BatchNormAct2d": (
        lambda: sequence(depthwise(), nn.ReLU(), BatchNormAct2d(CHANNELS, nn.Tanh()), pointwise()),
        "'2' (BatchNormAct2d) is a second activation between",
    ),
    "BatchNormAct2d with an unknown activation": (
        lambda: sequence(depthwise(), BatchNormAct2d(CHANNELS, nn.ELU()), pointwise()),
        "'1.act' (ELU) cannot be absorbed",
    ),
    "BatchNormAct2d with an unknown dropout": (
        lambda: sequence(depthwise(), BatchNormAct2d(CHANNELS, drop=nn.RReLU()), pointwise()),
        "'1.drop' (RReLU) cannot be absorbed",
    ),
    "BatchNormAct2d with a hook inside": (
        changed(
            lambda: sequence(depthwise(), BatchNormAct2d(CHANNELS), pointwise()),
            lambda m: m[1].act.register_forward_hook(lambda *_: None),
        ),
        "'1.act' has hooks",
    ),
    "other subclass of BatchNorm": (
        lambda: sequence(depthwise(), models.MyNorm(CHANNELS), pointwise()),
        "'1' (MyNorm) lies between and cannot be absorbed",
    ),
    "BatchNorm in training mode": (
        changed(Pair, lambda m: m.bn.train()),
        "'bn' is a BatchNorm in training mode: its statistics still change; call `.eval()` first",
    ),
    "BatchNorm without statistics": (
        lambda: sequence(depthwise(), nn.BatchNorm2d(CHANNELS, track_running_stats=False), pointwise()),
        "'1' is a BatchNorm without running statistics",
    ),
    "depthwise in training mode": (
        changed(Pair, lambda m: m.dw.train()),
        "'dw' is in training mode, and 'bn' lies between",
    ),
    "pointwise in training mode": (
        changed(Pair, lambda m: m.pw.train()),
        "'pw' is in training mode, and 'bn' lies between",
    ),
    "dropout in training mode": (
        changed(lambda: sequence(depthwise(), nn.Dropout(), pointwise()), lambda m: m.train()),
        "'1' is a dropout in training mode",
    ),
    "function between": (
        models.Functional,
        "the result of 'bn' goes to the function relu in the forward of the model, not to a 1x1 convolution",
    ),
    "squeeze and excitation": (
        models.SqueezeExcite,
        "the result of 'act' goes to 2 places: 'se' (Sequential), the function mul in the forward of the model",
    ),
    "another consumer": (models.Branch, "goes to 2 places: 'bn' (BatchNorm2d), the output of the model"),
    "unused": (models.Unused, "the result of 'dw' is not used"),
    "not called": (models.NotCalled, "it is not called in the forward of the model"),
    "kept in an attribute": (models.Kept, "the result of 'bn' is kept in an attribute of the model"),
    "called twice": (models.CalledTwice, "'dw' is shared: it is called 2 times"),
    "activation called twice": (models.ActivationCalledTwice, "'act' is shared: it is called 2 times"),
    "registered twice": (models.Registered, "'bn' is shared: it is registered at 'bn', 'alias'"),
    "called by keyword": (models.Keywords, "'dw' is called with more than one positional argument"),
    "next called by keyword": (models.KeywordsBehind, "the result of 'dw' goes to 'bn' (BatchNorm2d)"),
    "hook on the border": (
        changed(models.Blocks, lambda m: m.first.register_forward_hook(lambda *_: None)),
        "'first' has hooks, and the chain crosses its border",
    ),
    "weight norm on the depthwise": (
        changed(Pair, lambda m: parametrizations.weight_norm(m.dw)),
        "'dw' has parametrizations",
    ),
    "orthogonal pointwise": (changed(Pair, lambda m: parametrizations.orthogonal(m.pw)), "'pw' has parametrizations"),
    "spectral norm by hooks": (changed(Pair, lambda m: nn.utils.spectral_norm(m.pw)), "'pw' has hooks"),
    "subclass depthwise": (
        lambda: sequence(models.Masked(CHANNELS, CHANNELS, 3, groups=CHANNELS), pointwise()),
        "'0' is a Masked, not an nn.Conv2d itself",
    ),
    "subclass pointwise": (
        lambda: sequence(depthwise(), models.Masked(CHANNELS, WIDTH, 1)),
        "the result of '0' goes to '1' (Masked), not to a 1x1 convolution",
    ),
    "forward of its own": (changed(Pair, lambda m: own_forward(m.dw)), "'dw' has a forward of its own"),
    "block with a forward of its own": (
        changed(lambda: sequence(Pair()), lambda m: own_forward(m[0])),
        "the forward of '0' cannot be traced: it has a forward of its own",
    ),
    "sharded weight": (changed(Pair, lambda m: odd_weight(m.pw)), "'pw' has a Sharded for a weight"),
    "complex weight": (changed(Plain, lambda m: complex_weight(m.conv_dw)), "'conv_dw' has weights of torch.complex64"),
    "two dtypes": (
        changed(Pair, lambda m: m.pw.double()),
        "the weights of 'dw' and 'pw' differ: torch.float32 on cpu and torch.float64 on cpu",
    ),
    "meta device": (changed(Pair, lambda m: m.to("meta")), "'bn' is on the meta device and has no values to fold"),
    "convolution on the meta device": (
        changed(Pair, lambda m: (m.dw.to("meta"), m.pw.to("meta"))),
        "its weights are on the meta device and have no values to fold BatchNorm into",
    ),
    "not finite in float16": (
        changed(Pair, large_scale),
        "the weights with BatchNorm folded in are not finite in float16",
    ),
    "lost in float16": (
        changed(
            lambda: sequence(depthwise(), nn.ReLU(), nn.BatchNorm2d(CHANNELS), pointwise(bias=False)), vanishing_scale
        ),
        "the weights with BatchNorm folded in lose more than a rounding in float16",
    ),
    "data-dependent": (
        models.DataDependent,
        "the forward of the model cannot be traced: symbolically traced variables cannot be used as inputs to control",
    ),
    "called by what cannot be traced": (
        lambda: models.Picker(sequence(depthwise(), pointwise())),
        "the forward of the model, which cannot be traced, calls 'part.0' by itself",
    ),
    "used later by what cannot be traced": (
        lambda: models.LatePicker(sequence(depthwise(), pointwise())),
        "the forward of the model, which cannot be traced, does more with 'part' than call it",
    ),
    "iterated over by what cannot be traced": (
        lambda: models.Iterator(sequence(depthwise(), pointwise())),
        "the forward of the model, which cannot be traced, does more with 'part' than call it",
    ),
    "entered by what cannot be traced": (
        lambda: models.MethodCaller(models.Features()),
        "the forward of the model, which cannot be traced, does more with 'part' than call it",
    ),
    "reads a weight": (models.ReadsWeight, "the forward of the model needs the modules as they are"),
    "reads a number": (models.ReadsNumber, "the forward of the model needs the modules as they are"),
    "looks at a type": (models.LooksAtType, "the forward does something else once the modules are replaced"),
    "list of modules": (models.ListOfModules, "the forward"),
    "cannot be copied": (
        models.CannotBeCopied,
        "the forward of the model cannot be traced: it cannot be copied (RuntimeError: one of a kind)",
    ),
} | {
    f"{register} of {path}": (with_hook(path, register), f"'{path}' has hooks")
    for path in ("dw", "bn", "act", "pw")
    for register in (
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_state_dict_post_hook",
        "register_state_dict_pre_hook",
        "register_load_state_dict_pre_hook",
        "register_load_state_dict_post_hook",
    )
}
ALREADY_SET = ("training mode", "two dtypes", "meta", "float16")


@pytest.mark.parametrize("name", REASONS)
def test_leaves_alone_and_says_why(name: str) -> None:
    make, text = REASONS[name]
    model = make()
    if not any(word in name for word in ALREADY_SET):
        evaluated(model)
    before = modules_of(model)
    report = sepconv.scan(model)
    assert sepconv.fuse(model) == report
    assert report.fused == ()
    assert text in report.left_alone[0].reason
    assert modules_of(model) == before
    assert not model._load_state_dict_pre_hooks


def test_a_reason_names_the_pointwise_where_there_is_one() -> None:
    assert sepconv.scan(sequence(depthwise(), pointwise(groups=2))).pairs[0].pointwise == "1"
    assert sepconv.scan(sequence(depthwise(), nn.ELU(), pointwise())).pairs[0].pointwise is None


def test_one_pair_that_is_refused_does_not_take_the_others_along() -> None:
    model = evaluated(sequence(Pair(), nn.Conv2d(WIDTH, CHANNELS, 1), models.ReadsWeight()))
    report = fused_copy(model, image())[1]
    assert [pair.fused for pair in report.pairs] == [True, False]


def test_a_hooked_border_behind_the_pair_ends_its_chain() -> None:
    model = evaluated(sequence(sequence(depthwise(), pointwise()), nn.BatchNorm2d(WIDTH)))
    seen = []
    model[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    fused, report = fused_copy(model, image())
    assert report.fused[0].absorbed == ()
    seen.clear()
    model(image()), fused(image())
    torch.testing.assert_close(seen[1], seen[0])


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [torch.fx.symbolic_trace, nn.DataParallel, compiled])
def test_fuses_inside_a_wrapper(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = evaluated(sequence(Pair()))
    wrapped = wrap(copy.deepcopy(model))
    assert len(sepconv.fuse(wrapped).fused) == 1
    assert_same_results(model, wrapped, image())


@pytest.mark.parametrize(
    "surroundings",
    [torch.inference_mode, lambda: torch.device("meta"), lambda: torch.autocast("cpu"), torch.no_grad],
    ids=["inference mode", "default device", "autocast", "no_grad"],
)
def test_surroundings_do_not_matter(surroundings: Callable[[], AbstractContextManager]) -> None:
    model = evaluated(Pair())
    fused = copy.deepcopy(model)
    with surroundings():
        assert len(sepconv.fuse(fused).fused) == 1
    assert_same_results(model, fused, image())
    assert fused(image().requires_grad_()).requires_grad


# --- models of other people


def model_of(name: str) -> nn.Module:
    """A model without a download; sizes that it has to know are those of `INPUTS`."""
    options = {"fastscnn_cityscapes": {"in_size": (128, 128)}, "quartznet5x5_en_ls": {"from_audio": False}}
    return get_model(name, pretrained=False, **options.get(name, {}))


# name -> (pairs, pairs fused, input size)
THIRD_PARTY = {
    "mobilenet_w1": (13, 13, 224),
    "mobilenetv2_w1": (17, 17, 224),
    "mobilenetv3_large_w1": (15, 3, 224),
    "mnasnet_b1": (17, 17, 224),
    "proxylessnas_cpu": (20, 20, 224),
    "xception": (34, 34, 299),
    "efficientnet_b0": (16, 0, 224),
    "fdmobilenet_w1": (11, 11, 224),
    "shufflenet_g1_w1": (16, 16, 224),
    "shufflenetv2_w1": (19, 19, 224),
    "darts": (132, 132, 224),
    "spnasnet": (21, 21, 224),
    "ghostnet": (41, 7, 224),
    "igcv3_w1": (32, 0, 224),
    "espnetv2_wd2": (69, 0, 224),
    "fastscnn_cityscapes": (14, 14, 128),
}
# Its gates and random BatchNorm scatter the original's own error between 8e-7 and 1e-4 from image to image (measured).
IMAGES = {"ghostnet": 8}


@pytest.mark.parametrize("name", THIRD_PARTY)
def test_third_party_model(name: str) -> None:
    pairs, fused, size = THIRD_PARTY[name]
    torch.manual_seed(0)
    model = evaluated(model_of(name))
    rewritten = copy.deepcopy(model)
    report = sepconv.fuse(rewritten)
    assert_same_on_each(model, rewritten, [(torch.randn(1, 3, size, size),) for _ in range(IMAGES.get(name, 1))])
    assert (len(report.pairs), len(report.fused)) == (pairs, fused), str(report)


def test_masked_quartznet_is_left_alone() -> None:
    model = evaluated(model_of("quartznet5x5_en_ls"))
    report = sepconv.fuse(model)
    assert report.pairs
    assert not report.fused
    assert {pair.reason.partition(" is a ")[2] for pair in report.pairs} == {"MaskConv1d, not an nn.Conv1d itself"}


def test_own_quartznet_is_fused_as_a_whole() -> None:
    torch.manual_seed(0)
    report = fused_copy(evaluated(quartznet5x5()), torch.randn(2, 64, 120))[1]
    assert str(report).startswith("27 of 27 pairs fused\n")


# --- what trains


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The parameters after one step of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(x).square().mean().backward()
    optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_fused_pair_trains_like_the_plain_one() -> None:
    plain = Plain().double()
    fused = copy.deepcopy(plain)
    parameters = {id(p) for p in fused.parameters()}
    assert sepconv.fuse(fused).fused
    assert fused.training
    assert {id(p) for p in fused.parameters()} == parameters
    assert all(p.is_leaf and p.requires_grad for p in fused.parameters())
    start = sepconv.original_state_dict(copy.deepcopy(fused))
    trained(plain, image().double())
    trained(fused, image().double())
    found = sepconv.original_state_dict(fused)
    for key, expected in plain.state_dict().items():
        torch.testing.assert_close(found[key], expected, rtol=1e-12, atol=1e-14)
        assert not torch.equal(found[key], start[key])
    fused.eval().train()


def test_trailing_batch_norm_in_training_mode_stays() -> None:
    model = sequence(depthwise(), nn.ReLU(), pointwise(), nn.BatchNorm2d(WIDTH)).train()
    report = sepconv.fuse(model)
    assert report.fused[0].absorbed == ("1",)
    assert type(model[3]) is nn.BatchNorm2d
    model.eval().train()


def test_frozen_batch_norm_behind_convolutions_that_train_stays() -> None:
    model = sequence(depthwise(), pointwise(), nn.BatchNorm2d(WIDTH).eval())
    assert sepconv.fuse(model).fused[0].absorbed == ()
    model(image()).sum().backward()
    assert model[0].depthwise.weight.grad is not None


def test_a_dropout_that_went_in_forbids_training() -> None:
    model = evaluated(sequence(depthwise(), nn.Dropout(0.5), pointwise()))
    weight = model[0].weight
    sepconv.fuse(model)
    assert model[0].depthwise.weight is weight
    with pytest.raises(sepconv.FuseError, match="into which 1 was folded"):
        model.train()


def test_train_on_a_folded_model_says_why() -> None:
    model = evaluated(sequence(Pair(), nn.BatchNorm2d(WIDTH)))
    sepconv.fuse(model)
    with pytest.raises(sepconv.FuseError, match=r"0\.bn.* was folded.*cannot train.*Keep a copy"):
        model.train()
    model.eval()


def test_fuses_without_values_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Plain()
    assert len(sepconv.fuse(model).fused) == 1
    assert model(torch.empty(2, CHANNELS, 8, 8, device="meta")).shape == (2, WIDTH, 8, 8)


# --- checkpoints and copies


@pytest.mark.parametrize("nested", [False, True])
def test_original_checkpoints_go_both_ways(nested: bool) -> None:
    make = (lambda: sequence(nn.Sequential(Plain()), nn.Conv2d(WIDTH, 3, 1))) if nested else Plain
    old, new = make(), make()
    sepconv.fuse(new)
    assert new.state_dict().keys() != old.state_dict().keys()
    new.load_state_dict(old.state_dict())
    torch.testing.assert_close(new(image()), old(image()))
    written = sepconv.original_state_dict(new)
    assert list(written) == list(old.state_dict())
    assert set(written._metadata) == set(old.state_dict()._metadata)
    fresh = make()
    fresh.load_state_dict(written)
    torch.testing.assert_close(fresh(image()), old(image()))
    new.load_state_dict(copy.deepcopy(new).state_dict())  # the keys of now load as well


def test_a_checkpoint_with_a_missing_key_is_refused() -> None:
    model = Plain()
    state = model.state_dict()
    del state["conv_pw.weight"]
    sepconv.fuse(model)
    with pytest.raises(RuntimeError, match=r"Missing key.*conv_dw\.pointwise\.weight"):
        model.load_state_dict(state)


@pytest.mark.parametrize("strict", [True, False])
def test_a_folded_model_refuses_an_original_checkpoint(strict: bool) -> None:
    model = evaluated(sequence(Pair()))
    state = model.state_dict()
    sepconv.fuse(model)
    with pytest.raises(sepconv.FuseError, match=r"0\.dw\.weight.*0\.bn was folded.*Load it before fusing"):
        model.load_state_dict(state, strict=strict)
    model.load_state_dict(copy.deepcopy(model).state_dict())
    with pytest.raises(sepconv.FuseError, match=r"no original state dict: 0\.bn was folded"):
        sepconv.original_state_dict(model)


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_file])
def test_a_copy_is_independent_and_keeps_its_behaviour(copied: Callable[[nn.Module], nn.Module]) -> None:
    plain = Plain()
    fused = Plain()
    sepconv.fuse(fused)
    other = copied(fused)
    before = fused(image()).detach()
    other.load_state_dict(plain.state_dict())
    assert torch.equal(fused(image()), before)
    torch.testing.assert_close(other(image()), plain(image()))
    del fused  # the copy's hooks must not need it
    assert sepconv.original_state_dict(other).keys() == plain.state_dict().keys()

    folded = evaluated(Pair())
    state = folded.state_dict()
    sepconv.fuse(folded)
    again = copied(folded)
    assert torch.equal(again(image()), folded(image()))
    with pytest.raises(sepconv.FuseError):
        again.train()
    with pytest.raises(sepconv.FuseError):
        again.load_state_dict(state)


# --- nothing else changes


def test_scan_changes_nothing() -> None:
    model = evaluated(sequence(models.SideEffects()))
    seen: list[object] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    state = copy.deepcopy(model.state_dict())
    before, attributes = modules_of(model), set(vars(model[0]))
    random.seed(3)
    generators = torch.get_rng_state(), random.getstate()
    report = sepconv.scan(model)
    assert len(report.fused) == 1, str(report)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert modules_of(model) == before
    assert set(vars(model[0])) == attributes
    assert len(model[0]._forward_hooks) == 1
    assert not model[0]._load_state_dict_pre_hooks
    assert (seen, model[0].calls) == ([], [])
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


@pytest.mark.parametrize("failing", ["set_submodule", "record", "_prepare", "_describe", "_new_key_hooks"])
def test_an_exception_in_the_middle_leaves_the_model_as_it_was(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = evaluated(sequence(Pair(), nn.Conv2d(WIDTH, CHANNELS, 1), Pair()))
    before, state, expected = modules_of(model), copy.deepcopy(model.state_dict()), model(image())
    calls = []

    def fails_later(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) >= (6 if failing == "set_submodule" else 1):
            raise OSError("no more")
        return original(*args, **options)

    if failing == "set_submodule":
        original = nn.Module.set_submodule
        monkeypatch.setattr(fuse_module, "_refused_by_the_forward", lambda *_: {})
        monkeypatch.setattr(nn.Module, "set_submodule", fails_later)
    else:
        original = getattr(fuse_module, failing)
        monkeypatch.setattr(fuse_module, failing, fails_later)
    with pytest.raises(sepconv.FuseError, match=r"OSError: no more\. The model is unchanged"):
        sepconv.fuse(model)
    assert calls
    assert modules_of(model) == before
    assert not any(module._load_state_dict_pre_hooks for module in model.modules())
    assert torch.equal(model(image()), expected)
    assert model.state_dict().keys() == state.keys()


def test_a_wrong_fold_is_noticed_before_the_model_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = evaluated(Pair())
    before, fold = modules_of(model), fuse_module.fold

    def wrong(*args: object) -> object:
        weights = fold(*args)
        return weights._replace(depthwise_bias=weights.depthwise_bias + 1e-6)

    monkeypatch.setattr(fuse_module, "fold", wrong)
    with pytest.raises(sepconv.FuseError, match="gives other results as one operation"):
        sepconv.fuse(model)
    assert modules_of(model) == before


# --- the report, and wrong calls


def test_report() -> None:
    report = sepconv.scan(evaluated(sequence(Pair(), nn.Conv2d(WIDTH, CHANNELS, 1), models.Functional())))
    assert str(report).splitlines() == [
        "1 of 2 pairs fused",
        "fused       0.dw + 0.pw: depthwise 3x3 of 6 channels + batch norm + relu; pointwise to 10",
        "left alone  2.dw: the result of '2.bn' goes to the function relu in the forward of '2', "
        "not to a 1x1 convolution",
    ]
    found = json.loads(json.dumps(report.as_dict()))
    assert (found["fused"], found["left_alone"]) == (1, 1)
    assert found["pairs"][0] == {
        "depthwise": "0.dw", "pointwise": "0.pw", "fused": True, "reason": "",
        "description": report.fused[0].description, "absorbed": ["0.bn", "0.act"],
    }  # fmt: skip


@pytest.mark.parametrize("call", [sepconv.scan, sepconv.fuse, sepconv.original_state_dict])
def test_refuses_what_is_no_module(call: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"`model` is a dict; expected an nn\.Module") as caught:
        call({})
    assert isinstance(caught.value, sepconv.SepconvError)


def test_a_model_without_depthwise_convolutions() -> None:
    assert str(sepconv.fuse(nn.Linear(2, 2))) == "0 of 0 pairs fused"
    assert sepconv.fuse(nn.Conv2d(1, 1, 3)).pairs == ()
