"""Configurations of trainers. What a trainer's file cannot say of a plan is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import yaml

from foretell.errors import PlanError
from foretell.planner.handover.fields import ACCUMULATION, TOOLS
from foretell.planner.handover.job import Handed
from foretell.plans import Sharding
from foretell.precision import DTYPES, HALVES, Float
from foretell.recomputing import Recomputing
from foretell.sources.configs.deepspeed import BUCKET_ITEM_BYTES
from foretell.sources.configs.optimizers import autocast, sharded_half, with_masters

T = TypeVar("T")
_SCHEDULES: Final = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
_CHUNKS: Final = {"interleaved": 2, "zero-bubble": 2}  # of a device, in torchtitan's schedules
_TITAN_PRECISIONS: Final[tuple[tuple[Float, Float], ...]] = (  # kept and computed in
    ("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"), ("bf16", "fp32"),
)  # fmt: skip
_LIGHTNING: Final = {
    "fp32": "32-true", "torch-fp32": "32-true", "amp-fp16": "16-mixed", "amp-bf16": "bf16-mixed", "bf16": "bf16-true", "fp16": "16-true",
}  # fmt: skip


def accelerate(handed: Handed) -> str:
    plan, tool = handed.plan, TOOLS["accelerate"]
    if plan.zero == 1:
        raise PlanError(
            "accelerate says zero=1 in a DeepSpeed file only. Hand over to deepspeed, or decide zero=2 or 3."
        )
    sharded = plan.zero > 1
    ways = {(sharded_half("fp32", half, half) if sharded else autocast(half))["precision"]: half for half in HALVES}
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if plan.devices > 1 else "NO",
        "num_machines": handed.nodes,
        "num_processes": plan.devices,
        "machine_rank": 0,
        "mixed_precision": _precision(handed, tool.title, {**_plain("no"), **ways}),
    }
    if sharded:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": recomputes(handed, tool.title),
            "fsdp_offload_params": offloads(handed, tool.title),
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    else:
        _need_sharding(handed, tool.title)
    if plan.tp * plan.cp > 1 or plan.hybrid_shard:
        shard = plan.hybrid_shard or (plan.dp if sharded else 1)
        config["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": plan.dp // shard,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_tp_size": plan.tp,
            "parallelism_config_cp_size": plan.cp,
        }
        if plan.cp > 1:
            config["parallelism_config"]["parallelism_config_cp_comm_strategy"] = _rotation(plan.cp_gather)
    # Its launcher refuses a file with micro-steps, and hands on the argument for DeepSpeed alone; its library reads a variable.
    variables = " ".join(
        [f"{name}={value}" for name, value in handed.variables.items() if name.endswith("_BATCH")]
        + [f"{ACCUMULATION}={handed.micro_steps}"]
    )
    launch = f"{variables} accelerate launch --config_file FILE {handed.command}"
    return f"# {handed.comment}\n# {launch}\n{yaml.safe_dump(config, sort_keys=False)}"


def deepspeed(handed: Handed) -> str:
    plan, title = handed.plan, TOOLS["deepspeed"].title
    _need_sharding_of(handed, "torch", "deepspeed", title=title)
    zero: dict[str, Any] = {"stage": plan.zero, "overlap_comm": plan.overlap}
    if plan.bucket_bytes is not None:
        zero["reduce_bucket_size"] = max(plan.bucket_bytes // BUCKET_ITEM_BYTES, 1)
    if plan.live_parameters is not None:
        zero["stage3_max_live_parameters"] = plan.live_parameters
    if plan.offload != "none":
        kept = ["offload_optimizer"] + (["offload_param"] if plan.offload == "parameters" else [])
        zero |= {name: {"device": plan.offload_to, "pin_memory": True} for name in kept}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": handed.choice.batch,
        "gradient_accumulation_steps": handed.micro_steps,
        "train_batch_size": handed.choice.batch * handed.micro_steps * plan.dp,
        "zero_optimization": zero,
    }
    ways = {with_masters(half, fp32_sums=half == "bf16" and plan.zero < 2)["precision"]: half for half in HALVES}
    if half := _precision(handed, title, {**_plain(None), **ways}):
        config[half] = {"enabled": True}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    return json.dumps(config, indent=2) + "\n"


def torchtitan(handed: Handed) -> str:
    plan, title = handed.plan, TOOLS["torchtitan"].title
    if plan.zero == 1:
        raise PlanError(
            "torchtitan shards with FSDP or not at all, which is zero=3, 2 or 0, got zero=1. Decide one of them."
        )
    shards = (plan.hybrid_shard or plan.dp) if plan.zero else 1
    ways = {sharded_half(*each, "fp32")["precision"]: each for each in _TITAN_PRECISIONS}  # it reduces in fp32
    kept, compute = _precision(handed, title, {**ways, **_plain(_TITAN_PRECISIONS[0])})
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": handed.choice.batch * (handed.micro_steps if plan.pp > 1 else 1),
            "global_batch_size": handed.choice.batch * handed.micro_steps * plan.dp,
            "dtype": DTYPES[kept],
            "mixed_precision_param": DTYPES[compute],
            "mixed_precision_reduce": DTYPES["fp32"],
            "enable_cpu_offload": offloads(handed, title),
        },
        "parallelism": {
            "data_parallel_replicate_degree": plan.dp // shards,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
            "tensor_parallel_degree": plan.tp,
            "context_parallel_degree": plan.cp,
            "expert_parallel_degree": plan.ep,
            "pipeline_parallel_degree": plan.pp,
            **_torchtitan_details(handed),
        },
        "activation_checkpoint": _activation_checkpoint(plan.checkpointing),
    }
    if "seq" in handed.choice.settings:
        tables["training"]["seq_len"] = int(handed.choice.settings["seq"])
    lines = [f"# {handed.comment}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _torchtitan_details(handed: Handed) -> dict[str, Any]:
    """How each degree is used, where it is."""
    plan, found = handed.plan, dict[str, Any]()
    if plan.tp > 1:
        if not plan.sequence_parallel:
            raise PlanError(
                "torchtitan's tensor-parallel ranks share sequences too, got sequence_parallel=false. Decide "
                "sequence_parallel=true with --plan."
            )
        found["enable_async_tensor_parallel"] = plan.overlap_tp
    if plan.cp > 1:
        found["context_parallel_rotate_method"] = _rotation(plan.cp_gather)
    if plan.ep > 1:
        found["expert_tensor_parallel_degree"] = 1 if plan.etp == 1 else plan.tp
        found["expert_parallel_comm_backend"] = "deepep" if plan.dispatch == "deepep" else "standard"
    if plan.pp > 1:
        if plan.schedule not in _SCHEDULES:
            raise PlanError(
                f"torchtitan has no schedule={plan.schedule}. It has {', '.join(_SCHEDULES)}. Decide one of them with --plan."
            )
        chunks = _CHUNKS.get(plan.schedule, 1)
        if plan.virtual_stages != chunks:
            raise PlanError(
                f"torchtitan's {_SCHEDULES[plan.schedule]} has {chunks} stages on a device, got virtual_stages={plan.virtual_stages}. "
                f"Decide virtual_stages={chunks} with --plan."
            )
        found["pipeline_parallel_schedule"] = _SCHEDULES[plan.schedule]
        found["pipeline_parallel_microbatch_size"] = handed.choice.batch
    return found


def lightning(handed: Handed) -> str:
    """The `trainer` section of its command line; model and data are the user's own classes."""
    plan, title = handed.plan, TOOLS["lightning"].title
    if plan.zero == 0 and plan.offload != "none":
        _need_sharding(handed, title)
    minutes = round(handed.limit / 60)
    days, hours = divmod(minutes // 60, 24)
    trainer = {
        "accelerator": "cpu" if handed.device.kind == "cpu" else "gpu",
        "devices": handed.each,
        "num_nodes": handed.nodes,
        "strategy": _strategy(handed),
        "precision": _precision(handed, title, _LIGHTNING),
        "accumulate_grad_batches": handed.micro_steps,
        "max_time": f"{days:02d}:{hours:02d}:{minutes % 60:02d}:00",
    }
    batch = f"batches of {handed.choice.batch} are the data module's to make"
    return f"# {handed.comment}; {batch}\n{yaml.safe_dump({'trainer': trainer}, sort_keys=False)}"


def _strategy(handed: Handed) -> Any:
    plan = handed.plan
    _need_sharding_of(handed, "torch", "deepspeed", title=TOOLS["lightning"].title)
    if plan.zero == 0:
        return "ddp" if plan.devices > 1 else "auto"
    if plan.zero > 1 and plan.sharding == "torch":
        words = {
            "sharding_strategy": "FULL_SHARD" if plan.zero == 3 else "SHARD_GRAD_OP",
            "cpu_offload": offloads(handed, "Lightning's FSDP"),
        }
        return {"class_path": "lightning.pytorch.strategies.FSDPStrategy", "init_args": words}
    if plan.offload == "none":
        return f"deepspeed_stage_{plan.zero}"
    args = {"stage": plan.zero, "offload_optimizer": True, "offload_optimizer_device": plan.offload_to}
    if plan.offload == "parameters":
        args |= {"offload_parameters": True, "offload_params_device": plan.offload_to}
    return {"class_path": "lightning.pytorch.strategies.DeepSpeedStrategy", "init_args": args}


def _activation_checkpoint(checkpointing: str | float) -> dict[str, Any]:
    """torchtitan's table: whole blocks, some of them, chosen ops, or what a budget leaves."""
    read = Recomputing.parse(checkpointing)
    if read.kind == "none":
        return {"mode": "none"}
    if read.kind == "ops":
        return {"mode": "selective", "selective_ac_option": "op"}
    if read.kind == "cheapest":
        return {"mode": "memory_budget", "memory_budget": round(1 - read.share, 6)}
    every = round(1 / read.share) if read.kind == "blocks" and read.share else 0
    if read.kind == "blocks" and read.blocks == 1 and not read.partitioned and every and read.share == 1 / every:
        return {"mode": "full"} if every == 1 else {"mode": "selective", "selective_ac_option": f"{every}"}
    raise PlanError(
        f"torchtitan recomputes every nth block, chosen ops or what a budget leaves, not checkpointing={checkpointing}. Decide "
        "none, full, selective-op or 0.5."
    )


def _plain(word: T) -> dict[str, T]:
    """What a file says of fp32 by saying nothing: torch's own defaults."""
    return {"fp32": word, "torch-fp32": word}


def _precision(handed: Handed, title: str, ways: Mapping[str, T]) -> T:
    name = handed.precision.name
    if name not in ways:
        raise PlanError(
            f"{title} cannot say precision={name}. It has {', '.join(ways)}. Plan with --set precision= one of them, or hand over to fsdp."
        )
    return ways[name]


def recomputes(handed: Handed, title: str) -> bool:
    """Whole blocks or nothing."""
    if handed.plan.checkpointing not in ("none", "full"):
        raise PlanError(
            f"{title} recomputes whole blocks or nothing, got checkpointing={handed.plan.checkpointing}. Decide none or full, "
            "or hand over to torchtitan."
        )
    return handed.plan.checkpointing == "full"


def offloads(handed: Handed, title: str) -> bool:
    """Parameters with all that belongs to them, to host memory, or nothing."""
    plan = handed.plan
    if plan.offload == "optimizer" or (plan.offload != "none" and plan.offload_to != "cpu"):
        raise PlanError(
            f"{title} moves parameters to the host's memory or nothing, got offload={plan.offload} to {plan.offload_to}. "
            "Decide offload=parameters or none, or hand over to deepspeed."
        )
    return plan.offload == "parameters"


def _need_sharding_of(handed: Handed, *ways: Sharding, title: str) -> None:
    if handed.plan.sharding not in ways:
        raise PlanError(
            f"{title} shards as {' or '.join(ways)} does, and this plan has sharding={handed.plan.sharding}. Leave it out of --plan."
        )


def _need_sharding(handed: Handed, title: str) -> None:
    """Settings that are FSDP's."""
    plan = handed.plan
    if unsaid := [
        f"{name}={getattr(plan, name)}" for name in ("checkpointing", "offload") if getattr(plan, name) != "none"
    ]:
        raise PlanError(
            f"{title} says {', '.join(unsaid)} under FSDP alone, and this plan has zero=0. Decide zero=2 or 3 with --plan, or "
            "hand over to fsdp."
        )


def _rotation(gathers: bool) -> str:
    return "allgather" if gathers else "alltoall"
