"""LLaMA-Factory's YAML: TrainingArguments with a model, a stage, adapters and quantized weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.finetuning import few_bits, preference, targets_text
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.known_keys import account_for
from foretell.sources.configs.llamafactory_v1 import read_new
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import low_rank
from foretell.sources.configs.trainer import trainer_step

TRAINER: Final = "LLaMA-Factory"
_OWN: Final = {"finetuning_type", "cutoff_len", "template", "stage"}
_STAGES: Final = {"sft": "sft", "pt": "sft", "dpo": "dpo", "kto": "kto", "rm": "reward-lm", "ppo": "ppo"}
_WITHOUT_REFERENCE: Final = ("orpo", "simpo")


def recognises(entries: Mapping[str, Any]) -> bool:
    return _is_new(entries) or ("model_name_or_path" in entries and len(_OWN & entries.keys()) >= 2)


def _is_new(entries: Mapping[str, Any]) -> bool:
    """Of its version 1, which calls things by other names."""
    return (
        "model" in entries
        and "train_dataset" in entries
        and bool({"model_class", "dist_config", "cutoff_len"} & entries.keys())
    )


def read(keys: Keys, folder: Path) -> Configuration:
    if "train_dataset" in keys:
        return read_new(keys, folder)
    settings, plan, inner = trainer_step(keys, folder)
    settings["seq"] = keys.count("cutoff_len", 2048)
    if not keys.flag("disable_gradient_checkpointing"):
        settings["checkpointing"] = True  # its default, whatever TrainingArguments say
    model = keys.text("model_name_or_path")
    settings.update(_method(keys, model))
    settings.update(_optimizer(keys))
    settings.update(_stage(keys))
    if keys.flag("pure_bf16"):
        settings["precision"] = "bf16"
    if keys.flag("enable_liger_kernel") or keys.flag("use_cce"):
        settings["fused_loss"] = True
    if not keys.flag("packing") and not keys.flag("neat_packing"):
        keys.say("cutoff_len", "samples are taken to be as long as that; without packing most are shorter: --lengths")
    keys.free("packing")
    plan.update(_megatron(keys))
    account_for(keys, "llamafactory")
    account_for(keys, "trainer")
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, model, folder), settings=settings, plan=plan,
        caveats=inner.caveats,
    )  # fmt: skip


def _method(keys: Keys, model: str) -> dict[str, Any]:
    """Which parameters are trained, and how the others are kept."""
    kind = keys.text("finetuning_type", "lora")
    half = "bf16" if keys.flag("bf16") else "fp16" if keys.flag("fp16") else ""
    settings: dict[str, Any] = {}
    if kind in ("lora", "oft"):
        if kind == "oft":
            settings["oft_block"] = keys.count("oft_block_size", 32)
        else:
            settings["lora_rank"] = keys.count("lora_rank", 8)
        settings["lora_targets"] = targets_text(keys.take(f"{kind}_target", "all"))
        if half:
            settings["precision"] = half  # frozen weights are loaded so; adapters are small
        if (whole := keys.take("additional_target")) is not None:
            settings["also_trained"] = targets_text(whole)
        if keys.flag("use_dora"):
            settings["lora_decomposed"] = True
        settings.update(few_bits(keys, "model_name_or_path", model))
    elif kind == "freeze":
        settings["trained_layers"] = keys.count("freeze_trainable_layers", 2)
    if bits := keys.count("quantization_bit"):
        settings["quantize"] = {4: "nf4", 8: "int8"}.get(bits, "nf4")
    if (method := keys.text("quantization_method", "bnb")) not in ("bnb", "bitsandbytes"):
        keys.say("quantization_method", f"{method}, taken for bitsandbytes")
    keys.free("lora_rank", "lora_target", "oft_block_size", "oft_target", "use_dora", "freeze_trainable_layers")
    return settings


def _optimizer(keys: Keys) -> dict[str, Any]:
    """What its own flags put in place of TrainingArguments' optimizer."""
    for flag, name in (("use_galore", "galore"), ("use_apollo", "apollo")):
        if keys.flag(flag):
            return {"optimizer": low_rank(name, keys.count(f"{name}_rank", 16))}
    if keys.flag("use_muon"):
        return {"optimizer": "muon"}
    return {"optimizer": "adam-mini"} if keys.flag("use_adam_mini") else {}


def _stage(keys: Keys) -> dict[str, Any]:
    stage = keys.chosen("stage", _STAGES, "sft")
    if stage == "dpo" and keys.text("pref_loss", "sigmoid") in _WITHOUT_REFERENCE:
        stage = "orpo"
    found = preference(keys, "stage", stage)
    return {**found, "upcast_logits": True} if stage in ("dpo", "orpo", "kto") else found


def _megatron(keys: Keys) -> dict[str, Any]:
    """Degrees of its Megatron bridge."""
    named = (("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size"), ("cp", "context_parallel_size"),
             ("ep", "expert_model_parallel_size"))  # fmt: skip
    plan: dict[str, Any] = {field: keys.count(name, 1) for field, name in named if keys.count(name, 1) > 1}
    if keys.flag("use_distributed_optimizer"):
        plan["zero"] = 1
    if keys.flag("sequence_parallel") and plan.get("tp", 1) > 1:
        plan["sequence_parallel"] = True
    keys.free(
        "overlap_param_gather", "overlap_grad_reduce", "mixed_precision", "use_packed_sequences", "export_hf_on_finish"
    )
    return plan
