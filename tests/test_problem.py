"""The records of what is asked: hand-made numbers, text forms, and arithmetic on shapes and strides."""

import dataclasses
from dataclasses import replace

import pytest
import torch
from cases import TABLE, Case, laid_out, paddings, per_axis, tensors_of

from sepconv.problem import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    Activation,
    Epilogue,
    Operands,
    Problem,
    dense_strides,
    is_channels_last,
    output_layout,
    output_size,
)

A = Problem(16, 64, 128, 1, (512, 512), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
B = Problem(32, 256, 512, 1, (4096,), (9,), (1,), ((4, 4),), (1,))


def test_work_of_the_two_reference_problems() -> None:
    # Out of 16 * 512 * 512 pixels each takes 64 * (9 + 128) multiply-adds.
    assert A.flops == 2 * 4194304 * 64 * 137 == 73_551_314_944
    assert B.flops == 2 * 32 * 4096 * 256 * (9 + 512) == 34_963_718_144 + 0
    assert A.output_shape == (16, 128, 512, 512)
    assert B.output_shape == (32, 512, 4096)
    weights = 64 * (9 + 128)
    assert A.bytes == 4 * (16 * 64 * 512 * 512 + 16 * 128 * 512 * 512 + weights)
    assert abs(A.bytes - 3.22e9) < 0.005e9
    half = replace(A, dtype=torch.float16)
    assert 2 * half.bytes == A.bytes
    assert abs(B.bytes - 0.403e9) < 0.001e9


def test_work_of_a_small_problem_by_hand() -> None:
    # 2 items, 3 channels with 2 outputs each, 5x4 -> 3x4 pixels, kernel 3x1, 7 outputs.
    problem = Problem(2, 3, 7, 2, (5, 4), (3, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), torch.float64)
    assert problem.output_shape == (2, 7, 3, 4)
    assert problem.flops == 2 * 24 * 6 * (3 + 7)
    assert problem.bytes == 8 * (2 * 3 * 20 + 6 * 3 + 7 * 6 + 2 * 7 * 12)
    with_residual = replace(problem, epilogue=Epilogue(residual=True))
    assert with_residual.bytes - problem.bytes == 8 * 2 * 7 * 12
    backward = replace(problem, direction="backward")
    assert backward.flops == 2 * problem.flops
    assert backward.bytes == 8 * (2 * 2 * 3 * 20 + 2 * 7 * 12 + 2 * (6 * 3 + 7 * 6))


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_output_size_counts_the_windows(case: Case) -> None:
    flat = [n for pair in paddings(case) for n in pair]
    stride, dilation = per_axis(case.stride, case.rank), per_axis(case.dilation, case.rank)
    assert output_size(case.L, case.K, stride, flat, dilation) == case.out_shape[2:]


def test_a_problem_says_itself() -> None:
    text = str(A)
    for word in ("2-D forward", "(16, 64, 512x512) -> 128", "kernel 3x3", "float32", "channels_first", "ieee"):
        assert word in text
    assert "64*2" in str(replace(A, depth_multiplier=2))
    epilogue = Epilogue(True, Activation("relu6"), True, Activation("leaky_relu", 0.1), True)
    assert str(epilogue) == "depthwise bias + relu6, pointwise bias + leaky_relu(0.1) + residual"
    assert str(Epilogue()) == "depthwise identity, pointwise identity"
    assert str(epilogue) in str(replace(A, epilogue=epilogue))


def test_different_problems_have_different_texts() -> None:
    others = [
        replace(A, **change)
        for change in (
            {"batch": 15},
            {"in_channels": 63},
            {"out_channels": 127},
            {"depth_multiplier": 2},
            {"in_size": (512, 511)},
            {"kernel_size": (3, 2)},
            {"stride": (1, 2)},
            {"padding": ((1, 1), (1, 0))},
            {"dilation": (1, 2)},
            {"dtype": torch.float16},
            {"layout": CHANNELS_LAST},
            {"precision": "high"},
            {"epilogue": Epilogue(depthwise_bias=True)},
            {"epilogue": Epilogue(pointwise_bias=True)},
            {"direction": "backward"},
        )
    ]
    assert len({str(problem) for problem in [A, *others]}) == len(others) + 1
    assert len({A, *others}) == len(others) + 1


@pytest.mark.parametrize("record", [A, Epilogue()], ids=["problem", "epilogue"])
def test_records_are_frozen_and_equal_by_value(record: Problem | Epilogue) -> None:
    again = replace(record)
    assert again == record
    assert hash(again) == hash(record)
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, 1)


def test_dense_strides_are_those_of_pytorch() -> None:
    for shape in ((2, 3, 5), (2, 3, 5, 7), (2, 3, 4, 5, 6), (0, 3, 4, 5)):
        assert dense_strides(shape, CHANNELS_FIRST) == torch.empty(shape).stride()
    for shape, fmt in (((2, 3, 5, 7), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)):
        assert dense_strides(shape, CHANNELS_LAST) == torch.empty(shape, memory_format=fmt).stride()
    assert dense_strides((2, 3, 5), CHANNELS_LAST) == (15, 1, 3)


def test_problems_know_their_strides() -> None:
    assert A.output_strides == torch.empty(A.output_shape, device="meta").stride()
    last = replace(A, layout=CHANNELS_LAST)
    assert last.output_strides == torch.empty(A.output_shape, device="meta", memory_format=torch.channels_last).stride()
    assert (A.rank, B.rank) == (2, 1)


STRIDES = [
    ((2, 3, 4, 5), (60, 20, 5, 1)),
    ((2, 3, 4, 5), (60, 1, 15, 3)),
    ((2, 3, 4, 5), (120, 1, 30, 6)),
    ((2, 3, 4, 5), (120, 2, 30, 6)),
    ((2, 3, 4, 5), (60, 0, 15, 3)),
    ((2, 1, 4, 5), (20, 20, 5, 1)),
    ((2, 1, 4, 5), (20, 1, 5, 1)),
    ((2, 3, 1, 1), (3, 1, 1, 1)),
    ((2, 3, 1, 1), (3, 1, 3, 3)),
    ((1, 1, 1, 1), (1, 1, 1, 1)),
    ((0, 3, 4, 5), (60, 1, 15, 3)),
    ((6, 3, 4, 5), (0, 1, 15, 3)),
]


@pytest.mark.parametrize(("shape", "strides"), STRIDES)
def test_channels_last_is_what_pytorch_takes_for_it(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    t = torch.empty_strided(shape, strides)
    expected = torch._prims_common.suggest_memory_format(t) == torch.channels_last
    assert is_channels_last(shape, strides) == expected


def test_the_layout_of_a_call() -> None:
    for rank in (1, 2, 3):
        case = Case("layout", 2, 3, 4, (5, 6, 7)[:rank], (3, 2, 2)[:rank])
        for which in range(3):
            tensors = tensors_of(case)
            assert output_layout(Operands(*tensors)) == CHANNELS_FIRST
            tensors[which] = laid_out(tensors[which], "channels_last")
            expected = CHANNELS_LAST if rank > 1 or which == 0 else CHANNELS_FIRST
            assert output_layout(Operands(*tensors)) == expected
