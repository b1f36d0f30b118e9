"""Two processes that train together get what one process gets on the whole batch."""

import copy
import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from budget import check
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sepconv

STEPS = 3


def model(plain: bool = False) -> nn.Sequential:
    torch.manual_seed(7)
    layers = [
        sepconv.SeparableConv2d(3, 8, 3, padding=1, bias=True, depthwise_activation="relu"),
        sepconv.SeparableConv2d(8, 16, 7, padding=3, stride=2, depth_multiplier=2, pointwise_activation="silu"),
        nn.Flatten(2),
        sepconv.SeparableConv1d(16, 5, 3, bias=True),
    ]
    if not plain:
        return nn.Sequential(*layers)
    first, second, flatten, last = layers
    return nn.Sequential(
        first.depthwise,
        nn.ReLU(),
        first.pointwise,
        second.depthwise,
        second.pointwise,
        nn.SiLU(),
        flatten,
        *last.children(),
    )


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(11)
    return torch.randn(4, 3, 8, 8, generator=g), torch.randn(4, 5, 14, generator=g)


def train(m: nn.Module, x: Tensor, target: Tensor) -> None:
    optimizer = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(m(x), target).backward()
        optimizer.step()


def worker(rank: int, folder: str, memory_format: torch.memory_format) -> None:
    """One process: half of the batch, gradients averaged by DDP; a warning, as about a bucket's strides, is an error."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    m = model().to(memory_format=memory_format)
    parallel = DistributedDataParallel(m, gradient_as_bucket_view=rank >= 0)
    x, target = batch()
    train(parallel, x[2 * rank : 2 * rank + 2], target[2 * rank : 2 * rank + 2])
    torch.save(m.state_dict(), os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"]
)
def test_two_processes_train_as_one(memory_format: torch.memory_format, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, (str(tmp_path), memory_format), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    plain, (x, target) = model(plain=True), batch()
    exact = copy.deepcopy(plain).double()
    train(plain, x, target)
    train(exact, x.double(), target.double())
    rights, eagers = list(exact.parameters()), list(plain.parameters())
    assert len(first) == len(rights)
    for name, right, eager in zip(first, rights, eagers, strict=True):
        assert torch.equal(first[name], second[name]), name
        check(first[name], right.detach(), eager.detach(), torch.float32)
