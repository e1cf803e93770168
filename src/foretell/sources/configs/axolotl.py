"""axolotl's YAML: fine-tuning of a named model, whole or with (Q)LoRA, with packing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.fsdp import fsdp_plan
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import named_optimizer
from foretell.sources.configs.trainer import deepspeed_of, targets_text

TRAINER: Final = "axolotl"
_FREE: Final = tuple(
    """
    model_type tokenizer_type tokenizer_config trust_remote_code datasets test_datasets dataset_prepared_path val_set_size output_dir
    dataset_processes shuffle_merged_datasets strict chat_template special_tokens tokens adapter lora_model_dir lora_alpha lora_dropout
    lora_modules_to_save wandb_project wandb_entity wandb_watch wandb_name wandb_log_model wandb_mode wandb_run_id num_epochs max_steps
    lr_scheduler learning_rate lr_scheduler_kwargs cosine_min_lr_ratio train_on_inputs early_stopping_patience resume_from_checkpoint
    auto_resume_from_checkpoints logging_steps warmup_steps warmup_ratio evals_per_epoch eval_steps eval_table_size saves_per_epoch
    save_steps save_total_limit eval_max_new_tokens eval_sample_packing save_first_step save_strategy eval_strategy debug weight_decay
    hub_model_id hub_strategy push_dataset_to_hub hf_use_auth_token local_rank seed gradient_checkpointing_kwargs plugins
    adam_beta1 adam_beta2 adam_epsilon is_llama_derived_model is_mistral_derived_model is_falcon_derived_model save_safetensors
    dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataset_keep_in_memory mlflow_tracking_uri use_tensorboard
    mlflow_experiment_name comet_project_name tokenizer_use_fast tokenizer_legacy base_model_config revision_of_model
    lora_fan_in_fan_out flash_attn_fuse_qkv pad_to_sequence_len group_by_length dataset_exact_deduplication include_tokens_per_second
    bf16 loraplus_lr_ratio eval_batch_size ddp_timeout ddp_broadcast_buffers load_best_model_at_end metric_for_best_model greater_is_better
    """.split()
)
_CHANGES: Final = (
    "rl", "relora_steps", "neftune_noise_alpha", "noisy_embedding_alpha", "gptq", "unfrozen_parameters", "lora_on_cpu", "peft_use_dora",
    "peft_use_rslora", "peft", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "unsloth_lora_mlp", "unsloth_lora_qkv",
    "unsloth_lora_o", "unsloth_cross_entropy_loss", "cut_cross_entropy", "liger_rope", "liger_rms_norm", "liger_glu_activation",
    "liger_swiglu", "liger_layer_norm", "liger_cross_entropy", "liger_fused_linear_cross_entropy", "flash_attn_cross_entropy",
    "flash_attn_rms_norm", "flash_attn_fuse_mlp", "s2_attention", "flex_attention", "eager_attention", "fp8",
    "torchao", "qat", "quantization", "activation_offloading", "expert_parallel_size", "sequence_parallel_degree", "multipack_real_batches",
    "tiled_mlp", "reward_model", "process_reward_model", "trl", "kto_desirable_weight", "dpo_label_smoothing", "lora_layers_to_transform",
)  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return "base_model" in entries and bool({"datasets", "micro_batch_size", "sequence_len"} & entries.keys())


def read(keys: Keys, folder: Path) -> Configuration:
    settings: dict[str, Any] = {
        "batch": keys.count("micro_batch_size", 1),
        "seq": keys.count("sequence_len", 512),
        "grad_accumulation": keys.count("gradient_accumulation_steps", 1),
        "optimizer": named_optimizer(keys, "optimizer", "adamw_torch_fused"),
    }
    if clip := keys.number("max_grad_norm", 1.0):
        settings["clip_grad_norm"] = clip
    adapter = keys.text("adapter")
    settings.update(_precision(keys, adapter))
    settings.update(_adapters(keys, adapter))
    if keys.take("gradient_checkpointing") in (True, "true", "unsloth", "offload", "offload_disk"):
        settings["checkpointing"] = True
        if keys.take("gradient_checkpointing") not in (True, "true"):
            keys.say("gradient_checkpointing", "activations are taken to stay on the device")
    if keys.flag("torch_compile"):
        settings["compile"] = True
    keys.not_modelled("torch_compile_backend", "torch_compile_mode")
    if not keys.flag("sample_packing") and not keys.flag("pad_to_sequence_len"):
        keys.say("sequence_len", "samples are taken to be as long as that; without packing most are shorter: --lengths")
    _attention(keys, settings)
    inner = deepspeed_of(keys, folder)
    plan = {**inner.plan, **_fsdp(keys), **_degrees(keys)}
    keys.free(*_FREE)
    keys.not_modelled(*_CHANGES)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, keys.text("base_model"), folder), settings=settings, plan=plan,
        caveats=inner.caveats,
    )  # fmt: skip


def _precision(keys: Keys, adapter: str) -> dict[str, Any]:
    """Adapters are trained on half-precision weights; whole models in fp32 under autocast, unless they are loaded in bf16."""
    bf16 = str(keys.take("bf16", "auto")).lower() in ("true", "auto", "full")
    fp16 = str(keys.take("fp16", False)).lower() == "true"
    full = str(keys.take("bf16")).lower() == "full" or keys.flag("bfloat16")
    tf32 = keys.flag("tf32")
    keys.free("float16", "tf32")
    if not (bf16 or fp16):
        return {"precision": "tf32"} if tf32 else {}
    half = "fp16" if fp16 else "bf16"
    return {"precision": half} if adapter or full or bf16 else {"precision": f"amp-{half}"}


def _adapters(keys: Keys, adapter: str) -> dict[str, Any]:
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    settings: dict[str, Any] = {}
    if adapter in ("lora", "qlora"):
        settings["lora_rank"] = keys.count("lora_r", 8)
        targets = keys.take("lora_target_modules")
        settings["lora_targets"] = (
            "all" if keys.flag("lora_target_linear") else targets_text(targets) if targets else "q_proj+v_proj"
        )
        if four or eight:
            settings["quantize"] = "nf4" if four else "int8"
    elif adapter:
        keys.say("adapter", f"{adapter}, taken for none")
    keys.free("lora_r", "lora_target_modules", "lora_target_linear")
    return settings


def _attention(keys: Keys, settings: dict[str, Any]) -> None:
    """PyTorch picks FlashAttention wherever it can; other kernels are named."""
    keys.free("flash_attention", "sdp_attention", "attn_implementation")
    keys.not_modelled("xformers_attention", why="priced as PyTorch's own attention")


def _fsdp(keys: Keys) -> dict[str, Any]:
    words, version = keys.take("fsdp"), keys.take("fsdp_version")
    options = keys.part("fsdp_config")
    if not words and version is None and "fsdp_config" not in keys:
        return {}
    plan, _ = fsdp_plan(options)
    if isinstance(words, list) and "shard_grad_op" in words:
        plan["zero"] = 2
    return plan


def _degrees(keys: Keys) -> dict[str, Any]:
    tp, cp = keys.count("tensor_parallel_size", 1), keys.count("context_parallel_size", 1)
    copies, shard = keys.count("dp_replicate_size", 1), keys.count("dp_shard_size", 1)
    plan: dict[str, Any] = {name: n for name, n in (("tp", tp), ("cp", cp)) if n > 1}
    if copies > 1 and shard > 1:
        plan["hybrid_shard"] = shard
    return plan
