"""Recipes of Megatron-Bridge: a model of the hub by its name, and Megatron's own words in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs import megatron
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.megatron_stages import LAYOUT
from foretell.sources.configs.models import named_model
from foretell.sources.configs.python_recipes import ARGUMENTS, CALLED, MADE_FROM, MARKS, Unread

TRAINER: Final = "Megatron-Bridge"
_TABLES: Final = ("train", "ddp", "optimizer", "comm_overlap", "model")  # whose words are Megatron's arguments
_FREE: Final = (
    "scheduler", "dataset", "logger", "tokenizer", "checkpoint", "rng", "dist", "validation", "env_vars", "profiling",
    "nvrx_straggler", "ft", "straggler", "rerun_state_machine", "inprocess_restart", "tensor_inspect",
)  # fmt: skip
# Of the tables: what is made of other words, and what costs nothing.
_LEFT_OUT: Final = (
    "tp_comm_overlap_cfg", "grad_reduce_in_fp32", "should_pad_vocab", "vocab_size", "params_dtype", "pipeline_dtype",
    "autocast_dtype", "autocast_enabled", "enable_autocast", "average_in_collective", "check_for_nan_in_grad",
    "check_for_large_grads", "use_te_rng_tracker",
)  # fmt: skip
_FULL: Final = "torch.float32"  # what the optimizer's numbers are in where nothing says otherwise
_ALIASES: Final = {"bucket_size": "ddp_bucket_size"}
# Fields that are on unless they are set, which Megatron's arguments turn off.
_REFUSED: Final = {"apply_rope_fusion": "no_rope_fusion", "bias_activation_fusion": "no_bias_swiglu_fusion"}


def recognises(entries: Mapping[str, Any]) -> bool:
    return str(entries.get(CALLED, "")).endswith("ConfigContainer")


def read(keys: Keys, folder: Path) -> Configuration:
    model = _model(keys, folder)
    keys.free(*MARKS, *_FREE)
    keys.not_modelled("peft")
    arguments: dict[str, Any] = {}
    for name in _TABLES:
        arguments |= _words(keys.take(name))
    arguments |= _precision(keys.take("mixed_precision"), arguments.pop("grad_reduce_in_fp32", True))
    arguments.setdefault("seq_length", _words(keys.take("dataset")).get("seq_length"))
    layers = arguments.get("num_layers") or _layers(model, keys)
    if arguments.get("cuda_graph_impl") in (None, "none"):
        arguments.pop("cuda_graph_scope", None)
    for name, refused in _REFUSED.items():
        arguments[refused] = arguments.pop(name, True) is False
    arguments = {n: v for n, v in arguments.items() if n not in _LEFT_OUT and not (n.endswith("_dtype") and v == _FULL)}
    _say_unread(keys, arguments)
    own = {_ALIASES.get(n, n): v for n, v in arguments.items() if not _is_open(n, v)}
    known = model if isinstance(model, str) else str(model["like"])
    found = megatron.from_arguments(keys.read_as({**own, "num_layers": layers}, known), folder)
    return replace(found, trainer=TRAINER, model=_cut(model, arguments.get("num_layers")))


def _is_open(name: str, value: Any) -> bool:
    """Left to the library, or no word of a plan; a list is one of stages alone."""
    return value is None or isinstance(value, Mapping | Unread) or (isinstance(value, list) and name != LAYOUT)


def _say_unread(keys: Keys, arguments: Mapping[str, Any]) -> None:
    """Values that the recipe computes are named; without its stages there is no plan."""
    if isinstance(arguments.get(LAYOUT), Unread):
        raise SourceError(
            f"{keys.file} computes {LAYOUT} in a way that only running it would show. Write the layout into the recipe, like "
            "Ettt|(tt|)*29m|L, or give Megatron's arguments as a .txt file."
        )
    for name, value in arguments.items():
        if isinstance(value, Unread):
            keys.say(name, "its value is not in the file")


def _words(table: Any) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k not in MARKS} if isinstance(table, Mapping) else {}


def _precision(given: Any, sums: Any) -> dict[str, Any]:
    """By the name of a recipe, or by the fields that one sets; the sums of gradients are its own before DDP's."""
    words = _words(given)
    sums = words.pop("grad_reduce_in_fp32", sums)
    words = {name: value for name, value in words.items() if value is not None}
    named = given.get(CALLED) if isinstance(given, Mapping) else given
    if not {"bf16", "fp16"} & words.keys():
        arguments = given.get(ARGUMENTS) if isinstance(given, Mapping) else None
        words["mixed_precision"] = next(iter(arguments), named) if arguments else named
    return words | {"grad_reduce_in_bf16": sums is False}


def _model(keys: Keys, folder: Path) -> str | Mapping[str, Any]:
    """Of the hub, by the name that its bridge is asked for."""
    if keys.model is not None:
        return keys.model
    table = keys.take("model")
    while isinstance(table, Mapping):
        names = [name for name in table.get(ARGUMENTS) or () if isinstance(name, str) and not isinstance(name, Unread)]
        if names:
            return named_model(keys, names[0], folder)
        table = table.get(MADE_FROM)
    raise SourceError(
        f"{keys.file} does not name its model on the hub, or in a way that only running it would show. Give it with "
        "--set model=hf/llama-3-8b, or the path of a config.json."
    )


def _layers(model: str | Mapping[str, Any], keys: Keys) -> int:
    """As many as the model of that name has."""
    from foretell.sources.named.huggingface import architectures
    from foretell.sources.named.huggingface.architecture import entry

    entries = {} if isinstance(model, str) else model
    known = architectures().get(model.removeprefix("hf/") if isinstance(model, str) else str(model.get("like")))
    layers = entries.get("num_hidden_layers") or (entry(known.configured(), "num_hidden_layers") if known else None)
    if not isinstance(layers, int):
        raise SourceError(
            f"how many layers the model of {keys.file} has is not known here. Give the name of a model: --set model=hf/NAME "
            "(foretell models hf)."
        )
    return layers


def _cut(model: str | Mapping[str, Any], layers: Any) -> str | Mapping[str, Any]:
    """With the layers that the recipe sets, where it does."""
    if not isinstance(layers, int):
        return model
    entries = {"like": model.removeprefix("hf/")} if isinstance(model, str) else model
    return {**entries, "num_hidden_layers": layers}
