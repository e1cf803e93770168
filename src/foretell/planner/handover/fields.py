"""Which fields of a choice each tool's file says, and where: the one table of refusals, of the guide and of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from foretell.errors import PlanError
from foretell.planner.command import variable
from foretell.plans import Plan

PLAN_FIELDS: Final = tuple(f.name for f in fields(Plan))
ACCUMULATION: Final = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"  # that accelerate's library reads
JOB_FIELDS: Final = ("batch", "precision", "nodes", "devices of a node", "longest time", "spot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that plans are handed over to."""

    file: str  # what its file is usually called
    title: str
    checked: str  # who reads the file in the suite, and in which version
    says: Mapping[str, str]  # field → where it is written

    def refuse(self, plan: Plan) -> None:
        """A plan with a setting that the file has no word for is refused, never cut short."""
        usual = Plan()
        if unsaid := [
            f"{name}={getattr(plan, name)}"
            for name in PLAN_FIELDS
            if name not in self.says and getattr(plan, name) != getattr(usual, name)
        ]:
            others = [name for name, tool in TOOLS.items() if name not in _LAUNCHERS and tool.can_say(plan)]
            way = f"hand over to {' or '.join(others)}" if others else "hand the plan to your script with torchrun"
            raise PlanError(f"{self.title} cannot say {', '.join(unsaid)}. Decide otherwise with --plan, or {way}.")

    def can_say(self, plan: Plan) -> bool:
        usual = Plan()
        return all(name in self.says or getattr(plan, name) == getattr(usual, name) for name in PLAN_FIELDS)


_ENVIRONMENT: Final = {name: f"${variable(name)}" for name in (*PLAN_FIELDS, "batch", "precision")}
_LAUNCHERS: Final = ("torchrun", "slurm", "skypilot", "kubernetes")

TOOLS: Final[Mapping[str, Tool]] = {
    "torchrun": Tool(
        file="launch.sh", title="torchrun", checked="torch's own parser",
        says={**_ENVIRONMENT, "nodes": "--nnodes", "devices of a node": "--nproc-per-node"},
    ),
    "slurm": Tool(
        file="job.sbatch", title="Slurm", checked="sbatch 22.05",
        says={**_ENVIRONMENT, "nodes": "--nodes", "devices of a node": "--gpus-per-node", "longest time": "--time"},
    ),
    "skypilot": Tool(
        file="sky.yaml", title="SkyPilot", checked="sky 0.14",
        says={**_ENVIRONMENT, "nodes": "num_nodes", "devices of a node": "resources.accelerators", "longest time": "timeout",
              "spot": "resources.use_spot"},
    ),
    "kubernetes": Tool(
        file="job.yaml", title="Kubernetes", checked="kubernetes-validate 1.37",
        says={**_ENVIRONMENT, "nodes": "spec.parallelism", "devices of a node": "resources.limits",
              "longest time": "activeDeadlineSeconds"},
    ),
    "accelerate": Tool(
        file="accelerate.yaml", title="accelerate", checked="accelerate 1.15, run on two processes",
        says={
            "dp": "num_processes", "tp": "parallelism_config_tp_size", "cp": "parallelism_config_cp_size",
            "cp_gather": "parallelism_config_cp_comm_strategy",
            "zero": "fsdp_reshard_after_forward", "hybrid_shard": "parallelism_config_dp_shard_size",
            "checkpointing": "fsdp_activation_checkpointing", "offload": "fsdp_offload_params",
            "grad_accumulation": f"${ACCUMULATION}", "batch": f"${variable('batch')}",
            "precision": "mixed_precision", "nodes": "num_machines", "devices of a node": "num_processes",
        },
    ),
    "deepspeed": Tool(
        file="deepspeed.json", title="DeepSpeed's file", checked="DeepSpeed 0.19",
        says={
            "dp": "train_batch_size", "tp": "tensor_parallel.autotp_size", "zero": "zero_optimization.stage",
            "sharding": "its own", "bucket_bytes": "zero_optimization.reduce_bucket_size",
            "overlap": "zero_optimization.overlap_comm", "offload": "zero_optimization.offload_optimizer, offload_param",
            "offload_to": "device", "live_parameters": "zero_optimization.stage3_max_live_parameters",
            "grad_accumulation": "gradient_accumulation_steps", "batch": "train_micro_batch_size_per_gpu",
            "precision": "bf16, fp16",
        },
    ),
    "torchtitan": Tool(
        file="torchtitan.toml", title="torchtitan", checked="torchtitan 0.2.2 (0.3 has no TOML files)",
        says={
            "dp": "parallelism.data_parallel_*_degree", "tp": "parallelism.tensor_parallel_degree",
            "sequence_parallel": "parallelism.tensor_parallel_degree",
            "overlap_tp": "parallelism.enable_async_tensor_parallel", "pp": "parallelism.pipeline_parallel_degree",
            "schedule": "parallelism.pipeline_parallel_schedule", "virtual_stages": "parallelism.pipeline_parallel_schedule",
            "cp": "parallelism.context_parallel_degree", "cp_gather": "parallelism.context_parallel_rotate_method",
            "ep": "parallelism.expert_parallel_degree", "etp": "parallelism.expert_tensor_parallel_degree",
            "dispatch": "parallelism.expert_parallel_comm_backend",
            "zero": "parallelism.fsdp_reshard_after_forward", "hybrid_shard": "parallelism.data_parallel_shard_degree",
            "checkpointing": "activation_checkpoint", "offload": "training.enable_cpu_offload",
            "grad_accumulation": "training.global_batch_size", "batch": "training.local_batch_size",
            "precision": "training.dtype, mixed_precision_param",
        },
    ),
    "lightning": Tool(
        file="lightning.yaml", title="Lightning", checked="Lightning 2.6",
        says={
            "dp": "trainer.devices, num_nodes", "zero": "trainer.strategy", "offload": "trainer.strategy",
            "offload_to": "trainer.strategy", "sharding": "trainer.strategy",
            "grad_accumulation": "trainer.accumulate_grad_batches", "batch": f"${variable('batch')}",
            "precision": "trainer.precision", "nodes": "trainer.num_nodes", "devices of a node": "trainer.devices",
            "longest time": "trainer.max_time",
        },
    ),
    "fsdp": Tool(
        file="fsdp_setup.py", title="setup code", checked="torch, run on two processes",
        says={
            "dp": "mesh", "tp": "mesh", "zero": "reshard_after_forward", "hybrid_shard": "mesh",
            "checkpointing": "checkpoint_wrapper", "bucket_bytes": "bucket_cap_mb", "offload": "CPUOffloadPolicy",
            "grad_accumulation": "GRAD_ACCUMULATION", "batch": "MICRO_BATCH", "precision": "MixedPrecisionPolicy, autocast",
        },
    ),
}  # fmt: skip


def table(tools: Sequence[str] = tuple(TOOLS)) -> str:
    """Tool × field, for the guide."""
    lines = ["| field | " + " | ".join(tools) + " |", "|---" * (1 + len(tools)) + "|"]
    for name in (*PLAN_FIELDS, *JOB_FIELDS):
        words = [TOOLS[tool].says.get(name) for tool in tools]
        lines.append(f"| {name} | " + " | ".join("–" if each is None else f"`{each}`" for each in words) + " |")
    return "\n".join(lines) + "\n"
