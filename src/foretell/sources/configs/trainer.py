"""Hugging Face `TrainingArguments` as JSON or YAML, those of TRL's trainers and of example scripts with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretell.precision import Float
from foretell.sources.configs import accelerate, deepspeed
from foretell.sources.configs.accelerate import deepspeed_file
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.files import found_near, read_entries
from foretell.sources.configs.finetuning import few_bits, liger, preference, targets_text, weights
from foretell.sources.configs.fsdp import fsdp_plan
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.known_keys import account_for
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import autocast, named_optimizer, sharded_half, with_masters

TRAINER: Final = "Hugging Face's Trainer"
_OWN: Final = {"per_device_train_batch_size", "gradient_accumulation_steps", "output_dir", "learning_rate"}
# What tells TRL's trainers apart.
_TELLS: Final = (
    ("grpo", ("num_generations", "max_completion_length")), ("kto", ("desirable_weight", "undesirable_weight")),
    ("dpo", ("precompute_ref_log_probs", "reference_free", "precompute_ref_batch_size", "dpo_beta")),
    ("reward", ("center_rewards_coefficient",)), ("orpo", ("simpo_gamma", "cpo_alpha")),
)  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return len(_OWN & entries.keys()) >= 2 or "per_device_train_batch_size" in entries


def read(keys: Keys, folder: Path) -> Configuration:
    settings, plan, inner = trainer_step(keys, folder)
    name = keys.text("model_name_or_path") or keys.text("model_id") or keys.text("model")
    for key in ("max_length", "max_seq_length", "model_max_length", "block_size"):
        if (length := keys.count(key)) is not None:
            settings["seq"] = length
    settings.update(_adapters(keys, name))
    settings.update(_objective(keys))
    if (kept := weights(keys, "torch_dtype", "dtype")) in ("bf16", "fp16") and not (inner.plan or plan.get("zero")):
        settings["precision"] = kept  # the optimizer's state too; autocast on top changes little
    launched = _launched(keys, folder)
    if launched.plan or launched.settings:
        plan = {**plan, **launched.plan}
        settings.update({n: launched.settings[n] for n in ("precision", "compile") if n in launched.settings})
    if not keys.flag("packing") and name and "seq" in settings:
        keys.say("packing", "off: samples are taken to be as long as the longest, and most are shorter: --lengths")
    account_for(keys, "trainer")
    return Configuration(
        file=keys.file, trainer=TRAINER, model=named_model(keys, name, folder) if name else keys.model, settings=settings, plan=plan,
        devices=launched.devices or _devices(keys), replicas=launched.replicas, caveats=(*inner.caveats, *launched.caveats),
    )  # fmt: skip


def _devices(keys: Keys) -> int | None:
    """Of a launcher's words."""
    each = keys.count("nproc_per_node") or keys.count("nproc-per-node") or keys.count("num_gpus")
    nodes = keys.count("nnodes", 1)
    keys.free("num_machines", "num_nodes", "multi_gpu", "use_deepspeed", "use_fsdp", "mixed_precision", "script")
    return keys.count("num_processes") or (each * nodes if each else None)


def _launched(keys: Keys, folder: Path) -> Configuration:
    """The file of accelerate that a launch script names."""
    if not (name := keys.text("config_file")):
        return Configuration(file=keys.file, trainer=TRAINER)
    path = found_near(name, folder)
    inner = Keys(read_entries(path), path.name)
    found = accelerate.read(inner, path.parent)
    return replace(found, caveats=(*found.caveats, *inner.caveats()))


def _objective(keys: Keys) -> dict[str, Any]:
    """TRL's trainer, by the script that is started or the keys that only it has."""
    started = keys.text("script").removesuffix(".py")
    keys.free("precompute_ref_log_probs", "precompute_ref_batch_size", "dpo_beta", "padding_free")
    kind = next((kind for kind, names in _TELLS if kind in started or any(name in keys for name in names)), "sft")
    if kind == "grpo":
        prompt, completion = keys.count("max_prompt_length", 512), keys.count("max_completion_length", 256)
        against = "grpo-reference" if (keys.number("beta", 0.0) or 0.0) > 0 else "grpo"
        keys.free("num_generations", "num_iterations", "steps_per_generation")
        return {**preference(keys, "num_generations", against), "seq": prompt + completion, "completion": completion}
    if kind == "dpo" and (keys.flag("precompute_ref_log_probs") or keys.flag("reference_free")):
        kind = "orpo"  # the same passes
    return preference(keys, "script", kind)


def _adapters(keys: Keys, model: str) -> dict[str, Any]:
    """TRL's model arguments, and those of peft's examples."""
    settings: dict[str, Any] = {}
    named = [keys.flag(name) for name in ("use_peft", "use_peft_lora", "use_lora") if name in keys]
    if any(named) or (not named and "lora_r" in keys):
        settings["lora_rank"] = keys.count("lora_r", 16)
        if (targets := keys.take("lora_target_modules")) is not None:
            settings["lora_targets"] = targets_text(targets)
        if (whole := keys.take("lora_modules_to_save")) is not None:
            settings["also_trained"] = targets_text(whole)
        if keys.flag("use_dora"):
            settings["lora_decomposed"] = True
        if keys.flag("load_in_4bit") or keys.flag("use_4bit_quantization"):
            settings["quantize"] = "nf4"
        elif keys.flag("load_in_8bit") or keys.flag("use_8bit_quantization"):
            settings["quantize"] = "int8"
        else:
            settings.update(few_bits(keys, "model_name_or_path", model))
    keys.free("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "bnb_4bit_quant_type", "use_bnb_nested_quant", "use_rslora",
              "attn_implementation", "use_flash_attn", "use_reentrant", "bnb_4bit_quant_storage_dtype", "load_in_4bit", "load_in_8bit",
              "use_4bit_quantization", "use_8bit_quantization", "use_loftq", "lora_modules_to_save", "use_dora")  # fmt: skip
    return settings


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
    if keys.flag("use_liger_kernel") or keys.flag("use_liger"):
        settings.update(liger(keys, keys.take("liger_kernel_config")))
        keys.free("liger_kernel_config")
    inner, sharded = deepspeed_of(keys, folder), _fsdp(keys)
    if inner.plan or inner.settings:  # DeepSpeed keeps masters; "auto" is what the trainer says
        settings.update(with_masters(half))
        settings.update({name: inner.settings[name] for name in ("precision", "optimizer") if name in inner.settings})
    elif sharded and half:
        settings.update(sharded_half("fp32", half, half))
    return settings, {**plan, **inner.plan, **sharded}, inner


def deepspeed_of(keys: Keys, folder: Path) -> Configuration:
    """The file or table of DeepSpeed that a trainer's `deepspeed` names; empty where there is none."""
    given = keys.take("deepspeed")
    if isinstance(given, str) and given:
        return deepspeed_file(given, folder)
    if given is True and (name := keys.take("deepspeed_config")):
        return (
            deepspeed_file(str(name), folder)
            if isinstance(name, str)
            else deepspeed.read(keys.part("deepspeed_config"), folder)
        )
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
