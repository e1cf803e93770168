"""Tensor-parallel plans say exactly what torch's `parallelize_module` says: kind, bytes, ranks, in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from foretell.parallel import parallelize
from foretell.plans import Plan

from .models import FAMILIES, graph
from .oracle import Said, fake_ranks, listen, planned


def styles(family: str, model: Any, sequence: bool) -> dict[str, Any]:
    """The styles a person would give: regions take whole rows, weights are cut by columns, then by rows."""
    stream = Shard(1) if sequence else Replicate()
    enter = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    head = ColwiseParallel(
        input_layouts=stream if family == "llama" else Replicate(), output_layouts=Shard(-1), use_local_output=False
    )
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=stream)
    if family == "cnn":
        return {"up": column, "down": RowwiseParallel(), "head": head}
    plan: dict[str, Any] = {"head": head}
    for i in range(len(getattr(model, FAMILIES[family][2]))):
        block = f"{FAMILIES[family][2]}.{i}"
        plan |= {f"{block}.attention": enter, f"{block}.mlp": enter}
        plan |= {f"{block}.attention.{name}": column for name in "qkv"} | {f"{block}.attention.o": row}
        plan |= {f"{block}.mlp.up": column, f"{block}.mlp.gate": column, f"{block}.mlp.down": row}
        if sequence:
            plan |= {f"{block}.norm1": SequenceParallel(), f"{block}.norm2": SequenceParallel()}
    if family == "llama":
        plan |= {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)}
        plan |= {"norm": SequenceParallel()} if sequence else {}
    return {path: style for path, style in plan.items() if _has(model, path)}


def _has(model: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in model.named_modules())


def torch_says(family: str, world: int, *, sequence: bool = False) -> list[Said]:
    build, make_batch, _ = FAMILIES[family]
    with fake_ranks(world):
        mesh = init_device_mesh("cpu", (world,))
        model, batch = build(), make_batch()
        parallelize_module(model, mesh, styles(family, model, sequence))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def step() -> None:
            with loss_parallel():
                out = model(batch["x"])
                F.cross_entropy(out.flatten(0, -2), batch["y"].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        return listen(step)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("world", [2, 4])
def test_tensor_parallel_says_what_torch_says(family: str, world: int) -> None:
    if family == "llama" and world == 4:
        pytest.skip("two heads of keys cannot be shared by four ranks")
    program = parallelize(graph(family), Plan(tp=world))
    assert planned(program.roles[0].collectives) == torch_says(family, world)


def test_sequence_parallel_says_what_torch_says() -> None:
    """But for gradients of norms: torch adds them up as often as its update reads them, the plan once."""
    said = torch_says("llama", 2, sequence=True)
    plan = planned(parallelize(graph("llama"), Plan(tp=2, sequence_parallel=True)).roles[0].collectives)
    small = ("all-reduce", 32 * 4, 2)
    assert [s for s in plan if s != small] == [s for s in said if s != small]
    exchanges, norms = 3, 7
    assert plan.count(small) == exchanges + norms
