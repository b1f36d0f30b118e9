"""KernelBench level1/86, the depthwise-separable 2-D convolution, as one operation of sepconv."""

import sepconv


class ModelNew(sepconv.SeparableConv2d):
    """The same arguments, parameters and initial values as the benchmark's model, whose state dict it loads.

    float32 runs as products of two bfloat16 terms ("high"): within 1e-4 of the right answer, and as fast as TF32.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, bias, precision="high")
