"""8-bit products under the words that trainers have for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from foretell.precision import Precision, Recipe
from foretell.sources.configs.keys import Keys

# Megatron's and Transformer Engine's, torchao's, torchtitan's and accelerate's.
_RECIPES: Final[dict[str, Recipe]] = {
    "delayed": "delayed", "tensorwise": "current", "current": "current", "blockwise": "blockwise", "mxfp8": "mx", "mx": "mx",
    "rowwise": "rowwise", "rowwise_with_gw_hp": "rowwise", "te": "delayed", "ao": "current", "msamp": "delayed",
    "mxfp8_cublas": "mx", "mxfp8_cublas_rceil": "mx", "mxfp8_emulated": "mx",
}  # fmt: skip
_AS_ANOTHER: Final = {
    "rowwise_with_gw_hp": "gradients of weights are taken to be in 8 bits too",
    "msamp": "its weights and states of 8 bits are taken for Transformer Engine's delayed scaling",
    "custom": "a recipe of one's own, taken for delayed scaling",
}  # fmt: skip


def in_fp8(
    settings: dict[str, Any], recipe: Recipe, *, weights: Literal["fp8"] | None = None, half_blocks: str = "0-0"
) -> dict[str, Any]:
    """A step's settings with its linear layers in 8 bits; one that computes in fp32 is autocast."""
    given = Precision.parse(settings.get("precision", "fp32"))
    kept = given if given.is_half else Precision(autocast="bf16")
    made = replace(kept, name="", fp8=recipe, weights=weights, half_blocks=half_blocks)
    return {**settings, "precision": made.name}


def named_recipe(keys: Keys, name: str, usual: str) -> Recipe:
    """The recipe a key names; one that is not modelled is taken for delayed scaling, and named."""
    word = keys.text(name, usual).lower()
    if word in _AS_ANOTHER or word not in _RECIPES:
        keys.say(name, f"{word}: {_AS_ANOTHER.get(word, 'taken for delayed scaling')}")
    return _RECIPES.get(word, "delayed")
