"""Setup code for PyTorch: precision, a device mesh, tensor parallelism, checkpointing and FSDP2, as the plan says."""

from __future__ import annotations

from dataclasses import dataclass, field

from foretell.errors import PlanError
from foretell.planner.handover.fields import TOOLS
from foretell.planner.handover.job import Handed
from foretell.planner.handover.trainers import offloads, recomputes
from foretell.precision import DTYPES

_HEAD = '''"""{comment}.

    model = parallelize(model, blocks=model.model.layers, styles=STYLES)

`blocks` are the repeated layers; `styles` says how one of them is cut among tensor-parallel ranks, by the names of its
modules, as torch.distributed.tensor.parallel takes it: {{"attention.q": ColwiseParallel(), "attention.o": RowwiseParallel()}}.
A step is GRAD_ACCUMULATION backward passes, each of MICRO_BATCH samples on every data-parallel rank, and an update.
"""

import torch
from torch.distributed.device_mesh import init_device_mesh
'''


@dataclass(slots=True)
class _Code:
    imports: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    end: str = "    return model"


def setup_code(handed: Handed) -> str:
    plan, code = handed.plan, _Code()
    if plan.zero == 1:
        raise PlanError(
            "FSDP2 shards gradients with the optimizer's state, which is zero=2 or 3, got zero=1. Decide one of them."
        )
    _cast(handed, code)
    if plan.tp > 1:
        code.imports.append("from torch.distributed.tensor.parallel import parallelize_module")
        code.body += ["    for block in blocks:", '        parallelize_module(block, mesh["tp"], styles)']
    if recomputes(handed, TOOLS["fsdp"].title):
        code.imports.append(
            "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
        )
        code.body += ["    for i, block in enumerate(blocks):", "        blocks[i] = checkpoint_wrapper(block)"]
    if plan.zero:
        _shard(handed, code)
    else:
        _replicate(handed, code)
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
    head = _HEAD.format(comment=handed.comment)
    return "\n".join([head + "\n".join(code.imports), "", *constants, "", "", *made, *code.body, code.end, ""])


def _cast(handed: Handed, code: _Code) -> None:
    """The precision, but for what FSDP's policy says of it."""
    precision = handed.precision
    if precision.master or precision.fp8:
        raise PlanError(
            f"setup code has no optimizer with fp32 copies and no 8-bit layers, got precision={precision}. Plan with "
            "--set precision=parameters:fp32/compute:bf16, bf16 or amp-bf16, or hand over to deepspeed."
        )
    if precision.casts and not handed.plan.zero:
        raise PlanError(
            f"precision={precision} computes with copies, which is FSDP's policy, and this plan has zero=0. Decide zero=2 or 3 "
            "with --plan, or plan with --set precision=amp-bf16."
        )
    if precision.tf32 == "products":
        code.body.append("    torch.backends.cuda.matmul.allow_tf32 = True")
    if precision.parameters != "fp32":
        code.body.append(f"    model = model.to(torch.{DTYPES[precision.parameters]})")
    if precision.autocast:
        dtype = DTYPES[precision.autocast]
        code.body.append(f"    model.forward = torch.autocast(device_type, dtype=torch.{dtype})(model.forward)")


def _shard(handed: Handed, code: _Code) -> None:
    plan, precision = handed.plan, handed.precision
    names, options = ["fully_shard"], ""
    if precision.casts or precision.reduce != precision.parameters:
        names.insert(0, "MixedPrecisionPolicy")
        compute, reduce = (DTYPES[each] for each in (precision.compute, precision.reduce) if each)
        code.body.append(f"    policy = MixedPrecisionPolicy(param_dtype=torch.{compute}, reduce_dtype=torch.{reduce})")
        options += ", mp_policy=policy"
    if offloads(handed, TOOLS["fsdp"].title):
        names.insert(0, "CPUOffloadPolicy")
        options += ", offload_policy=CPUOffloadPolicy()"
    code.imports.append(f"from torch.distributed.fsdp import {', '.join(names)}")
    mesh = 'mesh["replicate", "shard"]' if plan.hybrid_shard else 'mesh["dp"]'
    options = f"mesh={mesh}, reshard_after_forward={plan.zero == 3}{options}"
    code.body += [
        "    for block in blocks:",
        f"        fully_shard(block, {options})",
        f"    fully_shard(model, {options})",
    ]


def _replicate(handed: Handed, code: _Code) -> None:
    plan = handed.plan
    if plan.offload != "none":
        raise PlanError(
            f"setup code offloads under FSDP alone, got offload={plan.offload} and zero=0. Decide zero=3 with --plan."
        )
    if plan.dp == 1:
        return
    size = "" if plan.bucket_bytes is None else f", bucket_cap_mb={max(plan.bucket_bytes // 2**20, 1)}"
    if plan.tp > 1:
        code.imports.append("from torch.distributed._composable.replicate import replicate")
        code.end = f'    return replicate(model, device_mesh=mesh["dp"]{size})'
    else:
        code.imports.append("from torch.nn.parallel import DistributedDataParallel")
        code.end = f"    return DistributedDataParallel(model{size})"


def _mesh(handed: Handed) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Outermost first, as ranks are ordered."""
    plan = handed.plan
    dp = (plan.dp // plan.hybrid_shard, plan.hybrid_shard) if plan.hybrid_shard else (plan.dp,)
    names = ("replicate", "shard") if plan.hybrid_shard else ("dp",)
    return ((*dp, plan.tp), (*names, "tp")) if plan.tp > 1 else (dp, names)
