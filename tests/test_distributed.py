"""Two processes that train a fused model together get what one process gets with the plain one on the whole batch."""

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


def model() -> nn.Sequential:
    """Three pairs as a user writes them: plain convolutions with nothing or an activation between."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 3, 3, padding=1, groups=3),
        nn.ReLU(),
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 16, 7, padding=3, stride=2, groups=8, bias=False),
        nn.Conv2d(16, 16, 1, bias=False),
        nn.SiLU(),
        nn.Flatten(2),
        nn.Conv1d(16, 16, 3, groups=16),
        nn.Conv1d(16, 5, 1),
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
    assert len(sepconv.fuse(m).fused) == 3
    parallel = DistributedDataParallel(m, gradient_as_bucket_view=rank >= 0)
    x, target = batch()
    train(parallel, x[2 * rank : 2 * rank + 2], target[2 * rank : 2 * rank + 2])
    torch.save(sepconv.original_state_dict(m), os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    del parallel
    dist.destroy_process_group()
    os._exit(0)  # a thread of PyTorch's own that outlives the interpreter aborts the process now and then


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"]
)
def test_two_processes_train_as_one(memory_format: torch.memory_format, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, (str(tmp_path), memory_format), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    plain, (x, target) = model(), batch()
    exact = copy.deepcopy(plain).double()
    train(plain, x, target)
    train(exact, x.double(), target.double())
    rights, eagers = exact.state_dict(), plain.state_dict()
    assert first.keys() == second.keys() == rights.keys()
    for name, right in rights.items():
        assert torch.equal(first[name], second[name]), name
        check(first[name], right, eagers[name], torch.float32)
