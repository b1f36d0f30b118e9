"""Problems for the CUDA kernel: what it takes in every dtype, with odd, prime, unaligned and tiny sizes."""

import itertools
from dataclasses import dataclass, replace

import torch

from sepconv.problem import CHANNELS_FIRST, CHANNELS_LAST, Activation, Epilogue, Problem

PRECISIONS = ((torch.float32, "ieee"), (torch.float32, "high"), (torch.float16, "ieee"), (torch.bfloat16, "ieee"))


SLOPE = 0.25  # of leaky_relu
UNITS = 132  # SMs of an H200


def activation(name: str) -> Activation:
    return Activation(name, SLOPE if name == "leaky_relu" else 0.0)


@dataclass(frozen=True)
class Shape:
    """The sizes of one problem; `padding` is a pair for each axis."""

    batch: int
    channels: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    activations: tuple[str, str] = ("identity", "identity")
    biases: tuple[bool, bool] = (False, False)
    layout: str = CHANNELS_FIRST
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    residual: bool = False

    def __str__(self) -> str:
        return "-".join(
            "x".join(map(str, part)) if isinstance(part, tuple) else str(part)
            for part in (
                self.batch,
                self.channels,
                self.outputs,
                self.size,
                self.kernel,
                tuple(itertools.chain(*self.padding)),
                *([self.layout] if self.layout != CHANNELS_FIRST else []),
                *([f"s{self.stride}".replace(", ", "x")] if self.stride else []),
                *([f"d{self.dilation}".replace(", ", "x")] if self.dilation else []),
                *(["residual"] if self.residual else []),
            )
        )

    def problem(self, dtype: torch.dtype, precision: str) -> Problem:
        ones = (1,) * len(self.size)
        depthwise, pointwise = map(activation, self.activations)
        epilogue = Epilogue(self.biases[0], depthwise, self.biases[1], pointwise, self.residual)
        return Problem(
            self.batch, self.channels, self.outputs, 1, self.size, self.kernel, self.stride or ones, self.padding,
            self.dilation or ones, dtype,
            layout=self.layout, precision=precision, epilogue=epilogue,
        )  # fmt: skip


_SAME = ((1, 1), (1, 1))
SHAPES = [
    Shape(2, 64, 128, (37, 200), (3, 3), _SAME),
    Shape(1, 3, 5, (9, 16), (3, 3), _SAME, ("relu", "relu6"), (True, True)),
    Shape(3, 17, 33, (5, 136), (3, 9), ((0, 0), (0, 0)), biases=(False, True)),
    Shape(1, 1, 1, (1, 8), (1, 1), ((0, 0), (0, 0))),
    Shape(2, 32, 200, (11, 128), (3, 3), ((2, 2), (1, 1)), ("relu6", "identity"), (True, False)),
    Shape(2, 128, 256, (7, 264), (3, 3), _SAME),
    Shape(1, 64, 96, (13, 72), (2, 4), ((0, 1), (1, 2))),
    Shape(2, 16, 24, (13, 72), (5, 5), ((2, 2), (2, 2))),
    Shape(1, 250, 500, (4, 136), (3, 3), _SAME),
    Shape(2, 256, 512, (520,), (9,), ((4, 4),)),
    Shape(5, 48, 70, (1000,), (5,), ((2, 2),), ("relu", "identity"), (True, True)),
    Shape(3, 100, 300, (24,), (3,), ((1, 1),)),
    Shape(70, 40, 130, (128,), (17,), ((8, 8),)),
    Shape(2, 64, 1000, (136,), (3,), ((1, 1),)),
    Shape(1, 320, 300, (200,), (7,), ((3, 3),)),
    Shape(1, 728, 200, (5, 40), (3, 3), _SAME),
    Shape(1, 48, 520, (7, 72), (3, 3), _SAME, ("relu", "relu"), (True, True)),
    Shape(2, 64, 128, (37, 131), (3, 3), _SAME, layout=CHANNELS_LAST),
    Shape(3, 24, 40, (9, 13), (3, 3), _SAME, ("relu", "relu6"), (True, True), CHANNELS_LAST),
    Shape(1, 8, 8, (5, 1), (1, 1), ((0, 0), (0, 0)), biases=(False, True), layout=CHANNELS_LAST),
    Shape(1, 56, 104, (14, 300), (2, 4), ((0, 1), (1, 2)), ("relu6", "identity"), (True, False), CHANNELS_LAST),
    Shape(2, 128, 200, (7, 7), (3, 3), ((2, 2), (0, 0)), layout=CHANNELS_LAST),
    Shape(1, 192, 328, (3, 140), (1, 17), ((0, 0), (8, 8)), biases=(True, True), layout=CHANNELS_LAST),
    Shape(3, 64, 128, (14, 14), (3, 3), _SAME, layout=CHANNELS_LAST),
    Shape(5, 32, 72, (7, 7), (3, 3), _SAME, ("relu6", "relu"), (True, True), CHANNELS_LAST),
    Shape(2, 40, 64, (23, 37), (3, 3), _SAME, layout=CHANNELS_LAST, stride=(2, 2)),
    Shape(1, 24, 48, (19, 19), (5, 3), ((4, 4), (3, 3)), layout=CHANNELS_LAST, dilation=(2, 3)),
    Shape(
        2,
        16,
        32,
        (31, 20),
        (4, 5),
        ((1, 1), (2, 2)),
        ("relu", "identity"),
        (False, True),
        CHANNELS_LAST,
        (3, 2),
        (1, 2),
    ),
    Shape(7, 8, 8, (3, 2), (3, 3), _SAME, layout=CHANNELS_LAST),
    replace(Shape(2, 64, 128, (5, 200), (3, 3), _SAME, ("relu", "relu6"), (True, True)), residual=True),
    replace(Shape(2, 256, 300, (136,), (9,), ((4, 4),), biases=(False, True)), residual=True),
    replace(Shape(1, 64, 72, (5, 136), (3, 3), _SAME, layout=CHANNELS_LAST), residual=True),
    replace(Shape(3, 32, 40, (7, 7), (3, 3), _SAME, ("relu", "relu"), (True, True), CHANNELS_LAST), residual=True),
    replace(Shape(1, 264, 264, (5, 9), (3, 3), _SAME, layout=CHANNELS_LAST), residual=True),
    Shape(3, 328, 72, (14, 14), (3, 3), _SAME, ("relu", "relu6"), (True, True), CHANNELS_LAST),
    Shape(1, 512, 512, (14, 14), (3, 3), _SAME, layout=CHANNELS_LAST),
    Shape(3, 728, 328, (5, 4), (3, 3), _SAME, ("identity", "relu"), (True, True), CHANNELS_LAST),
]
SHAPES += [
    Shape(2, 32, 40, (200,), (33,), ((16, 16),), ("silu", "identity"), (True, True)),
    Shape(2, 48, 72, (264,), (51,), ((25, 25),), ("identity", "relu"), (False, True)),
    Shape(1, 16, 24, (272,), (33,), ((16, 16),), stride=(2,)),
    Shape(1, 32, 24, (136,), (87,), ((86, 86),), dilation=(2,)),
    Shape(1, 256, 200, (136,), (75,), ((37, 37),), ("silu", "hardswish"), (True, True)),
    Shape(2, 16, 32, (12, 128), (3, 3), _SAME, ("gelu", "hardswish"), stride=(2, 2)),
    Shape(2, 16, 32, (9, 64), (3, 3), ((2, 2), (2, 2)), ("leaky_relu", "leaky_relu"), dilation=(2, 2)),
    Shape(2, 16, 32, (9, 64), (3, 3), ((2, 2), (1, 1)), dilation=(2, 1)),
    Shape(2, 16, 32, (9, 64), (3, 3), ((1, 1), (2, 2)), dilation=(1, 2)),
    Shape(2, 16, 32, (13, 64), (3, 3), ((1, 1), (1, 1)), stride=(2, 1)),
    Shape(1, 24, 32, (24, 72), (5, 21), ((2, 2), (10, 10))),
    Shape(1, 17, 32, (136,), (127,), ((63, 63),)),
    replace(Shape(1, 512, 520, (72,), (63,), ((31, 31),), biases=(False, True)), residual=True),
    replace(Shape(1, 520, 300, (136,), (33,), ((16, 16),), biases=(False, True)), residual=True),
    Shape(1, 600, 100, (72,), (5,), ((2, 2),)),
    Shape(2, 64, 384, (136,), (9,), ((4, 4),)),
    Shape(3, 24, 40, (7, 7), (3, 3), _SAME, ("relu", "relu6"), (True, True)),
    Shape(2, 40, 130, (14, 14), (3, 3), _SAME, biases=(False, True)),
    replace(Shape(1, 264, 72, (19, 19), (3, 3), _SAME, ("relu", "relu"), (True, True)), residual=True),
    Shape(2, 17, 33, (15, 23), (3, 3), _SAME, stride=(2, 2)),
    Shape(1, 24, 40, (19, 19), (5, 3), ((4, 4), (3, 3)), dilation=(2, 3)),
    Shape(3, 20, 300, (133,), (9,), ((4, 4),), ("silu", "identity"), (True, True)),
    Shape(1, 16, 8, (301,), (75,), ((37, 37),)),
    Shape(1, 3, 5, (9, 11), (3, 3), _SAME),
    Shape(2, 1, 1, (5, 3), (1, 1), ((0, 0), (0, 0))),
    Shape(1, 728, 200, (10, 10), (3, 3), _SAME, ("identity", "relu"), (False, True)),
    Shape(1, 32, 48, (12, 147), (3, 3), _SAME),
    Shape(1, 16, 24, (40, 45), (5, 5), ((2, 2), (2, 2)), stride=(7, 9)),
    Shape(1, 16, 24, (3, 50), (3, 21), ((1, 1), (20, 20)), stride=(1, 2), dilation=(1, 2)),
]
# Windows of 16 bits with channels last reach as far as they like.
SHAPES += [
    Shape(1, 40, 24, (12, 12), (7, 7), ((3, 3), (3, 3)), biases=(True, False), layout=CHANNELS_LAST),
    Shape(1, 72, 136, (9, 40), (3, 30), ((1, 1), (14, 15)), layout=CHANNELS_LAST),
    Shape(2, 16, 24, (9, 11), (13, 11), ((6, 6), (5, 5)), ("relu", "identity"), (True, True), CHANNELS_LAST),
    Shape(1, 16, 16, (33, 9), (5, 3), ((8, 8), (1, 1)), layout=CHANNELS_LAST, stride=(3, 1), dilation=(4, 1)),
    Shape(1, 200, 520, (9, 11), (1, 2), ((0, 0), (0, 1)), layout=CHANNELS_LAST),
]
PATCHES, GATHERED = (
    Shape(3, 72, 128, (14, 9), (3, 3), _SAME, layout=CHANNELS_LAST),
    Shape(2, 40, 130, (14, 9), (3, 3), _SAME),
)
A = Shape(16, 64, 128, (512, 512), (3, 3), _SAME)
B = Shape(32, 256, 512, (4096,), (9,), ((4, 4),))
A_LAST = replace(A, layout=CHANNELS_LAST)
SMALL_A, SMALL_B = replace(A, batch=1, size=(64, 256)), replace(B, batch=2, size=(512,))
SMALL_A_LAST = replace(SMALL_A, layout=CHANNELS_LAST)
