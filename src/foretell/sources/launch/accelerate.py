"""What `accelerate launch` hands a script in its environment, from its options and its file of settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.files import read_entries
from foretell.units import whole_number

_DEEPSPEED: Final = {  # option → variable; with DeepSpeed alone, micro-steps too
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def file_of(path: str | None) -> dict[str, Any]:
    """The entries of a file of settings, those of its tables among them; nothing without a file."""
    if path is None:
        return {}
    if not os.path.isfile(path):  # also where the name is too long for one
        raise SourceError(f"no file {path[:200]!r}, which the launch line names as accelerate's --config_file.")
    entries = dict(read_entries(Path(path)))
    for name in ("fsdp_config", "deepspeed_config", "dynamo_config", "parallelism_config"):
        table = entries.pop(name, None) or {}
        if not isinstance(table, dict):
            raise SourceError(f"{name} of {path!r} must be a table of settings, got {table!r}. Write a setting a line.")
        entries.update({str(key): value for key, value in table.items()})  # a key of YAML may be a number
    return entries


def environment_of(entries: Mapping[str, Any]) -> dict[str, str]:
    """Variables that its library reads in each process."""
    kind = str(entries.get("distributed_type", "")).upper()
    word = entries.get("mixed_precision", "no")
    found = {
        "ACCELERATE_MIXED_PRECISION": "no" if word in (False, None) else str(word).lower()
    }  # `no` is false in YAML
    backend = str(entries.get("dynamo_backend", "no")).upper()
    if backend not in ("NO", "FALSE"):
        found["ACCELERATE_DYNAMO_BACKEND"] = backend
    if "use_deepspeed" in entries or kind == "DEEPSPEED":
        return found | _deepspeed(entries)
    if "use_fsdp" in entries or kind == "FSDP":
        return found | _fsdp(entries)
    return found


def _deepspeed(entries: Mapping[str, Any]) -> dict[str, str]:
    found = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ""}
    for name, variable in _DEEPSPEED.items():
        if (value := entries.get(name)) is not None:
            found[variable] = str(value) if name.endswith("file") else str(value).lower()
    return found


def _fsdp(entries: Mapping[str, Any]) -> dict[str, str]:
    found = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
    for name, value in entries.items():
        if not name.startswith("fsdp_") or value is None:
            continue
        variable = name.upper().replace("TRANSFORMER_LAYER_CLS_TO_WRAP", "TRANSFORMER_CLS_TO_WRAP")
        found[variable] = str(value).lower() if isinstance(value, bool) else str(value)
    strategy = found["FSDP_SHARDING_STRATEGY"]
    number = whole_number(strategy) or 0  # as the enumeration of torch counts them
    if 1 <= number <= len(_STRATEGIES):
        found["FSDP_SHARDING_STRATEGY"] = _STRATEGIES[number - 1]
    return found
