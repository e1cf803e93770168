"""LitGPT's YAML: pretraining, full fine-tuning and (Q)LoRA of a model by name, on one device or with FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.models import named_model
from foretell.units import whole_number

TRAINER: Final = "LitGPT"
_PRECISIONS: Final = {
    "bf16-true": {"precision": "bf16"}, "bf16-mixed": {"precision": "amp-bf16"}, "16-mixed": {"precision": "amp-fp16"},
    "16-true": {"precision": "fp16"}, "32-true": {}, "32": {},
}  # fmt: skip
_LAYERS: Final = {  # which layers LoRA's flags mean, by the names that transformers gives them
    "lora_query": ("q_proj",), "lora_key": ("k_proj",), "lora_value": ("v_proj",), "lora_projection": ("o_proj", "dense"),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
}  # fmt: skip
_FUSED: Final = ("qkv_proj", "query_key_value")  # of models that have queries, keys and values in one
_FREE: Final = (
    "out_dir", "initial_checkpoint_dir", "resume", "data", "eval", "logger_name", "seed", "tokenizer_dir", "access_token", "lora_alpha",
    "lora_dropout", "log", "lora_r", "lora_head", "num_nodes", *_LAYERS,
)  # fmt: skip
_OPTIMIZERS: Final = {
    "adamw": "adamw", "adam": "adam", "sgd": "sgd", "adamw8bit": "adamw-8bit", "pagedadamw": "adamw-paged",
    "pagedadamw8bit": "adamw-8bit-paged",
}  # fmt: skip
# Models that have no name on the hub: LitGPT's own table.
_OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "micro-llama-300m": {"like": "tinyllama-1.1b", "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16},
    "tiny-llama-1.1b": {"like": "tinyllama-1.1b"},
    "stories15m": {"like": "llama-2-7b", "hidden_size": 288, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
                   "intermediate_size": 768, "max_position_embeddings": 256},
}  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    train = entries.get("train")
    named = "checkpoint_dir" in entries or "model_name" in entries
    return named and isinstance(train, Mapping) and bool({"micro_batch_size", "global_batch_size"} & train.keys())


def read(keys: Keys, folder: Path) -> Configuration:
    train = keys.part("train")
    settings: dict[str, Any] = dict(keys.chosen("precision", _PRECISIONS, "bf16-true"))
    settings["batch"] = train.count("micro_batch_size", 1)
    if (length := train.count("max_seq_length")) is not None:
        settings["seq"] = length
    elif "model_name" not in keys:
        train.say("max_seq_length", "not given: samples are taken to have 1024 tokens; --set seq=…")
        settings["seq"] = 1024
    if clip := train.number("max_norm"):
        settings["clip_grad_norm"] = clip
    settings["optimizer"] = _optimizer(keys)
    settings.update(_adapters(keys))
    devices = keys.raw("devices") or 1  # `auto`: as many as there are
    each = whole_number(str(devices))
    count = None if each is None else each * keys.count("num_nodes", 1)
    # Fine-tuning on several devices shards the model, and so does pretraining.
    plan: dict[str, Any] = {} if count == 1 else {"zero": 3}
    if "model_name" in keys:
        settings["compile"] = True  # its pretraining always is
    elif plan and not settings.get("lora_rank"):
        settings["checkpointing"] = True
    tied = train.flag("tie_embeddings")
    train.free(*train.left())
    keys.free(*_FREE)
    return Configuration(
        file=keys.file, trainer=TRAINER, model=_model(keys, folder, tied=tied), settings=settings, plan=plan, devices=count,
        replicas="nodes" if plan and "model_name" in keys else 1,
        global_batch=train.count("global_batch_size"),
    )  # fmt: skip


def _model(keys: Keys, folder: Path, *, tied: bool) -> str | Mapping[str, Any]:
    name = keys.text("model_name") or keys.text("checkpoint_dir").removeprefix("checkpoints/")
    keys.not_modelled("model_config")
    keys.free("checkpoint_dir", "model_name")
    if not name and keys.model is None:
        raise SourceError(f"{keys.file} names no model. Give it with --set model=hf/NAME (foretell models hf).")
    if keys.model is not None:
        return keys.model
    found = _OWN.get(name.lower()) or named_model(keys, name if "/" in name else f"unsloth/{name}", folder)
    if tied or (isinstance(found, str) and not found.startswith("hf/")):
        return found
    # Its head is a matrix of its own, also of models whose embeddings are published once.
    entries = found if isinstance(found, Mapping) else {"like": found.removeprefix("hf/")}
    return {**entries, "tie_word_embeddings": False}


def _adapters(keys: Keys) -> dict[str, Any]:
    if "lora_r" not in keys:
        return {}
    flags = [flag for flag in _LAYERS if keys.flag(flag, default=flag in ("lora_query", "lora_value"))]
    chosen = [layer for flag in flags for layer in _LAYERS[flag]]
    if keys.flag("lora_head"):
        chosen.append("head")
    settings: dict[str, Any] = {"lora_rank": keys.count("lora_r", 8), "lora_targets": "+".join([*chosen, *_FUSED])}
    if quantized := keys.text("quantize"):
        settings["quantize"] = "int8" if "int8" in quantized else "nf4"
        if quantized not in ("bnb.nf4", "bnb.nf4-dq", "bnb.int8-training"):
            keys.say("quantize", f"{quantized}, taken for NF4")
    return settings


def _optimizer(keys: Keys) -> str:
    given = keys.take("optimizer", "AdamW")
    if isinstance(given, Mapping):
        part = keys.part("optimizer")
        given = part.text("class_path", "AdamW")
        part.free(*part.left())
    name = str(given).rpartition(".")[2].lower()
    if name not in _OPTIMIZERS:
        keys.say("optimizer", f"{name}, taken for AdamW")
    return _OPTIMIZERS.get(name, "adamw")
