"""What Megatron's arguments recompute, by today's names, earlier ones, and NeMo's."""

from __future__ import annotations

from typing import Any, Final

from foretell.recomputing import MODULES
from foretell.sources.configs.keys import Keys

_NEMO: Final = "activations_checkpoint_"


def recompute(keys: Keys, layers: int) -> dict[str, Any]:
    """The plan's part; `layers` are those of a stage, or of a chunk of it where stages are interleaved."""
    if keys.flag("checkpoint_activations"):  # in early versions
        keys.free("deepspeed_activation_checkpointing")
        method, number = keys.text("checkpoint_method", "uniform"), keys.count("checkpoint_num_layers", 1)
        return _partitioned(keys, _of_blocks(method, number, layers))
    named = _NEMO if any(f"{_NEMO}{word}" in keys for word in ("granularity", "method")) else "recompute_"
    granularity, method = keys.text(f"{named}granularity"), keys.text(f"{named}method")
    number = keys.count(f"{named}num_layers", 1, least=0)
    words = _modules(keys)
    if keys.flag("recompute_activations"):
        granularity = "selective"
    elif named == _NEMO and method and not granularity:  # before it had a choice
        granularity = "full"
    if granularity == "selective":
        return {"checkpointing": "+".join(words)} if words else {}
    if granularity == "full":
        return _partitioned(keys, _of_blocks(method, number, layers))
    return {"checkpointing": "moe"} if "moe" in words else {}


def _of_blocks(method: str, number: int, layers: int) -> dict[str, Any]:
    """`block` recomputes so many layers of each stage, `uniform` all, so many at a time."""
    if number == 0:
        return {}
    if method == "block":
        return {"checkpointing": min(number / max(layers, 1), 1.0)}
    return {"checkpointing": f"full:{number}" if number > 1 else "full"}


def _partitioned(keys: Keys, found: dict[str, Any]) -> dict[str, Any]:
    """Tensor-parallel ranks keep a part each of what is recomputed from."""
    tp = keys.count("tensor_model_parallel_size", 1)
    for name in ("distribute_saved_activations", "partition_activations"):
        if not keys.flag(name) or tp == 1 or keys.flag("sequence_parallel"):
            continue
        if found.get("checkpointing") == "full":
            return {"checkpointing": "full-partitioned"}
        keys.say(name, "with other than each layer by itself: what is kept is taken to be whole")
    return found


def _modules(keys: Keys) -> list[str]:
    given = keys.take("recompute_modules")
    words = given.split() if isinstance(given, str) else [str(word) for word in given or ["core_attn"]]
    if strange := [word for word in words if word not in MODULES]:
        keys.say("recompute_modules", f"{' '.join(strange)}: taken to be kept")
    known: list[str] = [word for word in MODULES if word in words]
    if keys.flag("moe_layer_recompute") and "moe" not in known:
        return [*(word for word in known if given), "moe"]
    return ["selective"] if known == ["core_attn"] else known
