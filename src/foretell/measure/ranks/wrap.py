"""A step as a plan divides it among ranks: DistributedDataParallel, or FSDP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from foretell.capture.step import Step, Watch, prepare_optimizer
from foretell.errors import PlanError
from foretell.plans import Plan
from foretell.units import MIB

_RUN: Final = ("dp", "zero", "hybrid_shard", "grad_accumulation", "bucket_bytes")


def plan_for(text: str, ranks: int) -> Plan:
    """The plan, where it is one that can be run; without a text, plain data parallelism."""
    plan = Plan.parse(text) if text else Plan(dp=ranks)
    changed = [f.name for f in dataclasses.fields(plan) if getattr(plan, f.name) != f.default]
    not_run = [name for name in changed if name not in _RUN] + ["zero=1"] * (plan.zero == 1)
    if not_run:
        raise PlanError(
            f"plan {plan} cannot be measured: {', '.join(not_run)} is not run here. "
            f"Allowed: {', '.join(_RUN)}, with zero 0 (DDP), 2 or 3 (FSDP)."
        )
    if plan.dp != ranks:
        raise PlanError(
            f"plan {plan} is for {plan.dp} ranks, but torchrun started {ranks}. Write dp={ranks}, or no plan."
        )
    if plan.hybrid_shard and (not plan.zero or ranks % plan.hybrid_shard):
        raise PlanError(
            f"plan {plan}: hybrid_shard must divide dp={ranks}, and needs zero=2 or zero=3. Change it or leave it out."
        )
    return plan


@dataclass(kw_only=True)
class RankStep(Step):
    """One rank's share of a step. Gradients are communicated in the last micro-step only, as with `no_sync`."""

    communicate: Callable[[bool], None]

    def run(self, watch: Watch = lambda phase, micro: None, micro_steps: int | None = None) -> None:
        last = (micro_steps or self.workload.grad_accumulation) - 1

        def watched(phase: str, micro: int) -> None:
            if phase == "forward":  # a step of the user's own is one phase, and communicates in every backward pass
                self.communicate(micro == last or self.workload.step is not None)
            watch(phase, micro)

        super().run(watched, micro_steps)


def wrapped(plain: Step, plan: Plan, device: torch.device) -> RankStep:
    """Needs a process group: model and optimizer become this rank's share of them."""
    parts: dict[str, Any] = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
    if plan.zero:
        model = _sharded(plain.model, plan, device)
        optimizer = prepare_optimizer(plain.workload, model)  # sharding replaced the parameters
        if optimizer and plain.optimizer:
            for own, before in zip(optimizer.param_groups, plain.optimizer.param_groups, strict=True):
                own["lr"] = before["lr"]
        parts |= {"model": model, "optimizer": optimizer}
        return RankStep(**parts, communicate=model.set_requires_gradient_sync)
    if plain.optimizer is None:  # replicas that only infer have nothing to say to one another
        return RankStep(**parts, communicate=lambda on: None)
    ids = [device.index] if device.type == "cuda" else None
    size = None if plan.bucket_bytes is None else plan.bucket_bytes / MIB
    replica = DistributedDataParallel(plain.model, device_ids=ids, bucket_cap_mb=size)

    def communicate(on: bool) -> None:
        replica.require_backward_grad_sync = on  # what no_sync() sets

    return RankStep(**parts | {"model": replica}, communicate=communicate)


def _sharded(model: torch.nn.Module, plan: Plan, device: torch.device) -> Any:
    from torch.distributed.fsdp import fully_shard  # a second to import, which DDP need not wait for

    if plan.hybrid_shard is None:
        mesh = init_device_mesh(device.type, (plan.dp,), mesh_dim_names=("shard",))
    else:
        shape = (plan.dp // plan.hybrid_shard, plan.hybrid_shard)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    for module in (*blocks(model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=plan.zero == 3)
    return model


def blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """What FSDP gathers at a time: the modules that a model keeps in lists, where they are more than one layer."""
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    for child in module.children():
        if isinstance(module, lists) and not isinstance(child, lists) and any(child.children()):
            yield child
        else:
            yield from blocks(child)
