"""torchtune's recipes in YAML: components by their names, single devices or FSDP2, LoRA, preferences, distillation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.context import torch_context
from foretell.sources.configs.finetuning import preference
from foretell.sources.configs.fp8 import in_fp8, named_recipe
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model

TRAINER: Final = "torchtune"
_DTYPES: Final = {"bf16": "bf16", "fp32": "fp32", "fp16": "fp16"}
_ADAPTERS: Final = re.compile(r"^(q?lora|q?dora)_")
_ATTENTION: Final = {"output_proj": "o_proj"}  # as transformers calls it
_LONGEST: Final = 4096  # where no length is given, that of a model's position table up to this
_FREE: Final = (
    "output_dir", "checkpointer", "ref_checkpointer", "teacher_checkpointer", "resume_from_checkpoint", "save_adapter_weights_only", "seed",
    "shuffle", "epochs", "max_steps_per_epoch", "device", "metric_logger", "log_every_n_steps", "log_peak_memory_stats", "log_level",
    "profiler", "lr_scheduler", "run_val_every_n_steps", "dataset_val", "batch_size_val", "collate_fn", "loss", "kd_ratio", "kd_loss",
    "enable_async_checkpointing", "keep_last_n_checkpoints", "cudnn_deterministic_mode", "fake_quant_after_n_steps",
    "memory_efficient_fsdp_wrap",
    "fsdp_reshard_after_forward", "data_parallel_replicate_dim", "data_parallel_shard_dim", "clip_grad_norm",
)  # fmt: skip
_NUMBERS: Final = {
    "llama2": "meta-llama/llama-2-", "llama3": "meta-llama/meta-llama-3-", "llama3_1": "meta-llama/llama-3.1-",
    "llama3_2": "meta-llama/llama-3.2-",
    "llama3_3": "meta-llama/llama-3.3-", "mistral": "mistralai/mistral-", "gemma": "google/gemma-", "gemma2": "google/gemma-2-",
    "phi3": "microsoft/phi-3-", "phi4": "microsoft/phi-4-", "qwen2": "qwen/qwen2-", "qwen2_5": "qwen/qwen2.5-", "qwen3": "qwen/qwen3-",
    "code_llama2": "codellama/codellama-",
}  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    model = entries.get("model")
    return isinstance(model, Mapping) and "_component_" in model and ("optimizer" in entries or "batch_size" in entries)


def read(keys: Keys, folder: Path) -> Configuration:
    model = keys.part("model")
    component = model.text("_component_").rpartition(".")[2]
    tokenizer, dataset = keys.part("tokenizer"), keys.part("dataset")
    seq = tokenizer.count("max_seq_len") or keys.count("max_seq_len") or _LONGEST
    if "max_seq_len" not in tokenizer or tokenizer.take("max_seq_len") is None:
        tokenizer.say("max_seq_len", f"not given: samples are taken to have {seq} tokens; --set seq=…")
    elif not dataset.flag("packed"):
        dataset.say("packed", "off: samples are taken to be as long as the longest, and most are shorter: --lengths")
    settings: dict[str, Any] = {
        "batch": keys.count("batch_size", 1), "seq": seq, "grad_accumulation": keys.count("gradient_accumulation_steps", 1),
        "optimizer": _optimizer(keys.part("optimizer")),
        **_precision(keys), **_adapters(model, component), **_objective(keys, component),
    }  # fmt: skip
    if keys.flag("enable_activation_checkpointing"):
        settings["checkpointing"] = True
    if keys.raw("compile") not in (None, False, "False"):
        settings["compile"] = True
    if (clip := keys.take("clip_grad_norm")) not in (None, "None", False):
        settings["clip_grad_norm"] = float(clip)
    keys.not_modelled("quantizer", why="quantization-aware training, priced as the plain weights")
    keys.not_modelled(
        "enable_activation_offloading", "optimizer_in_bwd", "custom_sharded_layers", "ac_mode", "ac_option"
    )
    for part in (model, tokenizer, dataset):
        part.free(*part.left())
    plan = _plan(keys, folder)
    keys.free(*_FREE)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=_model(keys, component, folder), settings=settings, plan=plan,
    )  # fmt: skip


def _model(keys: Keys, component: str, folder: Path) -> str | Mapping[str, Any]:
    """`lora_llama3_1_8b` is Llama 3.1 of 8 billion parameters."""
    plain = re.sub(r"_(instruct|base)$", "", _ADAPTERS.sub("", component))
    family = max((name for name in _NUMBERS if plain.startswith(f"{name}_")), key=len, default="")
    size = plain.removeprefix(f"{family}_").replace("_", ".")
    if keys.model is not None or (family and "vision" not in size):
        name = _NUMBERS.get(family, "") + {"mini": "mini-4k"}.get(size, size)
        return named_model(keys, "microsoft/phi-4" if name == "microsoft/phi-4-14b" else name, folder)
    raise SourceError(
        f"{keys.file} trains torchtune's {component}, whose shapes are not known here. Give the model with --set model=hf/NAME "
        "(foretell models hf), the path of its config.json, or file.py:function."
    )


def _plan(keys: Keys, folder: Path) -> dict[str, Any]:
    """A recipe for one device has `single_device` in its name; the others shard with FSDP2."""
    tp, cp = keys.count("tensor_parallel_dim", 1), keys.count("context_parallel_dim", 1)
    keys.free("tensor_parallel_plan")
    gathers = torch_context(keys, "context_parallel_rotate_method", cp)
    if "single_device" in keys.file or "low_memory" in keys.file:
        return {}
    plan: dict[str, Any] = {"zero": 3, **{name: n for name, n in (("tp", tp), ("cp", cp)) if n > 1}, **gathers}
    if keys.flag("fsdp_cpu_offload"):
        plan["offload"] = "parameters"
    return plan


def _precision(keys: Keys) -> dict[str, Any]:
    kept = keys.chosen("dtype", _DTYPES, "bf16")
    settings = {} if kept == "fp32" else {"precision": kept}
    recipe = named_recipe(keys, "fp8_recipe_name", "tensorwise")
    return in_fp8(settings, recipe) if keys.flag("enable_fp8_training") else settings


def _adapters(keys: Keys, component: str) -> dict[str, Any]:
    match = _ADAPTERS.match(component)
    if match is None:
        return {}
    targets = [_ATTENTION.get(str(name), str(name)) for name in keys.take("lora_attn_modules") or ("q_proj", "v_proj")]
    if keys.flag("apply_lora_to_mlp"):
        targets += ["gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2"]
    if "qkv_proj" not in targets and {"q_proj", "v_proj"} & set(targets):
        targets.append("qkv_proj")  # of models that have them in one
    if keys.flag("apply_lora_to_output"):
        targets.append("head")
    settings: dict[str, Any] = {"lora_rank": keys.count("lora_rank", 8), "lora_targets": "+".join(targets)}
    if match[1].startswith("q") or keys.flag("quantize_base"):
        settings["quantize"] = "nf4"
    if "dora" in match[1] or keys.flag("use_dora"):
        settings["lora_decomposed"] = True
    return settings


def _objective(keys: Keys, component: str) -> dict[str, Any]:
    loss = keys.part("loss")
    name = loss.text("_component_").rpartition(".")[2]
    loss.free(*loss.left())
    if "teacher_model" in keys:
        teacher = keys.part("teacher_model")
        named = teacher.text("_component_").rpartition(".")[2]
        teacher.free(*teacher.left())
        keys.say("teacher_model", f"{named}: its weights and its forward pass are left out")
    if name in ("DPOLoss", "RSOLoss", "SimPOLoss"):
        return preference(keys, "loss", "orpo" if name == "SimPOLoss" else "dpo")
    if name in ("PPOLoss", "GRPOLoss", "GRPOSimpleLoss", "GRPOCompletionLoss"):
        rollouts = ("ppo", "value", "reward", "policy", "num_steps", "forward")
        keys.free(*[other for other in keys.left() if other.startswith(rollouts)])
        return preference(keys, "loss", "ppo" if name == "PPOLoss" else "grpo-reference")
    return {}


def _optimizer(keys: Keys) -> str:
    given = keys.text("_component_", "torch.optim.AdamW").rpartition(".")[2].lower()
    fused = keys.flag("fused")
    keys.free(*keys.left())
    known = {"adamw": "adamw-fused" if fused else "adamw", "adam": "adam", "sgd": "sgd", "pagedadamw": "adamw-paged",
             "adamw8bit": "adamw-8bit", "pagedadamw8bit": "adamw-8bit-paged", "adafactor": "adafactor"}  # fmt: skip
    if given not in known:
        keys.say("_component_", f"{given}, taken for AdamW")
    return known.get(given, "adamw")
