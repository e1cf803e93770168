"""DistributedDataParallel in real gloo processes as the oracle: which buckets each rank reduces, in which order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from foretell.capture import capture
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.workload import Workload

from .models import Llama, Residual, Vit, images, loss

RANKS = 2
BUCKETS = (None, 2)  # MiB; None: as DDP has it, the first smaller than the others


class WideCnn(nn.Module):
    """Several buckets of gradients, and little to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(64, 64), Residual(64, 160), Residual(160, 256)])
        self.head = nn.Linear(256, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.max_pool2d(block(x), 2)
        return self.head(x.mean((2, 3)))


def small_images() -> dict[str, torch.Tensor]:
    return images(16, 12)


def text() -> dict[str, torch.Tensor]:
    return {"x": torch.randint(96, (2, 16)), "y": torch.randint(96, (2, 16))}


def wide_vit() -> nn.Module:
    return Vit(width=256, layers=3)


def wide_llama() -> nn.Module:
    return Llama(width=192, layers=4)


FAMILIES: dict[str, tuple[Any, Any]] = {
    "cnn": (WideCnn, small_images),
    "vit": (wide_vit, small_images),
    "llama": (wide_llama, text),
}


def real_rank(rank: int, folder: str, family: str) -> None:
    """Train with DDP and write down what a step reduces."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    for size in BUCKETS:
        reduced = reduced_buckets(family, size)
        Path(f"{folder}/{size}.{rank}").write_text(" ".join(map(str, reduced)))
    dist.destroy_process_group()


def reduced_buckets(family: str, size: int | None) -> list[int]:
    build, batch = FAMILIES[family]
    model = nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=size)
    optimizer = torch.optim.AdamW(model.parameters())
    reduced: list[int] = []

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        buffer = bucket.buffer()
        reduced.append(buffer.numel() * buffer.element_size())
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0] / RANKS)

    model.register_comm_hook(None, hook)
    for _ in range(3):  # the first step finds the order in which gradients come, and buckets are made anew
        reduced.clear()
        loss(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return reduced


@pytest.mark.parametrize("family", FAMILIES)
def test_buckets_are_those_that_ddp_reduces(family: str) -> None:
    build, batch = FAMILIES[family]
    step = capture(
        Workload(
            name=family, model=build, batch=batch, loss=loss, optimizer=lambda parameters: torch.optim.AdamW(parameters)
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(real_rank, (folder, family), nprocs=RANKS, start_method="fork")
        for size in BUCKETS:
            said = [[int(n) for n in Path(f"{folder}/{size}.{rank}").read_text().split()] for rank in range(RANKS)]
            plan = Plan(dp=RANKS) if size is None else Plan(dp=RANKS, bucket_bytes=size * 2**20)
            planned = parallelize(step, plan).roles[0].collectives
            assert said[0] == said[1]
            assert [c.nbytes for c in planned] == said[0]
            assert len(planned) > (1 if size is None else 2)
            assert {(c.kind, c.group.size) for c in planned} == {("all-reduce", RANKS)}
