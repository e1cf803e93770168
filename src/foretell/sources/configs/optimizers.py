"""Optimizers and precisions under the names that trainers give them."""

from __future__ import annotations

from typing import Any, Final

from foretell.precision import Float, Precision
from foretell.sources.configs.keys import Keys

# Transformers' `optim`, which axolotl and LLaMA-Factory share.
_BY_NAME: Final = {
    "adamw_torch": "adamw", "adamw_hf": "adamw-forloop", "adamw_torch_fused": "adamw-fused", "adamw_apex_fused": "adamw-fused",
    "adamw_torch_npu_fused": "adamw-fused", "adamw_bnb_8bit": "adamw-8bit", "adamw_8bit": "adamw-8bit", "adamw_torch_8bit": "adamw-8bit",
    "ao_adamw_8bit": "adamw-8bit", "ao_adamw_fp8": "adamw-8bit", "paged_adamw_8bit": "adamw-8bit-paged", "paged_adamw_32bit": "adamw-paged",
    "paged_adamw": "adamw-paged", "adafactor": "adafactor", "sgd": "sgd", "rmsprop": "rmsprop", "adagrad": "adagrad", "adamw": "adamw",
    "adam": "adam", "lion": "lion", "lion_8bit": "lion-8bit", "lion_32bit": "lion", "lion_pytorch": "lion",
    "paged_lion_8bit": "lion-8bit-paged",
    "paged_lion_32bit": "lion-paged", "muon": "muon", "adam_mini": "adam-mini", "stable_adamw": "adamw", "adopt_adamw": "adamw",
    "schedule_free_adamw": "adamw-forloop", "optimi_adamw": "adamw", "galore_adamw": "galore-r128", "galore_adamw_8bit": "galore-r128",
    "apollo_adamw": "apollo-r256", "grokadamw": "adamw-forloop",
}  # fmt: skip
_ABOUT: Final = {  # what differs from the one that a name is taken for
    "ao_adamw_8bit": "blocks of another size than bitsandbytes'", "ao_adamw_fp8": "8 bits a number as the 8-bit one",
    "galore_adamw_8bit": "its low-rank state is taken to have 16 or 32 bits", "grokadamw": "its third average is left out",
}  # fmt: skip
_RANKS: Final = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_DEEPSPEED: Final = {"adam": "adamw-fused", "adamw": "adamw-fused", "fusedadam": "adamw-fused", "sgd": "sgd",
                     "adagrad": "adagrad", "deepspeedcpuadam": "adamw-fused", "lion": "lion", "muon": "muon"}  # fmt: skip


def named_optimizer(keys: Keys, name: str, usual: str) -> str:
    """The optimizer a key names; one that is not modelled is taken for AdamW, and named."""
    given = keys.text(name, usual).lower()
    if given not in _BY_NAME:
        keys.say(name, f"{given}, taken for AdamW")
    elif given in _ABOUT:
        keys.say(name, f"{given}: {_ABOUT[given]}")
    return _BY_NAME.get(given, "adamw")


def low_rank(name: str, rank: int) -> str:
    """GaLore or APOLLO of the nearest rank that is known."""
    return f"{name}-r{min(_RANKS, key=lambda known: abs(known - rank))}"


def deepspeed_optimizer(keys: Keys) -> str | None:
    """Of DeepSpeed's section; None where the trainer around it brings its own."""
    if "type" not in keys:
        return None
    given = keys.text("type").lower()
    if given not in _DEEPSPEED:
        keys.say("type", f"{given}, taken for AdamW")
    keys.free("params", "legacy_fusion")
    return _DEEPSPEED.get(given, "adamw-fused")


def autocast(half: Float | None) -> dict[str, Any]:
    """fp32 parameters, computing in half precision under autocast."""
    return {"precision": f"amp-{half}"} if half else {}


def with_masters(half: Float | None, *, fp32_sums: bool = False) -> dict[str, Any]:
    """Parameters in half precision and fp32 copies in the optimizer, as DeepSpeed and Megatron keep them."""
    if half is None:
        return {}
    precision = Precision(parameters=half, gradients="fp32" if fp32_sums else None, master="fp32")
    return {"precision": precision.name, "optimizer": "adamw-fused"}


def sharded_half(kept: Float, compute: Float, reduce: Float) -> dict[str, Any]:
    """FSDP2's policy: parameters kept in one precision, computed with in another."""
    apart = Precision(parameters=kept, compute=compute, reduce=reduce)
    return {"precision": apart.name if apart.casts else kept}
