"""What trainers of language models share: adapters, the precision of weights, objectives, fused losses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from foretell.sources.configs.keys import Keys

_DTYPES: Final = {
    "bfloat16": "bf16", "bf16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16",
    "torch.float16": "fp16", "float32": "fp32", "fp32": "fp32", "float": "fp32", "torch.float32": "fp32",
}  # fmt: skip
_FEW_BITS: Final = re.compile(r"(gptq|awq|aqlm|4bit|nf4|nvfp4|mxfp4|int4|2bit)", re.IGNORECASE)
_GENERATES: Final = "the update alone is forecast: generating texts, and rewarding them, come on top"


def weights(keys: Keys, *names: str) -> str | None:
    """The precision that a file loads the weights in; None where it does not say. `auto` is the checkpoint's."""
    for name in names:
        if keys.raw(name) == "auto":
            keys.say(name, "auto, taken for bf16")
            return "bf16"
        given = str(keys.take(name, "")).lower()
        if given in _DTYPES:
            return _DTYPES[given]
        if given:
            raise keys.wrong(name, given, f"one of {', '.join(_DTYPES)}")
    return None


def targets_text(targets: Any) -> str:
    """Names of modules, joined as a setting writes them."""
    if isinstance(targets, str):
        words = targets.replace(",", " ").split()
        return "all" if targets in ("all", "all-linear") else "+".join(words)
    return "+".join(str(t).rpartition(".")[2] for t in targets)


def few_bits(keys: Keys, key: str, model: str) -> dict[str, Any]:
    """Weights that are published in few bits, as the end of a model's name tells."""
    if (match := _FEW_BITS.search(model.rpartition("/")[2])) is None:
        return {}
    if match[1].lower() not in ("4bit", "nf4"):
        keys.say(key, f"weights of {match[1]}, taken for 4 bits as bitsandbytes keeps them")
    return {"quantize": "nf4"}


def preference(keys: Keys, name: str, objective: str) -> dict[str, Any]:
    """The objective as a setting, and what of it is not in the step."""
    if objective in ("grpo", "grpo-reference", "ppo"):
        keys.say(name, _GENERATES)
    return {} if objective == "sft" else {"objective": objective}


def liger(keys: Keys, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Liger's kernels: the loss is fused with the last layer; the others run as fast as the plain ones, with less memory."""
    options = config or {}
    if options.get("fused_linear_cross_entropy", True) is False:
        return {}
    return {"fused_loss": True}
