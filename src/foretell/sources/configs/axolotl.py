"""axolotl's YAML: fine-tuning of a named model, whole or with (Q)LoRA, with packing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.finetuning import few_bits, preference, targets_text
from foretell.sources.configs.fsdp import fsdp_plan
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.known_keys import account_for
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import named_optimizer
from foretell.sources.configs.trainer import deepspeed_of

TRAINER: Final = "axolotl"
_OBJECTIVES: Final = {
    "dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "simpo": "orpo", "cpo": "orpo", "kto": "kto", "grpo": "grpo", "gdpo": "grpo",
    "dpo_lora": "dpo", "ppo": "ppo",
}  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return "base_model" in entries and bool(
        {"datasets", "pretraining_dataset", "micro_batch_size", "sequence_len"} & entries.keys()
    )


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
    model = keys.text("base_model")
    settings.update(_adapters(keys, adapter, model))
    if keys.take("gradient_checkpointing") in (True, "true", "unsloth", "offload", "offload_disk"):
        settings["checkpointing"] = True
        if keys.take("gradient_checkpointing") not in (True, "true"):
            keys.say("gradient_checkpointing", "activations are taken to stay on the device")
    if str(keys.take("torch_compile", False)).lower() == "true":
        settings["compile"] = True
    keys.not_modelled("torch_compile_backend", "torch_compile_mode")
    if not keys.flag("sample_packing") and not keys.flag("pad_to_sequence_len"):
        keys.say("sequence_len", "samples are taken to be as long as that; without packing most are shorter: --lengths")
    _attention(keys, settings)
    inner = deepspeed_of(keys, folder)
    plan = {**inner.plan, **_fsdp(keys), **_degrees(keys)}
    settings.update(_objective(keys))
    account_for(keys, "axolotl")
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, model, folder), settings=settings, plan=plan,
        caveats=inner.caveats,
    )  # fmt: skip


def _precision(keys: Keys, adapter: str) -> dict[str, Any]:
    """Adapters are trained on half-precision weights; whole models in fp32 under autocast, unless they are loaded in bf16."""
    bf16 = str(keys.take("bf16", "auto")).lower() in ("true", "auto", "full")
    fp16 = str(keys.take("fp16", False)).lower() == "true"
    full = str(keys.take("bf16")).lower() == "full" or keys.flag("bfloat16")
    tf32 = keys.flag("tf32")
    keys.free("float16", "bf16")
    if not (bf16 or fp16):
        return {"precision": "tf32"} if tf32 else {}
    half = "fp16" if fp16 else "bf16"
    return {"precision": half} if adapter or full or bf16 else {"precision": f"amp-{half}"}


def _objective(keys: Keys) -> dict[str, Any]:
    """What `rl` trains towards; the fused losses are of supervised training."""
    kind = keys.text("rl")
    if keys.flag("reward_model"):
        return preference(keys, "reward_model", "reward")
    if keys.flag("process_reward_model"):
        keys.say(
            "process_reward_model", "taken for training on text: its head has two classes in place of the vocabulary"
        )
        return {}
    if kind:
        if kind not in _OBJECTIVES:
            keys.say("rl", f"{kind}, taken for training on text")
            keys.free("trl")
            return {}
        trl = keys.part("trl")
        settings = preference(keys, "rl", _OBJECTIVES[kind])
        if kind == "dpo" and keys.flag("precompute_ref_log_probs"):
            settings = {"objective": "orpo"}  # the same passes
        if _OBJECTIVES[kind] == "grpo":
            if (trl.number("beta", 0.0) or 0.0) > 0:
                settings["objective"] = "grpo-reference"
            if (completion := trl.count("max_completion_length")) is not None:
                settings["completion"] = completion
        trl.free(*trl.left())
        return settings
    keys.free("trl", "precompute_ref_log_probs")
    fused = keys.flag("liger_fused_linear_cross_entropy") or keys.flag("cut_cross_entropy")
    fused = fused or any("cut_cross_entropy" in str(plugin) for plugin in keys.take("plugins") or ())
    return {"fused_loss": True} if fused or keys.flag("unsloth_cross_entropy_loss") else {}


def _adapters(keys: Keys, adapter: str, model: str) -> dict[str, Any]:
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    settings: dict[str, Any] = {}
    if adapter in ("lora", "qlora"):
        settings["lora_rank"] = keys.count("lora_r", 8)
        targets = keys.take("lora_target_modules")
        settings["lora_targets"] = (
            "all" if keys.flag("lora_target_linear") else targets_text(targets) if targets else "q_proj+v_proj"
        )
        if (whole := keys.take("lora_modules_to_save")) is not None:
            settings["also_trained"] = targets_text(whole)
        if keys.flag("peft_use_dora"):
            settings["lora_decomposed"] = True
        if four or eight:
            settings["quantize"] = "nf4" if four else "int8"
        else:
            settings.update(few_bits(keys, "base_model", model))
    elif adapter:
        keys.say("adapter", f"{adapter}, taken for none")
    keys.free("lora_r", "lora_target_modules", "lora_target_linear", "lora_modules_to_save", "peft_use_dora")
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
