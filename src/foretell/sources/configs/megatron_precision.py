"""The precision of Megatron-LM's arguments, of NeMo's `precision`, and of the recipes of Megatron-Bridge by their names."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

from foretell.precision import Float, Recipe
from foretell.sources.configs.fp8 import in_fp8, named_recipe
from foretell.sources.configs.keys import Keys
from foretell.sources.configs.optimizers import with_masters


class _Scaled(NamedTuple):
    recipe: Recipe
    gathered: bool
    half_blocks: str = "0-0"


# Megatron-Bridge, training/mixed_precision.py: what follows `bf16_with_` or `fp16_with_`.
_NAMED: Final = {
    "fp8": _Scaled("delayed", True), "fp8_delayed_scaling": _Scaled("delayed", True),
    "fp8_current_scaling": _Scaled("current", True, "1-1"), "fp8_subchannel_scaling": _Scaled("blockwise", False),
    "mxfp8": _Scaled("mx", True), "nvfp4": _Scaled("mx", False),
}  # fmt: skip
_NAME: Final = re.compile(r"(?:\w*_)?(bf16|fp16)(?:_with_(\w+?))?_mixed")
_FORMATS: Final = ("fp8_format", "fp8", "fp4_format", "fp4")
_OFF: Final = ("", "none", "null", "False", "0")


def megatron_precision(keys: Keys) -> dict[str, Any]:
    """Half-precision parameters with fp32 copies and sums of gradients; fp16 keeps its gradients unless it is asked."""
    half, named = _half(keys)
    fp32_sums = keys.flag("accumulate_allreduce_grads_in_fp32", default=half == "bf16")
    fp32_sums = fp32_sums and not keys.flag("grad_reduce_in_bf16")
    scaled = _scaled(keys, named)
    if half is None:
        return {"optimizer": "adamw-fused"}
    settings = with_masters(half, fp32_sums=fp32_sums)
    if scaled is None:
        return settings
    weights: Literal["fp8"] | None = "fp8" if scaled.gathered else None
    return in_fp8(settings, scaled.recipe, weights=weights, half_blocks=scaled.half_blocks)


def _half(keys: Keys) -> tuple[Float | None, _Scaled | None]:
    """By flags, or by the name of a recipe, which may be one in 8 bits."""
    bf16, fp16 = keys.flag("bf16"), keys.flag("fp16")
    given = keys.take("mixed_precision") or keys.take("precision")
    name = str(given or "").lower().replace("-", "_")
    found = _NAME.fullmatch(name)
    if found is not None:
        scaling = found[2]
        if scaling is not None and scaling not in _NAMED:
            raise keys.wrong(
                "mixed_precision", given, f"bf16_mixed, or bf16_with_…_mixed with one of {', '.join(_NAMED)}"
            )
        if scaling == "nvfp4":
            keys.say("mixed_precision", "4-bit products, taken for 8-bit ones of microscaling blocks")
        return ("bf16" if found[1] == "bf16" else "fp16"), None if scaling is None else _NAMED[scaling]
    if bf16 or name in ("bf16", "bf16_true"):
        return "bf16", None
    return ("fp16" if fp16 or name in ("16", "fp16", "16_mixed", "16_true") else None), None


def _scaled(keys: Keys, named: _Scaled | None) -> _Scaled | None:
    """`--fp8-format` with its recipe; weights that are gathered in 8 bits have no copies in bf16."""
    given = [name for name in _FORMATS if keys.text(name) not in _OFF]
    recipe = named_recipe(keys, "fp8_recipe", "delayed")
    ends = [keys.count(f"num_layers_at_{end}_in_bf16", 1, least=0) for end in ("start", "end")]
    kept = keys.flag("first_last_layers_bf16")
    gathered = [keys.flag(name) for name in ("fp8_param_gather", "fp8_param", "fp8_params")]
    keys.free("fp8_hybrid", "fp8_e4m3")
    if not given:
        return named
    if given[0].startswith("fp4"):
        keys.say(given[0], "4-bit products, taken for 8-bit ones of microscaling blocks")
        recipe = "mx"
    return _Scaled(recipe, any(gathered), f"{ends[0]}-{ends[1]}" if kept else "0-0")
