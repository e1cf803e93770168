"""Sharded plans say exactly what torch's `fully_shard` says: kind, bytes, ranks, in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.precision import Precision

from .models import FAMILIES, Vit, graph, loss
from .oracle import Said, fake_ranks, listen, planned


class UsedInPart(Vit):
    """Reads the result of a block in the middle, as DPT does: the blocks after it have no backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [self.patch(x).flatten(2).transpose(1, 2) + self.position]
        for block in self.blocks:
            states.append(block(states[-1]))
        return self.head(self.norm(states[1]).mean(1))


class FrozenInPart(Vit):
    """Trains its later blocks alone: those before have no backward pass."""

    def __init__(self) -> None:
        super().__init__(layers=4)
        for block in self.blocks[:2]:
            block.requires_grad_(False)
        self.patch.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x + self.position).mean(1))


IN_PART = {"used": UsedInPart, "frozen": FrozenInPart}


def fsdp_says(family: str, world: int, micro_steps: int = 1, hybrid: int | None = None, **options: Any) -> list[Said]:
    build, make_batch, blocks = FAMILIES[family]
    with fake_ranks(world):
        if hybrid:
            names = ("replicate", "shard")
            options["mesh"] = init_device_mesh("cpu", (world // hybrid, hybrid), mesh_dim_names=names)
        model, batch = build(), make_batch()
        for block in getattr(model, blocks):
            fully_shard(block, **options)
        fully_shard(model, **{k: v for k, v in options.items() if k in ("mesh", "mp_policy")})
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            for _ in range(micro_steps):
                (loss(model, batch) / micro_steps).backward()
            optimizer.step()
            optimizer.zero_grad()

        return listen(step)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("world", [2, 8])
def test_full_sharding_says_what_torch_says(family: str, world: int) -> None:
    program = parallelize(graph(family), Plan(dp=world, zero=3))
    assert planned(program.roles[0].collectives) == fsdp_says(family, world)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_keeping_parameters_for_the_backward_pass_says_what_torch_says(family: str) -> None:
    program = parallelize(graph(family), Plan(dp=4, zero=2))
    assert planned(program.roles[0].collectives) == fsdp_says(family, 4, reshard_after_forward=False)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_sharding_in_groups_says_what_torch_says(family: str) -> None:
    program = parallelize(graph(family), Plan(dp=8, zero=3, hybrid_shard=4))
    assert planned(program.roles[0].collectives) == fsdp_says(family, 8, hybrid=4)


def test_every_micro_step_gathers_and_scatters() -> None:
    program = parallelize(graph("llama"), Plan(dp=4, zero=3, grad_accumulation=2))
    assert planned(program.roles[0].collectives) == fsdp_says("llama", 4, micro_steps=2)


@pytest.mark.parametrize("which", list(IN_PART))
@pytest.mark.parametrize("zero", [2, 3])
def test_blocks_without_a_backward_pass_say_what_torch_says(
    which: str, zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, which, (IN_PART[which], *FAMILIES["vit"][1:]))
    program = parallelize(graph(which), Plan(dp=4, zero=zero))
    ours, theirs = planned(program.roles[0].collectives), fsdp_says(which, 4, reshard_after_forward=zero == 3)
    assert sorted(ours) == sorted(theirs)
    assert ours[:-2] == theirs[:-2]  # what ends with the backward pass itself torch scatters after the rest, we before


@pytest.mark.parametrize("family", ["vit", "llama"])  # on a CPU, batch norm wants its statistics in bf16 too
@pytest.mark.parametrize("reduce", ["fp32", None])
def test_precisions_said_apart_say_what_torch_says(family: str, reduce: Any) -> None:
    ours = Precision(compute="bf16", reduce=reduce)
    theirs = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32 if reduce else None)
    program = parallelize(graph(family, precision=ours), Plan(dp=4, zero=3))
    assert planned(program.roles[0].collectives) == fsdp_says(family, 4, mp_policy=theirs)
