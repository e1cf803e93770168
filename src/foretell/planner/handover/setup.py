"""Setup code for PyTorch: a device mesh, tensor parallelism, checkpointing and FSDP2, as the plan says."""

from __future__ import annotations

from foretell.errors import PlanError
from foretell.planner.handover.job import Handed

_HEAD = '''"""{comment}.

    model = parallelize(model, blocks=model.model.layers, styles=STYLES)

`blocks` are the repeated layers; `styles` says how one of them is cut among tensor-parallel ranks, by the names of its
modules, as torch.distributed.tensor.parallel takes it: {{"attention.q": ColwiseParallel(), "attention.o": RowwiseParallel()}}.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
'''


def setup_code(handed: Handed) -> str:
    plan = handed.plan
    unsupported = [name for name in ("pp", "cp", "ep") if getattr(plan, name) > 1] + ["servers"] * (plan.servers > 0)
    if unsupported:
        raise PlanError(
            f"setup code is written for dp, tp and zero; {', '.join(unsupported)} need a trainer. Hand over to torchtitan."
        )
    if plan.zero == 1:
        raise PlanError(
            "FSDP2 shards gradients with the optimizer's state, which is zero=2 or 3, got zero=1. Decide one of them."
        )
    imports, body = [], []
    if plan.tp > 1:
        imports.append("from torch.distributed.tensor.parallel import parallelize_module")
        body += ["    for block in blocks:", '        parallelize_module(block, mesh["tp"], styles)']
    if plan.checkpointing == "full":
        imports.append("from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper")
        body += ["    for i, block in enumerate(blocks):", "        blocks[i] = checkpoint_wrapper(block)"]
    elif plan.checkpointing not in ("none", 0):
        raise PlanError(
            f"setup code recomputes whole blocks or nothing, got checkpointing={plan.checkpointing}. Decide none or full."
        )
    if plan.zero:
        imports.append("from torch.distributed.fsdp import fully_shard")
        reshard = plan.zero == 3
        mesh = 'mesh["replicate", "shard"]' if plan.hybrid_shard else 'mesh["dp"]'
        body += [
            "    for block in blocks:",
            f"        fully_shard(block, mesh={mesh}, reshard_after_forward={reshard})",
            f"    fully_shard(model, mesh={mesh}, reshard_after_forward={reshard})",
        ]
        end = "    return model"
    elif plan.dp > 1:
        if plan.tp > 1:
            imports.append("from torch.distributed._composable.replicate import replicate")
            end = '    return replicate(model, device_mesh=mesh["dp"])'
        else:
            imports.append("from torch.nn.parallel import DistributedDataParallel")
            size = "" if plan.bucket_bytes is None else f", bucket_cap_mb={max(plan.bucket_bytes // 2**20, 1)}"
            end = f"    return DistributedDataParallel(model{size})"
    else:
        end = "    return model"
    sizes, names = _mesh(handed)
    made = [
        "def parallelize(model, *, blocks, styles=None, device_type=None):",
        '    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")',
        f"    mesh = init_device_mesh(device_type, {sizes}, mesh_dim_names={names})",
    ]
    constants = [
        f"MICRO_BATCH = {handed.choice.batch}",
        f"GRAD_ACCUMULATION = {handed.micro_steps}",
        f"DEVICES = {plan.devices}",
    ]
    head = _HEAD.format(comment=handed.comment).replace("from torch import nn\n", "")
    return "\n".join([head + "\n".join(imports), "", *constants, "", "", *made, *body, end, ""])


def _mesh(handed: Handed) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Outermost first, as ranks are ordered."""
    plan = handed.plan
    dp = (plan.dp // plan.hybrid_shard, plan.hybrid_shard) if plan.hybrid_shard else (plan.dp,)
    names = ("replicate", "shard") if plan.hybrid_shard else ("dp",)
    return ((*dp, plan.tp), (*names, "tp")) if plan.tp > 1 else (dp, names)
