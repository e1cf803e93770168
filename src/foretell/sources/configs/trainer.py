"""Hugging Face `TrainingArguments` as JSON or YAML, those of TRL's trainers and of example scripts with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.precision import Float
from foretell.sources.configs import deepspeed
from foretell.sources.configs.accelerate import deepspeed_file
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.fsdp import fsdp_plan
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import autocast, named_optimizer, sharded_half, with_masters

TRAINER: Final = "Hugging Face's Trainer"
_OWN: Final = {"per_device_train_batch_size", "gradient_accumulation_steps", "output_dir", "learning_rate"}
FREE: Final = (
    "output_dir", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
    "warmup_ratio", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "average_tokens_across_devices",
    "bf16_full_eval", "fp16_full_eval", "gradient_checkpointing_kwargs", "torch_compile_backend", "use_cache", "logging_strategy",
    "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter", "include_num_input_tokens_seen",
    "log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name", "project", "trackio_space_id", "eval_strategy",
    "evaluation_strategy", "eval_steps", "eval_delay", "per_device_eval_batch_size", "prediction_loss_only", "eval_on_start",
    "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics",
    "save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit", "enable_jit_checkpoint",
    "save_safetensors", "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push",
    "hub_revision", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip", "local_rank",
    "restore_callback_states_from_checkpoint", "seed", "data_seed", "use_cpu", "no_cuda", "accelerator_config", "dataloader_drop_last",
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor",
    "remove_unused_columns", "label_names", "length_column_name", "ddp_backend", "ddp_timeout", "debug", "skip_memory_metrics",
    "do_train", "do_eval", "do_predict", "resume_from_checkpoint", "overwrite_output_dir", "logging_dir", "half_precision_backend",
    "fp16_opt_level", "include_inputs_for_metrics", "jit_mode_eval", "past_index", "push_to_hub_token", "mp_parameters",
    "dispatch_batches", "split_batches", "include_tokens_per_second", "use_legacy_prediction_loop", "ray_scope", "torchdynamo",
    "dataset_name", "dataset_config", "dataset_config_name", "dataset_text_field", "dataset_num_proc", "preprocessing_num_workers",
    "train_file", "validation_file", "trust_remote_code", "tokenizer_name", "use_fast_tokenizer", "model_revision", "token",
    "cache_dir", "torch_dtype", "dtype", "max_train_samples", "max_eval_samples", "eval_dataset", "streaming", "eos_token",
    "bnb_4bit_compute_dtype", "lora_task_type", "plot_loss", "chat_template_path", "completion_only_loss", "assistant_only_loss",
)  # fmt: skip
_CHANGES: Final = (
    "optim_target_modules", "label_smoothing_factor", "liger_kernel_config", "neftune_noise_alpha", "torch_empty_cache_steps",
    "auto_find_batch_size", "full_determinism", "parallelism_config", "ddp_find_unused_parameters", "ddp_static_graph",
    "ddp_broadcast_buffers", "group_by_length", "train_sampling_strategy", "torch_compile_mode", "fp16_backend", "tpu_num_cores",
)  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return len(_OWN & entries.keys()) >= 2 or "per_device_train_batch_size" in entries


def read(keys: Keys, folder: Path) -> Configuration:
    settings, plan, inner = trainer_step(keys, folder)
    name = keys.text("model_name_or_path") or keys.text("model_id")
    for key in ("max_length", "max_seq_length", "model_max_length", "block_size"):
        if (length := keys.count(key)) is not None:
            settings["seq"] = length
    settings.update(_adapters(keys))
    if keys.flag("packing"):
        keys.free("eval_packing", "packing_strategy")
    elif name:
        keys.free("packing")
    keys.free(*FREE)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, name, folder) if name else None, settings=settings, plan=plan,
        caveats=inner.caveats,
    )  # fmt: skip


def _adapters(keys: Keys) -> dict[str, Any]:
    """TRL's model arguments."""
    settings: dict[str, Any] = {}
    if keys.flag("use_peft") or "lora_r" in keys:
        settings["lora_rank"] = keys.count("lora_r", 16)
        if (targets := keys.take("lora_target_modules")) is not None:
            settings["lora_targets"] = targets_text(targets)
    if keys.flag("load_in_4bit"):
        settings["quantize"] = "nf4"
    elif keys.flag("load_in_8bit"):
        settings["quantize"] = "int8"
    keys.free("lora_alpha", "lora_dropout", "bnb_4bit_quant_type", "use_bnb_nested_quant", "attn_implementation")
    keys.not_modelled("lora_modules_to_save", "use_dora", "use_rslora")
    return settings


def targets_text(targets: Any) -> str:
    """Names of modules, joined as a setting writes them."""
    if isinstance(targets, str):
        return "all" if targets in ("all", "all-linear") else targets.replace(" ", "").replace(",", "+")
    return "+".join(str(t) for t in targets)


def trainer_step(keys: Keys, folder: Path) -> tuple[dict[str, Any], dict[str, Any], Configuration]:
    """What TrainingArguments say of a step: settings, a plan, and the file of DeepSpeed behind them."""
    settings: dict[str, Any] = {
        "batch": keys.count("per_device_train_batch_size", 8),
        "grad_accumulation": keys.count("gradient_accumulation_steps", 1),
        "optimizer": named_optimizer(keys, "optim", "adamw_torch_fused"),
    }
    if clip := keys.number("max_grad_norm", 1.0):
        settings["clip_grad_norm"] = clip
    half: Float | None = "bf16" if keys.flag("bf16") else "fp16" if keys.flag("fp16") else None
    if tf32 := keys.flag("tf32"):
        settings["precision"] = "tf32"
    settings.update(autocast(half))
    if half and tf32:
        keys.say("tf32", "products outside autocast are taken for fp32")
    if keys.flag("gradient_checkpointing"):
        settings["checkpointing"] = True
    if keys.flag("torch_compile"):
        settings["compile"] = True
    bucket = keys.count("ddp_bucket_cap_mb")
    plan = {} if bucket is None else {"bucket_bytes": bucket * 2**20}
    if keys.flag("use_liger_kernel"):
        keys.say("use_liger_kernel", "fused kernels, priced as the plain ones")
    inner, sharded = deepspeed_of(keys, folder), _fsdp(keys)
    if inner.plan or inner.settings:  # DeepSpeed keeps masters; "auto" is what the trainer says
        settings.update(with_masters(half))
        settings.update({name: inner.settings[name] for name in ("precision", "optimizer") if name in inner.settings})
    elif sharded and half:
        settings.update(sharded_half("fp32", half, half))
    keys.not_modelled(*_CHANGES)
    return settings, {**plan, **inner.plan, **sharded}, inner


def deepspeed_of(keys: Keys, folder: Path) -> Configuration:
    """The file or table of DeepSpeed that a trainer's `deepspeed` names; empty where there is none."""
    given = keys.take("deepspeed")
    if isinstance(given, str) and given:
        return deepspeed_file(given, folder)
    if isinstance(given, Mapping):
        return deepspeed.read(keys.part("deepspeed"), folder)
    return Configuration(file=keys.file, trainer=TRAINER)


def _fsdp(keys: Keys) -> dict[str, Any]:
    given = keys.take("fsdp", "")
    words = (
        given.split() if isinstance(given, str) else [str(word) for word in given] if isinstance(given, list) else []
    )
    options = keys.part("fsdp_config") if words or given is True or keys.take("fsdp_config") else None
    if not words and given is not True:
        if options is not None and given is False:
            return {}
        return fsdp_plan(options)[0] if options is not None else {}
    assert options is not None
    plan, _ = fsdp_plan(options)
    if "shard_grad_op" in words:
        plan["zero"] = 2
    if "hybrid_shard" in words:
        keys.say("fsdp", "hybrid_shard is taken for full_shard")
    if "offload" in words:
        plan["offload"] = "parameters"
    return plan
