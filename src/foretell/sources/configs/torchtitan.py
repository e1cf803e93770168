"""torchtitan's TOML: a model by name and flavour, FSDP2 with tensor, pipeline, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foretell.precision import DTYPES, Float
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.context import torch_context
from foretell.sources.configs.fp8 import in_fp8, named_recipe
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model
from foretell.sources.configs.optimizers import sharded_half
from foretell.units import whole_number

TRAINER: Final = "torchtitan"
_TABLES: Final = {"job", "training", "parallelism", "activation_checkpoint", "model", "checkpoint", "metrics"}
# Shapes of its model registries, by name and flavour.
_LLAMA3: Final = {"like": "llama-3-8b"}
_FLAVORS: Final[Mapping[tuple[str, str], str | Mapping[str, Any]]] = {
    ("llama3", "debugmodel"): {**_LLAMA3, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16,
                               "num_key_value_heads": 16, "intermediate_size": 768, "vocab_size": 2048},
    ("llama3", "8B"): "hf/llama-3-8b",
    ("llama3", "70B"): "hf/llama-3-70b",
    ("llama3", "405B"): {"like": "llama-3-70b", "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
                         "intermediate_size": 53248},
    ("llama3", "1B"): "hf/llama-3.2-1b",
    ("llama3", "3B"): "hf/llama-3.2-3b",
    ("qwen3", "0.6B"): "hf/qwen3-0.6b",
    ("qwen3", "1.7B"): {"like": "qwen3-0.6b", "hidden_size": 2048, "intermediate_size": 6144},
    ("qwen3", "4B"): {"like": "qwen3-0.6b", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
                      "intermediate_size": 9728},
    ("qwen3", "8B"): "hf/qwen3-8b",
    ("qwen3", "14B"): {"like": "qwen3-8b", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
                       "intermediate_size": 17408},
    ("qwen3", "32B"): {"like": "qwen3-8b", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
                       "intermediate_size": 25600},
    ("qwen3", "30B-A3B"): "hf/qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "hf/qwen3-235b-a22b",
    ("gpt_oss", "20b"): "hf/gpt-oss-20b",
    ("gpt_oss", "120b"): "hf/gpt-oss-120b",
    ("deepseek_v3", "236B"): "hf/deepseek-v2",
    ("deepseek_v3", "16B"): "hf/deepseek-v2-lite",
    ("deepseek_v3", "671B"): "hf/deepseek-v3",
}  # fmt: skip
_SCHEDULES: Final = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "interleavedzerobubble": "zero-bubble",
                     "zbvzerobubble": "zb-v", "dualpipev": "dualpipe-v"}  # fmt: skip
_OPTIMIZERS: Final = {"adamw": "adamw", "adam": "adam"}
_FORMS: Final = {"fused": "-fused", "foreach": "-foreach", "for-loop": "-forloop"}
_FLOATS: Final[dict[str, Float]] = {dtype: name for name, dtype in DTYPES.items()}


def recognises(entries: Mapping[str, Any]) -> bool:
    return (
        "_component_" not in str(entries.get("model"))
        and len(_TABLES & entries.keys()) >= 3
        and "training" in entries
        and isinstance(entries["training"], Mapping)
    )


def read(keys: Keys, folder: Path) -> Configuration:
    training, parallelism = keys.part("training"), keys.part("parallelism")
    settings = _training(training)
    plan, copies = _parallelism(parallelism, training)
    settings.update(_micro_batches(settings["batch"], parallelism, plan.get("pp", 1)))
    plan.update(_checkpointing(keys.part("activation_checkpoint")))
    settings["optimizer"] = _optimizer(keys.part("optimizer"))
    named = keys.part("model")
    model = _model(named, folder)
    compiling = keys.part("compile")
    compiling.free("components", "backend")
    if compiling.flag("enable") or training.flag("compile"):
        settings["compile"] = True
    keys.free(
        "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation", "debug", "memory_estimation"
    )
    keys.not_modelled("fault_tolerance", "experimental")
    settings = _in_fp8(keys, [str(word) for word in named.take("converters") or ()], settings)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=model, settings=settings, plan=plan, replicas=copies,
        global_batch=_global_batch(training),
    )  # fmt: skip


def _training(keys: Keys) -> dict[str, Any]:
    batch = keys.count("local_batch_size") or keys.count("batch_size", 8)
    settings: dict[str, Any] = {"batch": batch, "seq": keys.count("seq_len", 2048)}
    if clip := keys.number("max_norm", 1.0):
        settings["clip_grad_norm"] = clip
    compute = keys.chosen("mixed_precision_param", _FLOATS, "bfloat16")
    reduce = keys.chosen("mixed_precision_reduce", _FLOATS, "float32")
    kept = keys.chosen("dtype", _FLOATS, "float32")
    settings.update(sharded_half(kept, compute, reduce))
    keys.free(
        "steps", "dataset", "dataset_path", "seed", "deterministic", "warmup_steps", "gc_freq", "gc_debug", "dataloader"
    )
    return settings


def _micro_batches(batch: int, keys: Keys, stages: int) -> dict[str, Any]:
    """A pipeline takes the batch of a rank in pieces."""
    piece = keys.count("pipeline_parallel_microbatch_size", 1)
    if stages == 1:
        return {}
    if batch % piece:
        raise keys.wrong("pipeline_parallel_microbatch_size", piece, f"a divisor of the local batch, {batch}")
    return {"batch": piece, "grad_accumulation": batch // piece}


def _global_batch(keys: Keys) -> int | None:
    given = keys.take("global_batch_size")
    return None if given in (None, -1) else keys.count("global_batch_size")


def _parallelism(keys: Keys, training: Keys) -> tuple[dict[str, Any], int]:
    def degree(name: str) -> int:
        where = keys if name in keys else training  # it was the training's in early versions
        return int(where.count(name, 1) or 1)

    copies, tp = degree("data_parallel_replicate_degree"), degree("tensor_parallel_degree")
    plan: dict[str, Any] = {"tp": tp, "cp": degree("context_parallel_degree"), "ep": degree("expert_parallel_degree")}
    plan["pp"] = keys.count("pipeline_parallel_degree", 1)
    shard = (keys if "data_parallel_shard_degree" in keys else training).take("data_parallel_shard_degree", -1)
    plan["zero"] = 0 if shard == 1 else 3
    keeps = keys.chosen(
        "fsdp_reshard_after_forward", {"default": plan["pp"] > 1, "always": False, "never": True}, "default"
    )
    if keeps:  # gathered parameters from one pass to the other, by default in a pipeline
        plan["zero"] = min(plan["zero"], 2)
    if tp > 1:
        plan["sequence_parallel"] = not keys.flag("disable_sequence_parallel")
        plan["overlap_tp"] = keys.flag("enable_async_tensor_parallel")
    else:
        keys.free("disable_sequence_parallel", "enable_async_tensor_parallel")
    if training.flag("enable_cpu_offload"):
        plan["offload"] = "parameters"
    _pipeline(keys, plan)
    keys.free("disable_loss_parallel", "enable_compiled_autograd", "module_fqns_per_model_part")
    plan.update(torch_context(keys, "context_parallel_rotate_method", plan["cp"]))
    experts = _experts(keys, plan)
    return {name: value for name, value in plan.items() if value is True or value not in (1, False)} | experts, copies


def _experts(keys: Keys, plan: dict[str, Any]) -> dict[str, Any]:
    """Ranks of tp have experts of their own unless they are asked to share them; tokens may be sent by DeepEP."""
    sharing, backend = (
        keys.count("expert_tensor_parallel_degree", 1),
        keys.text("expert_parallel_comm_backend", "standard"),
    )
    if plan["ep"] == 1:
        return {}
    found: dict[str, Any] = {"dispatch": "deepep"} if backend in ("deepep", "hybridep") else {}
    if sharing == 1 < plan["tp"] and plan["sequence_parallel"]:
        found["etp"] = 1
    return found


def _pipeline(keys: Keys, plan: dict[str, Any]) -> None:
    schedule = keys.text("pipeline_parallel_schedule", "Interleaved1F1B").lower()
    if plan["pp"] > 1:
        if schedule not in _SCHEDULES:
            raise keys.wrong("pipeline_parallel_schedule", schedule, f"one of {', '.join(_SCHEDULES)}")
        plan["schedule"] = _SCHEDULES[schedule]
        if plan["schedule"] in ("interleaved", "zero-bubble"):
            plan["virtual_stages"] = 2
    keys.free("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers")
    keys.not_modelled(
        "pipeline_parallel_schedule_csv", "pipeline_parallel_layers_per_stage", "pipeline_parallel_split_points"
    )


def _in_fp8(keys: Keys, converters: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The converters `float8` and `mx`, with their tables, which were in `quantize.linear` for a while."""
    quantize = keys.part("quantize")
    quantize.part("grouped_mm").free("float8", "mx")
    inside = quantize.part("linear")
    tables = {name: [keys.part(name), inside.part(name)] for name in ("float8", "mx")}
    for some in tables.values():
        for table in some:
            table.free("filter_fqns", "emulate", "precompute_float8_dynamic_scale_for_fsdp", "force_recompute_fp8_weight_in_bwd",
                       "moe_fqns", "moe_fqns_prototype", "enable_float8_linear", "mxfp8_dim1_cast_kernel_choice")  # fmt: skip
    found = next((name for name in tables if any(word.split(".")[-1] == name for word in converters)), None)
    if found is None:
        return settings
    given = next((table for table in tables[found] if "recipe_name" in table), tables[found][0])
    recipe = named_recipe(given, "recipe_name", "tensorwise" if found == "float8" else "mxfp8")
    gathered = any(table.flag("enable_fsdp_float8_all_gather") for table in tables[found])
    return in_fp8(settings, recipe, weights="fp8" if gathered else None)


def _checkpointing(keys: Keys) -> dict[str, Any]:
    modes = ("none", "selective", "full", "memory_budget")
    mode = keys.chosen("mode", {word: word for word in modes}, "selective")
    option = keys.text("selective_ac_option", "2")
    keys.free("per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "preserve_rng_state", "determinism_check",
              "visualize_memory_budget_pareto", "debug")  # fmt: skip
    kept = keys.number("memory_budget", 0.5) or 0.0
    if mode == "memory_budget":  # of what blocks keep, what the compiler may leave them
        return {"checkpointing": f"cheapest:{1.0 - min(max(kept, 0.0), 1.0):g}"}
    if mode != "selective":
        return {"checkpointing": mode}
    if option == "op":
        return {"checkpointing": "selective-op"}
    each = whole_number(option)
    return {"checkpointing": "full" if each is None else 1 / max(each, 1)}


def _optimizer(keys: Keys) -> str:
    name = keys.text("name", "AdamW").lower()
    if name not in _OPTIMIZERS:
        keys.say("name", f"{name}, taken for AdamW")
    form = keys.chosen("implementation", _FORMS, "fused")
    keys.free("lr", "eps", "beta1", "beta2", "weight_decay", "early_step_in_backward")
    return _OPTIMIZERS.get(name, "adamw") + form


def _model(keys: Keys, folder: Path) -> str | Mapping[str, Any]:
    name, flavor = keys.text("name", "llama3"), keys.text("flavor", "debugmodel")
    keys.free("tokenizer_path", "hf_assets_path", "norm_type", "print_after_conversion", "tokenizer_name")
    keys.not_modelled("use_flex_attn")
    known = (name, flavor) in _FLAVORS and keys.model is None
    return _FLAVORS[name, flavor] if known else named_model(keys, f"{name}/{flavor}", folder)
