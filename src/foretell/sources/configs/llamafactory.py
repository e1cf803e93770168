"""LLaMA-Factory's YAML: TrainingArguments with a model, a stage, adapters and quantized weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model
from foretell.sources.configs.trainer import FREE as TRAINER_FREE
from foretell.sources.configs.trainer import targets_text, trainer_step

TRAINER: Final = "LLaMA-Factory"
_OWN: Final = {"finetuning_type", "cutoff_len", "template", "stage"}
_FREE: Final = tuple(
    """
    stage do_train dataset dataset_dir eval_dataset template cutoff_len max_samples overwrite_cache preprocessing_num_workers
    dataloader_num_workers output_dir logging_steps save_steps plot_loss overwrite_output_dir save_only_model report_to learning_rate
    lr_scheduler_type val_size compute_accuracy export_dir export_size export_device export_legacy_format adapter_name_or_path
    quantization_type double_quantization flash_attn lora_alpha lora_dropout additional_target loraplus_lr_ratio image_max_pixels
    video_max_pixels media_dir streaming buffer_size mix_strategy interleave_probs use_swanlab swanlab_project tokenized_path
    trust_remote_code enable_thinking train_on_prompt mask_history ignore_pad_token_for_loss ray_run_name ray_storage_path
    ray_num_workers placement_strategy resources_per_worker low_cpu_mem_usage rope_scaling create_new_adapter
    """.split()
)
_CHANGES: Final = (
    "pref_beta", "pref_loss", "reward_model", "use_galore", "galore_layerwise", "galore_rank", "use_apollo", "use_badam", "badam_mode",
    "use_adam_mini", "use_muon", "use_unsloth", "use_unsloth_gc", "enable_liger_kernel", "use_dora", "use_rslora", "pissa_init",
    "mixture_of_depths", "use_llama_pro", "freeze_trainable_layers", "freeze_vision_tower", "shift_attn",
    "use_reentrant_gc", "upcast_layernorm",
    "upcast_lmhead_output", "use_cce", "fp8", "fp8_backend", "neat_packing", "infer_backend", "use_fast_tokenizer", "resize_vocab",
)  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return "model_name_or_path" in entries and len(_OWN & entries.keys()) >= 2


def read(keys: Keys, folder: Path) -> Configuration:
    settings, plan, inner = trainer_step(keys, folder)
    settings["seq"] = keys.count("cutoff_len", 2048)
    if not keys.flag("disable_gradient_checkpointing"):
        settings["checkpointing"] = True  # its default, whatever TrainingArguments say
    kind = keys.text("finetuning_type", "lora")
    half = "bf16" if keys.flag("bf16") else "fp16" if keys.flag("fp16") else ""
    if kind == "lora":
        settings["lora_rank"] = keys.count("lora_rank", 8)
        settings["lora_targets"] = targets_text(keys.take("lora_target", "all"))
        if half:
            settings["precision"] = half  # frozen weights are loaded so; adapters are small
    elif kind == "freeze":
        keys.say("finetuning_type", "freeze, taken for training all parameters")
    if keys.flag("pure_bf16"):
        settings["precision"] = "bf16"
    if bits := keys.count("quantization_bit"):
        settings["quantize"] = {4: "nf4", 8: "int8"}.get(bits, "nf4")
    if (method := keys.text("quantization_method", "bnb")) not in ("bnb", "bitsandbytes"):
        keys.say("quantization_method", f"{method}, taken for bitsandbytes")
    if keys.text("stage", "sft") not in ("sft", "pt"):
        keys.say("stage", f"{keys.text('stage')}, taken for sft")
    if not keys.flag("packing"):
        keys.say("cutoff_len", "samples are taken to be as long as that; without packing most are shorter: --lengths")
    keys.free("packing", *_FREE, *TRAINER_FREE)
    keys.not_modelled(*_CHANGES)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, keys.text("model_name_or_path"), folder), settings=settings, plan=plan,
        caveats=inner.caveats,
    )  # fmt: skip
