"""DeepSpeed's JSON: ZeRO, offloading, precision, the batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.precision import Float
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.optimizers import deepspeed_optimizer, with_masters

TRAINER: Final = "DeepSpeed"
_OWN: Final = {
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_allow_untested_optimizer",
}
# Settings of stage 3 that are modelled at their defaults.
_STAGE_3: Final = {
    "stage3_max_reuse_distance": 1e9,
    "stage3_prefetch_bucket_size": 5e7,
    "stage3_param_persistence_threshold": 1e5,
    "stage3_model_persistence_threshold": float(2**63 - 1),
    "sub_group_size": 1e9,
}
BUCKET_ITEM_BYTES: Final = 2  # sizes of buckets are counted in elements


def recognises(entries: Mapping[str, Any]) -> bool:
    return bool(_OWN & entries.keys())


def read(keys: Keys, folder: Path) -> Configuration:
    settings: dict[str, Any] = {}
    if (batch := keys.count("train_micro_batch_size_per_gpu")) is not None:
        settings["batch"] = batch
    total, accumulation = keys.count("train_batch_size"), keys.count("gradient_accumulation_steps")
    if accumulation is not None:
        settings["grad_accumulation"] = accumulation
    if clip := keys.number("gradient_clipping"):
        settings["clip_grad_norm"] = clip
    half = _half(keys)
    named = deepspeed_optimizer(keys.part("optimizer"))
    plan = _zero(keys.part("zero_optimization"))
    settings.update(with_masters(half, fp32_sums=half == "bf16" and plan["zero"] < 2))
    if named is not None:
        settings["optimizer"] = named
    _others(keys, plan)
    if _compiles(keys.part("compile")):
        settings["compile"] = True
    return Configuration(
        file=keys.file, trainer=TRAINER, settings=settings, plan=plan,
        global_batch=total if accumulation is None else None,
    )  # fmt: skip


def _compiles(keys: Keys) -> bool:
    keys.not_modelled("deepcompile")
    keys.free("disable", "backend", "kwargs")
    return "backend" in keys and not keys.flag("disable")


def _half(keys: Keys) -> Float | None:
    bf16, fp16 = keys.part("bf16"), keys.part("fp16")
    older = keys.part("bfloat16")
    fp16.free("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale", "consecutive_hysteresis",
              "auto_cast", "fp16_master_weights_and_grads")  # fmt: skip
    bf16.not_modelled("immediate_grad_update", "bf16_master_weights_and_grads", "bf16_optimizer_states")
    keys.not_modelled("amp", "torch_autocast")
    if bf16.flag("enabled") or older.flag("enabled"):
        return "bf16"
    return "fp16" if fp16.flag("enabled") else None


def _zero(keys: Keys) -> dict[str, Any]:
    plan: dict[str, Any] = {"zero": keys.count("stage", 0, least=0)}
    if plan["zero"]:
        plan["sharding"] = "deepspeed"
    if (bucket := keys.number("reduce_bucket_size")) is not None:
        plan["bucket_bytes"] = max(int(bucket), 1) * BUCKET_ITEM_BYTES
    if not keys.flag("overlap_comm", default=plan["zero"] == 3):
        plan["overlap"] = False
    plan.update(offloading(keys))
    live = keys.number("stage3_max_live_parameters") or keys.number("max_live_parameters")
    if plan["zero"] == 3:
        if live is not None:
            plan["live_parameters"] = max(int(live), 1)
        for name, usual in _STAGE_3.items():
            if (given := keys.number(name, usual)) != usual:
                keys.say(name, f"{given:g}; its usual {usual:g} is modelled")
    keys.free(
        *_STAGE_3,
        "stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save", "max_reuse_distance",
        "stage3_gather_fp16_weights_on_model_save", "contiguous_gradients",
        "load_from_fp32_weights", "elastic_checkpoint", "ignore_unused_parameters", "round_robin_gradients", "memory_efficient_linear",
        "allgather_partitions", "reduce_scatter", "allgather_bucket_size", "legacy_stage1",
        "log_trace_cache_warnings", "module_granularity_threshold",
    )  # fmt: skip
    keys.not_modelled(
        "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
        "mics_shard_size", "mics_hierarchical_params_gather", "zenflow", "super_offload",
    )  # fmt: skip
    return plan


def offloading(keys: Keys) -> dict[str, Any]:
    """Where the optimizer and parameters are kept; parameters in host memory imply the optimizer there."""
    found: dict[str, Any] = {}
    if keys.flag("cpu_offload"):  # its name in early versions
        found["offload"] = "optimizer"
    for part, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        section = keys.part(part)
        device = section.text("device", "none")
        section.free("pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "nvme_path", "fast_init", "pipeline",
                     "pipeline_read", "pipeline_write")  # fmt: skip
        section.not_modelled("ratio")
        if device in ("cpu", "nvme"):
            found["offload"] = what
        if device == "nvme":
            found["offload_to"] = "nvme"
    return found


def _others(keys: Keys, plan: dict[str, Any]) -> None:
    if (tp := keys.part("tensor_parallel").count("autotp_size", 1, least=0)) and tp > 1:
        plan["tp"] = tp
    checkpointing = keys.part("activation_checkpointing")
    checkpointing.free(
        "contiguous_memory_optimization", "number_checkpoints", "synchronize_checkpoint_boundary", "profile"
    )
    checkpointing.not_modelled("partition_activations", "cpu_checkpointing")
    keys.free(
        "steps_per_print", "wall_clock_breakdown", "dump_state", "scheduler", "zero_allow_untested_optimizer", "tensorboard", "wandb",
        "csv_monitor", "comet", "comms_logger", "flops_profiler", "checkpoint", "zero_force_ds_cpu_optimizer", "aio", "seed",
        "prescale_gradients", "gradient_predivide_factor", "disable_allgather", "memory_breakdown", "data_types", "timers",
        "dataloader_drop_last", "use_data_before_expert_parallel_", "nebula", "_comment",
        "monitor_config", "timeout", "seq_parallel_communication_data_type",
    )  # fmt: skip
    curriculum = keys.part("curriculum_learning")
    if curriculum.flag("enabled"):
        keys.say("curriculum_learning", "sequences are taken at their full length")
    curriculum.free(*curriculum.left())
    keys.not_modelled(
        "communication_data_type", "fp32_allreduce", "sparse_gradients", "sparse_attention", "data_efficiency", "autotuning",
        "progressive_layer_drop", "compression_training", "elasticity", "hybrid_engine", "eigenvalue",
        "quantize_training", "pipeline", "sequence_parallel_size",
    )  # fmt: skip
