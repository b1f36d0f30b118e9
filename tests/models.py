"""Little models for the tests of `sepconv.fuse`: each stands for one thing that a model can do with a pair."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS, WIDTH = 6, 10


def depthwise(channels: int = CHANNELS, **options) -> nn.Conv2d:
    """A 3x3 depthwise convolution."""
    return nn.Conv2d(
        channels, **{"out_channels": channels, "kernel_size": 3, "padding": 1, "groups": channels, **options}
    )


def pointwise(channels: int = CHANNELS, **options) -> nn.Conv2d:
    """A 1x1 convolution."""
    return nn.Conv2d(channels, WIDTH, **{"kernel_size": 1, **options})


def image(channels: int = CHANNELS, seed: int = 0, **options) -> Tensor:
    """Two small images."""
    return torch.randn(2, channels, 8, 8, generator=torch.Generator().manual_seed(seed)).to(**options)


class BatchNormAct2d(nn.BatchNorm2d):
    """BatchNorm with dropout and activation behind it; the name and the attributes are timm's."""

    def __init__(self, channels: int, act: nn.Module | None = None, drop: nn.Module | None = None) -> None:
        super().__init__(channels)
        self.drop, self.act = drop or nn.Identity(), act or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Pair(nn.Module):
    """dw -> bn -> act -> pw, with what the subclasses do differently."""

    def __init__(self) -> None:
        super().__init__()
        self.dw, self.bn, self.act, self.pw = depthwise(), nn.BatchNorm2d(CHANNELS), nn.ReLU(), pointwise()

    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.act(self.bn(self.dw(x))))


class Plain(nn.Module):
    """conv_dw -> act -> conv_pw: nothing to fold, so it trains; names as in timm, registered in another order."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv_pw, self.act, self.conv_dw = pointwise(bias=bias), nn.SiLU(), depthwise(bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_pw(self.act(self.conv_dw(x)))


class Residual(nn.Module):
    """A block that adds its input: dw -> bn1 -> act -> pw -> bn2, + x."""

    def __init__(self) -> None:
        super().__init__()
        self.dw, self.bn1, self.act = depthwise(), nn.BatchNorm2d(CHANNELS), nn.ReLU6(inplace=True)
        self.pw, self.bn2 = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn2(self.pw(self.act(self.bn1(self.dw(x)))))


class Functional(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(F.relu(self.bn(self.dw(x))))


class FunctionalAfter(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


class SqueezeExcite(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn(self.dw(x)))
        return self.pw(y * self.se(y))


class Branch(Pair):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.dw(x)
        return self.pw(self.act(self.bn(y))), y


class Unused(Pair):
    def forward(self, x: Tensor) -> Tensor:
        self.dw(x)
        return self.pw(x)


class NotCalled(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(x)


class Kept(Pair):
    def forward(self, x: Tensor) -> Tensor:
        self.features = self.bn(self.dw(x))
        return self.pw(self.act(self.features))


class CalledTwice(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.act(self.dw(self.dw(x))))


class ActivationCalledTwice(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.act(self.bn(self.dw(self.act(x)))))


class Registered(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.alias = self.bn


class Keywords(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.act(self.bn(self.dw(input=x))))


class KeywordsBehind(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.act(self.bn(input=self.dw(x))))


class DataDependent(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Outer(nn.Module):
    """A forward that cannot be recorded, around a part that can."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x if x.sum() > 0 else -x)


class Picker(Outer):
    """Cannot be recorded, and calls the modules of its part one by one, for one of their results."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.part[0](x)
        if y.sum() > 0:
            return self.part[1](y) + y.mean()
        return self.part[1](y)


class LatePicker(Outer):
    """As `Picker`, but recording fails before the modules of the part are called."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x if x.sum() > 0 else -x)

    def run(self, x: Tensor) -> Tensor:
        y = self.part[0](x)
        return self.part[1](y) + y.mean()


class Iterator(Outer):
    """Cannot be recorded, and iterates over its part."""

    def forward(self, x: Tensor) -> Tensor:
        for step in self.part:
            x = step(x if x.sum() > 0 else -x)
        return x


class MethodCaller(Outer):
    """Cannot be recorded, and calls another method of its part than its forward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.part.features(x if x.sum() > 0 else -x)


class Features(nn.Module):
    """A part with a second way through it, and a number that others read."""

    def __init__(self) -> None:
        super().__init__()
        self.dw, self.pw, self.scale = depthwise(), pointwise(), 2.0

    def features(self, x: Tensor) -> Tensor:
        return self.dw(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.features(x))


class NumberReader(Outer):
    """Cannot be recorded, and reads a number and the parameters of its part, which does no harm."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.part.parameters()).device)
        return self.part(x if x.sum() > 0 else -x) * self.part.scale


class TwoParts(nn.Module):
    """A recorded forward around a part that cannot be recorded and one of its own pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.hard, self.dw, self.pw = Outer(nn.Sequential(depthwise(), nn.ReLU())), depthwise(), pointwise()

    def forward(self, x: Tensor) -> Tensor:
        return self.pw(self.dw(self.hard(x)))


class ReadsWeight(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.dw.weight.mean()


class ReadsNumber(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.bn.eps


class LooksAtType(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if isinstance(self.dw, nn.Conv2d) else -y


class ListOfModules(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [self.dw, self.bn, self.act, self.pw]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class Blocks(nn.Module):
    """Two blocks, so that a chain crosses the border of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(depthwise(), nn.ReLU()), nn.Sequential(pointwise(), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class MyNorm(nn.BatchNorm2d):
    """A subclass, which may do more than its base."""


class Masked(nn.Conv2d):
    """A convolution whose forward does more."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (x > 0))


class SideEffects(Pair):
    """A forward that counts, draws random numbers, warns and calls an activation that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        import random
        import warnings

        self.count += 1
        self.calls.append(1)
        warnings.warn("called", stacklevel=1)
        noise = torch.rand(1).item() + random.random()
        return nn.Sigmoid()(super().forward(x)) + 0 * noise


class CannotBeCopied(Pair):
    def __deepcopy__(self, memo: dict) -> nn.Module:
        raise RuntimeError("one of a kind")
