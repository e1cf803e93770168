"""LLaMA-Factory's version 1: parts by name (`dist_config`, `peft_config`), micro batches, FSDP2 or DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.accelerate import deepspeed_file
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.finetuning import preference, targets_text
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.known_keys import account_for
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import named_optimizer, sharded_half, with_masters

TRAINER: Final = "LLaMA-Factory"


def read_new(keys: Keys, folder: Path) -> Configuration:
    optimizer = keys.part("optim_config")
    optimizer.free(*optimizer.left())
    half = "bf16" if keys.flag("bf16", default=True) else None
    settings: dict[str, Any] = {
        "batch": keys.count("micro_batch_size", 1),
        "seq": keys.count("cutoff_len", 2048),
        "optimizer": named_optimizer(optimizer, "name", "adamw_torch"),
        **_trained(keys),
    }
    if clip := keys.number("max_grad_norm", 1.0):
        settings["clip_grad_norm"] = clip
    if keys.flag("enable_activation_checkpointing", default=True):
        settings["checkpointing"] = True
    plan, inner = _distributed(keys.part("dist_config"), folder)
    if half and plan.get("sharding") == "deepspeed":
        settings.update(with_masters("bf16"))
    elif half:
        settings.update(
            {"precision": "bf16"} if "lora_rank" in settings or not plan else sharded_half("fp32", "bf16", "fp32")
        )
    if (cp := keys.count("cp_size", 1)) > 1:
        plan["cp"] = cp
    if keys.count("mp_replicate_size", 1) > 1 and (shard := keys.count("mp_shard_size")):
        plan["hybrid_shard"] = shard
    if keys.text("batching_strategy", "normal") == "normal":
        keys.say("cutoff_len", "samples are taken to be as long as that; without packing most are shorter: --lengths")
    keys.free(
        "model_class", "train_dataset", "eval_dataset", "sample_backend", "max_new_tokens", "save_epochs", "save_ckpt_as_hf", "dp_size",
        "dist_timeout", "cp_mode", "lr_scheduler_config", "batching_workers", "init_config", "comms_config", "mp_shard_size",
    )  # fmt: skip
    model = keys.text("model")
    account_for(keys, "llamafactory")
    account_for(keys, "trainer")
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, model, folder), settings=settings, plan=plan,
        global_batch=keys.count("global_batch_size"), caveats=inner.caveats,
    )  # fmt: skip


def _trained(keys: Keys) -> dict[str, Any]:
    """Which parameters, towards what, with which kernels."""
    settings: dict[str, Any] = {}
    peft, kernels, quantized = keys.part("peft_config"), keys.part("kernel_config"), keys.part("quant_config")
    kind = peft.text("name")
    if kind == "lora":
        settings["lora_rank"] = peft.count("r", 8)
        settings["lora_targets"] = targets_text(peft.take("target_modules", "all"))
    elif kind == "freeze":
        settings["trained_layers"] = peft.count("freeze_trainable_layers", 2)
    if bits := quantized.count("quantization_bit"):
        settings["quantize"] = "nf4" if bits == 4 else "int8"
    if "liger" in kernels.text("name"):
        settings["fused_loss"] = True
    for part in (peft, kernels, quantized):
        part.free(*part.left())
    if "pref_loss" in keys or "dpo" in keys.text("train_dataset"):
        loss = keys.text("pref_loss", "sigmoid")
        settings.update(preference(keys, "pref_loss", "dpo" if loss == "sigmoid" else "orpo"))
    return settings


def _distributed(keys: Keys, folder: Path) -> tuple[dict[str, Any], Configuration]:
    name = keys.text("name")
    none = Configuration(file=keys.file, trainer=TRAINER)
    if name == "deepspeed":
        inner = deepspeed_file(keys.text("config_file"), folder)
        keys.free(*keys.left())
        return dict(inner.plan), inner
    if name and "fsdp" not in name:
        keys.say("name", f"{name}, taken for DDP")
    if (experts := keys.count("ep_size") or keys.count("expert_parallel_size") or 1) > 1:
        keys.free(*keys.left())
        return {"zero": 3, "ep": experts}, none
    keys.free(*keys.left())
    return ({"zero": 3} if "fsdp" in name else {}), none
