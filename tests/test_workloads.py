"""The workloads: sizes that agree with the papers' own figures, and names."""

from itertools import pairwise

import pytest
import torch

from sepconv import reference
from sepconv.bench import data
from sepconv.bench.workloads import WORKLOADS, default_names, weights, workload
from sepconv.errors import ArgumentValueError
from sepconv.ops import problem_of
from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Operands, output_shape


def multiply_adds(name: str) -> int:
    return workload(name).flops // 2


def pairs_of(name: str) -> int:
    return sum(entry.count for entry in workload(name).entries)


def weights_of(name: str) -> int:
    return sum(entry.count * weights(entry.problem) for entry in workload(name).entries)


def test_reference_problems_have_the_known_flops_and_bytes() -> None:
    a, b = (workload(name).entries[0].problem for name in "AB")
    assert (a.flops, b.flops) == (2 * 16 * 64 * 512**2 * (9 + 128), 2 * 32 * 256 * 4096 * (9 + 512))
    assert (a.output_shape, b.output_shape) == ((16, 128, 512, 512), (32, 512, 4096))
    for name, whole in (("A/16", a), ("B/16", b)):
        assert workload(name).flops * 16 == whole.flops


def test_the_single_layers_are_those_of_the_goals() -> None:
    shapes = [workload(name).entries[0].problem for name in ("layer56", "layer14", "layer14@1")]
    assert [p.output_shape for p in shapes] == [(8, 256, 56, 56), (8, 512, 14, 14), (1, 512, 14, 14)]
    assert [p.in_channels for p in shapes] == [128, 512, 512]


def test_mobilenet_v1_adds_up_to_its_569_million_multiply_adds() -> None:
    """Arxiv 1704.04861, table 4: 569 million in all; the first convolution and the classifier are no pairs."""
    assert pairs_of("mobilenet_v1") == 13
    assert multiply_adds("mobilenet_v1") + 112 * 112 * 27 * 32 + 1024 * 1000 == 568_740_352


def test_mobilenet_v2_adds_up_to_its_300_million_multiply_adds() -> None:
    """Arxiv 1801.04381, table 4: 300 million in all, with expansions, first and last convolution and classifier."""
    assert pairs_of("mobilenet_v2") == 17
    expansions = sum(
        entry.count * entry.problem.in_channels**2 // 6 * entry.problem.in_size[0] ** 2
        for entry in workload("mobilenet_v2").entries[1:]
    )
    rest = 112 * 112 * 27 * 32 + 49 * 320 * 1280 + 1280 * 1000
    assert round((multiply_adds("mobilenet_v2") + expansions + rest) / 1e6) == 301


def test_mobilenet_v4_adds_up_to_its_parameters() -> None:
    """timm's mobilenetv4_conv_medium has 9,715,512 (9.72 million in its table), with two a channel for every BatchNorm."""
    assert pairs_of("mobilenet_v4") == 30

    def convolution(channels: int, outputs: int, taps: int = 1) -> int:
        return outputs * (channels * taps + 2)

    entries = workload("mobilenet_v4").entries
    norms = sum(2 * entry.count * (entry.problem.in_channels + entry.problem.out_channels) for entry in entries)
    stem = convolution(3, 32, 9) + convolution(32, 128, 9) + convolution(128, 48)
    without_depthwise = ((160, 320), (320, 160), *((256, 1024), (1024, 256)) * 3)
    of_no_pair = [
        convolution(*sizes) for sizes in ((640, 160), (640, 160), (1024, 256), (512, 256), *without_depthwise)
    ]
    head = convolution(256, 960) + convolution(960, 1280) + 1281 * 1000
    assert weights_of("mobilenet_v4") + norms + stem + sum(of_no_pair) + head == 9_715_512


def test_mobilenet_v4_activates_between_the_steps_where_it_projects() -> None:
    problems = [entry.problem for entry in workload("mobilenet_v4").entries]
    for p in problems:
        expands = p.out_channels > p.in_channels
        depthwise, pointwise = p.epilogue.depthwise_activation.name, p.epilogue.pointwise_activation.name
        assert (depthwise, pointwise) == (("identity", "relu") if expands else ("relu", "identity"))
        assert p.epilogue.residual == (not expands and p.stride == (1, 1))


def test_xception41_adds_up_to_its_parameters() -> None:
    """timm's xception41 has 26.97 million, with two a channel for every BatchNorm; four blocks have a shortcut."""
    entries = workload("xception41").entries
    active = [entry for entry in entries if entry.problem.epilogue.depthwise_activation.name == "relu"]
    assert (pairs_of("xception41"), sum(entry.count for entry in active)) == (39, 3)
    norms = sum(2 * entry.count * (entry.problem.in_channels + entry.problem.out_channels) for entry in entries)
    stem = 32 * (27 + 2) + 64 * (9 * 32 + 2)
    shortcuts = 128 * (64 + 2) + 256 * (128 + 2) + 728 * (256 + 2) + 1024 * (728 + 2)
    found = weights_of("xception41") + norms + stem + shortcuts + 2049 * 1000
    assert round(found / 1e6, 2) == 26.97
    assert sum(entry.count for entry in entries if entry.problem.epilogue.residual) == 12, "one a block but the last"


def test_xception_adds_up_to_its_parameters() -> None:
    """Arxiv 1610.02357, table 3: 22,855,952 parameters, with two a channel for every BatchNorm."""
    assert pairs_of("xception") == 34
    outputs = sum(entry.count * entry.problem.out_channels for entry in workload("xception").entries)
    shortcuts = 64 * 128 + 128 * 256 + 256 * 728 + 728 * 1024
    norms = 2 * (outputs + 32 + 64 + 128 + 256 + 728 + 1024)
    assert weights_of("xception") + 27 * 32 + 9 * 32 * 64 + shortcuts + norms + 2049 * 1000 == 22_855_952


@pytest.mark.parametrize(("name", "repeats", "millions"), [("quartznet5x5", 1, 6.7), ("quartznet15x5", 3, 18.9)])
def test_quartznet_adds_up_to_its_parameters(name: str, repeats: int, millions: float) -> None:
    """Arxiv 1910.10261, table 3: 6.7 and 18.9 million, with pointwise shortcuts, C3, C4 and two a channel for norms."""
    assert pairs_of(name) == 25 * repeats + 2
    widths = (256, 256, 256, 512, 512, 512)
    shortcuts = sum(a * b + (repeats - 1) * b * b for a, b in pairwise(widths))
    outputs = sum(entry.count * entry.problem.out_channels for entry in workload(name).entries)
    norms = 2 * (outputs + repeats * sum(widths[1:]) + 1024)
    assert round((weights_of(name) + shortcuts + norms + 512 * 1024 + 1024 * 29) / 1e6, 1) == millions


def test_conformer_has_three_widths_and_the_kernel_that_people_run() -> None:
    problems = [entry.problem for entry in workload("conformer").entries]
    assert [p.in_channels for p in problems] == [144, 256, 512]
    assert all(p.padding == ((15, 15),) and p.kernel_size == (31,) and p.out_size == p.in_size for p in problems)
    assert pairs_of("conformer") == 16 + 16 + 17


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_problem_is_distinct_and_gives_the_shape_that_it_says(name: str) -> None:
    problems = [entry.problem for entry in workload(name).entries]
    assert len(set(problems)) == len(problems)
    for p in problems:
        middle = p.in_channels * p.depth_multiplier
        shapes = (
            (p.batch, p.in_channels, *p.in_size),
            (middle, 1, *p.kernel_size),
            (p.out_channels, middle, *[1] * p.rank),
        )
        operands = Operands(*(torch.empty(shape, device="meta") for shape in shapes))
        assert reference.forward(operands, data.options_of(p)).shape == p.output_shape
        assert output_shape(operands, data.options_of(p)) == p.output_shape
        assert min(p.out_size) > 0


@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize("entry", WORKLOADS["tiny"])
def test_the_tensors_of_a_problem_are_that_problem(entry, layout: str) -> None:
    problem = workload("tiny", layout=layout).entries[WORKLOADS["tiny"].index(entry)].problem
    case = data.make(problem, torch.device("cpu"))
    assert problem_of(case.operands, case.options) == problem


def test_batch_dtype_layout_and_precision_reach_every_problem() -> None:
    found = workload("mobilenet_v1@8", torch.bfloat16, CHANNELS_LAST, "ieee")
    assert found.name == "mobilenet_v1@8"
    assert {(e.problem.batch, e.problem.dtype, e.problem.layout) for e in found.entries} == {
        (8, torch.bfloat16, CHANNELS_LAST)
    }
    assert workload("A@2").entries[0].problem.batch == 2


@pytest.mark.parametrize("text", ["mobilenet_v1/16", "mobilenet", "", "@2"])
def test_an_unknown_name_lists_the_known_ones(text: str) -> None:
    with pytest.raises(
        ArgumentValueError, match=f"`workload` is '{text}'.*A, B, A/16, B/16, layer56, layer14, mobilenet_v1.*conformer"
    ):
        workload(text)


@pytest.mark.parametrize("text", ["A@", "A@0", "A@-1", "A@x", "A@1@2"])
def test_a_batch_is_a_positive_number(text: str) -> None:
    with pytest.raises(ArgumentValueError, match="a batch of at least 1"):
        workload(text)


def test_defaults_suit_the_device() -> None:
    assert default_names("cpu") == ("A/16", "B/16")
    assert default_names("cuda") == ("A", "B")
