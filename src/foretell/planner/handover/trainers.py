"""Configurations of trainers. What a trainer's file cannot say of a plan is an error that names it."""

from __future__ import annotations

import json
from typing import Any, Final

import yaml

from foretell.errors import PlanError
from foretell.planner.handover.job import Handed
from foretell.precision import Precision

_SCHEDULES: Final = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}


def accelerate(handed: Handed) -> str:
    plan = handed.plan
    _refuse(handed, "accelerate", "ep", "servers", "pp")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP"
        if plan.zero > 1 or plan.tp * plan.cp > 1
        else "MULTI_GPU"
        if plan.devices > 1
        else "NO",
        "num_machines": handed.nodes,
        "num_processes": plan.devices,
        "machine_rank": 0,
        "mixed_precision": _half(handed.precision) or "no",
    }
    if plan.zero == 1:
        raise PlanError(
            "accelerate says zero=1 in a DeepSpeed file only. Hand over to deepspeed, or decide zero=2 or 3."
        )
    if config["distributed_type"] == "FSDP":
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.checkpointing == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if plan.tp * plan.cp > 1:
            config["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": 1,
                "parallelism_config_dp_shard_size": plan.dp,
                "parallelism_config_tp_size": plan.tp,
                "parallelism_config_cp_size": plan.cp,
            }
    # Its launcher refuses a file with micro-steps: they are an argument.
    launch = f"accelerate launch --config_file FILE --gradient_accumulation_steps {handed.micro_steps} {handed.command}"
    return f"# {handed.comment}\n# {launch}\n{yaml.safe_dump(config, sort_keys=False)}"


def deepspeed(handed: Handed) -> str:
    plan = handed.plan
    _refuse(handed, "DeepSpeed's file", "pp", "cp", "ep", "servers")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": handed.choice.batch,
        "gradient_accumulation_steps": handed.micro_steps,
        "train_batch_size": handed.choice.batch * handed.micro_steps * plan.dp,
        "zero_optimization": {"stage": plan.zero},
    }
    if half := _half(handed.precision):
        config[half] = {"enabled": True}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    return json.dumps(config, indent=2) + "\n"


def torchtitan(handed: Handed) -> str:
    plan = handed.plan
    _refuse(
        handed,
        "torchtitan",
        "servers",
        "overlap_ep",
        "delay_wgrad",
        *(["schedule"] if plan.schedule not in _SCHEDULES else []),
    )
    if plan.zero == 1:
        raise PlanError(
            "torchtitan shards with FSDP or not at all, which is zero=3, 2 or 0, got zero=1. Decide one of them."
        )
    shards = (plan.hybrid_shard or plan.dp) if plan.zero else 1
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": handed.choice.batch * (handed.micro_steps if plan.pp > 1 else 1),
            "global_batch_size": handed.choice.batch * handed.micro_steps * plan.dp,
        },
        "parallelism": {
            "data_parallel_replicate_degree": plan.dp // shards,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
            "tensor_parallel_degree": plan.tp,
            "context_parallel_degree": plan.cp,
            "expert_parallel_degree": plan.ep,
            "pipeline_parallel_degree": plan.pp,
        },
        "activation_checkpoint": _recomputing(plan.checkpointing),
    }
    if "seq" in handed.choice.settings:
        tables["training"]["seq_len"] = int(handed.choice.settings["seq"])
    if plan.pp > 1:
        tables["parallelism"] |= {
            "pipeline_parallel_schedule": _SCHEDULES[plan.schedule],
            "pipeline_parallel_microbatch_size": handed.choice.batch,
        }
    lines = [f"# {handed.comment}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _recomputing(checkpointing: str | float) -> dict[str, Any]:
    if checkpointing in ("none", "full"):
        return {"mode": checkpointing}
    if checkpointing == "selective-op":
        return {"mode": "selective", "selective_ac_option": "op"}
    if isinstance(checkpointing, float) and checkpointing > 0:
        return {"mode": "selective", "selective_ac_option": f"{max(round(1 / checkpointing), 1)}"}
    raise PlanError(
        f"torchtitan recomputes whole blocks or chosen ops, not checkpointing={checkpointing}. Decide none or full."
    )


def _half(precision: str) -> str | None:
    """What is computed in, where that is half precision."""
    read = Precision.parse(precision)
    return read.products if read.is_half else None


def _refuse(handed: Handed, tool: str, *settings: str) -> None:
    """What the tool's file has no word for."""
    plan, usual = handed.plan, type(handed.plan)()
    if unsupported := [
        f"{name}={getattr(plan, name)}" for name in settings if getattr(plan, name) != getattr(usual, name)
    ]:
        raise PlanError(
            f"{tool} cannot say {', '.join(unsupported)}. Decide otherwise with --plan, or hand over to torchtitan or fsdp."
        )
