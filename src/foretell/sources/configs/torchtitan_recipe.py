"""torchtitan's recipes in Python (`config_registry.py`), in the words of its TOML files, which they replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs import torchtitan
from foretell.sources.configs.configuration import Configuration
from foretell.sources.configs.keys import Keys, shown
from foretell.sources.configs.python_recipes import ARGUMENTS, CALLED, MADE_FROM, MARKS, Unread

TRAINER: Final = "torchtitan"
_TOKENS: Final = "num_tokens_per_microbatch_per_dp_rank"
_STEP: Final = "num_tokens_per_train_step"
_MODES: Final = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "MemoryBudgetAC.Config": "memory_budget"}
# Names of converters, in the words of the TOML's `converters`; their tables are named so too.
_CONVERTERS: Final = {"Float8LinearConverter.Config": "float8", "MXFP8LinearConverter.Config": "mx"}
_FREE: Final = (
    "hf_assets_path", "dump_folder", "profiler", "metrics", "tokenizer", "dataloader", "lr_scheduler", "checkpoint",
    "comm", "validator", "debug", "validation", "profiling", "job", "memory_estimation", "activation_offload",
)  # fmt: skip


def recognises(entries: Mapping[str, Any]) -> bool:
    return str(entries.get(CALLED, "")).endswith(".Config") and "model_spec" in entries


def read(keys: Keys, folder: Path) -> Configuration:
    model = keys.part("model_spec")
    training, parallelism = _table(keys, "training"), _table(keys, "parallelism")
    compiling = _table(keys, "compile")
    _in_samples(keys, training, parallelism)
    if "enable_sequence_parallel" in parallelism:
        parallelism["disable_sequence_parallel"] = not parallelism.pop("enable_sequence_parallel")
    if (overlapped := compiling.pop("enable_async_tensor_parallel", None)) is not None:
        parallelism["enable_async_tensor_parallel"] = overlapped
    for name in ("spmd_backend", "context_parallel_load_balancer", "enable_fsdp_symm_mem"):
        parallelism.pop(name, None)
    training.pop("disable_cuda_graphs", None)
    parallelism.setdefault("pipeline_parallel_schedule", "1F1B")
    optimizer, loss = keys.take("optimizer"), keys.take("loss")
    keys.free(*MARKS, *_FREE)
    keys.not_modelled("override")
    entries = {
        "training": training, "parallelism": parallelism, "compile": compiling, "optimizer": _optimizer(keys, optimizer),
        "activation_checkpoint": _checkpointing(keys), **_model(keys, model, folder),
    }  # fmt: skip
    unused = {name: keys.raw(name) for name in keys.left()}
    found = torchtitan.read(keys.read_as({**entries, **unused}), folder)
    return replace(found, settings={**found.settings, **_loss(keys, loss, found.plan)})


def _table(keys: Keys, name: str) -> dict[str, Any]:
    value = keys.take(name)
    return {k: v for k, v in value.items() if k not in MARKS} if isinstance(value, Mapping) else {}


def _in_samples(keys: Keys, training: dict[str, Any], parallelism: dict[str, Any]) -> None:
    """Tokens of a micro-batch and of a step, as whole sequences."""
    if _TOKENS not in training and "max_context_length" not in training:
        return
    length, tokens = training.pop("max_context_length", 2048), training.pop(_TOKENS, 16384)
    whole = isinstance(length, int) and isinstance(tokens, int) and 0 < length <= tokens and tokens % length == 0
    if not whole:
        raise keys.wrong(
            f"training.{_TOKENS}", tokens, f"a whole number of sequences of max_context_length, {shown(length)}"
        )
    pieces = parallelism.pop("num_pp_microbatches", 1)
    if isinstance(pieces, Unread) or parallelism.get("pipeline_parallel_degree", 1) == 1:
        pieces = 1
    piece = tokens // length
    training |= {"seq_len": length, "local_batch_size": piece * pieces}
    parallelism["pipeline_parallel_microbatch_size"] = piece
    step = training.pop(_STEP, -1)
    training["global_batch_size"] = step // length if isinstance(step, int) and step > 0 else -1


def _checkpointing(keys: Keys) -> dict[str, Any]:
    """Of blocks whole, or of what is cheap in each; without a word the latter, and None is none of it."""
    if "activation_checkpoint" in keys and keys.raw("activation_checkpoint") is None:
        return {"mode": "none"}
    given = keys.take("activation_checkpoint", {CALLED: "SelectiveAC.Config"})
    table = given if isinstance(given, Mapping) else {CALLED: str(given)}
    if CALLED not in table or "mode" in table:  # of versions in between, by words
        return {k: v for k, v in table.items() if k not in MARKS}
    mode = _MODES.get(str(table[CALLED]))
    if mode is None:
        raise keys.wrong("activation_checkpoint", table[CALLED], f"None or one of {', '.join(_MODES)}")
    rest = {k: v for k, v in table.items() if k not in MARKS}
    return {"mode": mode, **({"selective_ac_option": "op"} if mode == "selective" else {}), **rest}


def _loss(keys: Keys, given: Any, plan: Mapping[str, Any]) -> dict[str, Any]:
    """In pieces with the last layer, which never has all logits; of a rank with a part of that layer it is taken whole."""
    if not isinstance(given, Mapping) or given.get(CALLED) != "ChunkedLossWrapper.Config":
        return {}
    if plan.get("tp", 1) == plan.get("pp", 1) == plan.get("cp", 1) == 1:
        return {"fused_loss": True}
    keys.say("loss", "in pieces, taken for a whole one")
    return {}


def _optimizer(keys: Keys, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {}
    called = str(given.get(CALLED, "")).lower()
    if ("adam" not in called and not str(given.get("name", "adam")).lower().startswith("adam")) or "muon" in called:
        keys.say("optimizer", f"{given.get(CALLED)}, taken for AdamW")
    return {name: given[name] for name in ("name", "implementation") if isinstance(given.get(name), str)}


def _model(keys: Keys, spec: Keys, folder: Path) -> dict[str, Any]:
    """A flavour of the registry whose folder the recipe lies in, with the products that are converted."""
    call = spec.part(MADE_FROM)
    given = spec.take(ARGUMENTS) or call.take(ARGUMENTS) or []
    flavor = spec.take("flavor") or call.take("flavor") or next(iter(given), None)
    name = spec.take("name")
    if keys.model is None and not isinstance(flavor, str):
        raise SourceError(
            f"{keys.file} names its model in a way that only running it would show. Give it with --set model=hf/llama-3-8b."
        )
    entries: dict[str, Any] = {
        "model": {"name": name if isinstance(name, str) else folder.resolve().name, "flavor": flavor}
    }
    words = []
    for converter in spec.take("converters") or call.take("converters") or ():
        called = str(converter.get(CALLED)) if isinstance(converter, Mapping) else str(converter)
        if called not in _CONVERTERS:
            keys.say("model_spec.converters", f"{called} is left out")
            continue
        words.append(_CONVERTERS[called])
        entries[words[-1]] = {
            k: v for k, v in converter.items() if k not in MARKS and k not in ("model_compile_enabled", "fqns")
        }
    entries["model"]["converters"] = words
    for table in (spec, call):
        table.free(*table.left())
    return entries
