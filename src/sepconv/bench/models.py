"""Models to measure and to test on: QuartzNet without masks, and BatchNorm that has something to fold."""

from itertools import pairwise

import torch
from torch import Tensor, nn

_BLOCKS = ((33, 256), (39, 256), (51, 512), (63, 512), (75, 512))  # kernel and channels, arXiv:1910.10261, table 1
_REPEATS = 5


def _separable(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, dilation: int = 1, *, last: bool = True
) -> list[nn.Module]:
    """Depthwise and pointwise convolution and BatchNorm of a sequence; with `last` the ReLU and the dropout as well."""
    padding = dilation * (kernel - 1) // 2
    depthwise = nn.Conv1d(in_channels, in_channels, kernel, stride, padding, dilation, groups=in_channels, bias=False)
    modules = [depthwise, nn.Conv1d(in_channels, out_channels, 1, bias=False), nn.BatchNorm1d(out_channels)]
    return modules + [nn.ReLU(), nn.Dropout(0.1)] * last


class QuartzNetBlock(nn.Module):
    """Five separable convolutions of one kernel, with the block's input added before the last ReLU; (N, C, L)."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        channels = (in_channels, *[out_channels] * _REPEATS)
        steps = [
            module
            for i, (before, after) in enumerate(pairwise(channels))
            for module in _separable(before, after, kernel, last=i < _REPEATS - 1)
        ]
        self.body = nn.Sequential(*steps)
        self.residual = nn.Sequential(nn.Conv1d(in_channels, out_channels, 1, bias=False), nn.BatchNorm1d(out_channels))
        self.activation = nn.ReLU()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.activation(self.body(x) + self.residual(x)))
        return y


def quartznet5x5(in_channels: int = 64, classes: int = 29) -> nn.Sequential:
    """QuartzNet 5x5 (Kriman et al. 2019, arXiv:1910.10261) for sequences without masks.

    Features (N, in_channels, L) become class scores (N, classes, L / 2). It has 27 depthwise-pointwise pairs.
    """
    channels = (256, *[width for _, width in _BLOCKS])
    blocks = [
        QuartzNetBlock(before, after, kernel)
        for (before, after), (kernel, _) in zip(pairwise(channels), _BLOCKS, strict=True)
    ]
    return nn.Sequential(
        nn.Sequential(*_separable(in_channels, 256, 33, stride=2)),
        *blocks,
        nn.Sequential(*_separable(512, 512, 87, dilation=2)),
        nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.ReLU(), nn.Dropout(0.1)),
        nn.Conv1d(1024, classes, 1),
    )


def randomize_batchnorm(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every BatchNorm statistics and parameters as after training; a new one has nothing to fold.

    Returns the model. Means and shifts lie within 0.5, variances and scales between 0.5 and 2. The random numbers come
    from `seed` alone.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
                (module.weight, 0.5, 2.0),
                (module.bias, -0.5, 0.5),
            ):
                if tensor is not None:
                    tensor.data.copy_(torch.rand(tensor.shape, generator=generator, device="cpu") * (high - low) + low)
    return model
