"""Models by their names on the Hugging Face hub: what a configuration or a script that names one means, without a download."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

# What tells versions of the same shapes apart, at the end of a name.
_VERSION: Final = re.compile(
    r"[-_](hf|instruct|chat|base|it|pt|sft|dpo|preview|reasoning|thinking|deduped|v[0-9]+(\.[0-9]+)*|4bit|8bit|bnb-4bit|unsloth-bnb-4bit"
    r"|gptq|awq|fp8|bf16|aqlm|nf4|bnb|int4|int8|nvfp4|mxfp4|2bit|1x16|dequantized|instruct-[0-9]{4}|2[3-6][01][0-9])$"
)
# The same weights under another account.
_MIRRORS: Final = (
    "unsloth/", "llm-foundry/", "axolotl-ai-co/", "axolotl-mirrors/", "nousresearch/", "huggyllama/", "modelscope/",
    "techxgenus/", "thebloke/", "casperhansen/", "hugging-quants/", "redhatai/", "neuralmagic/", "nvidia/", "llamafactory/",
    "ybelkada/", "tinyllama/", "openai-community/", "google-bert/", "facebookai/", "distilbert/", "google-t5/",
)  # fmt: skip
_FOLDER: Final = re.compile(r"[./~]|(models?|checkpoints?|ckpts?|data|weights)(/|$)|.*/.*/")  # of a copy on some disk


def hub_model(name: str) -> Mapping[str, Any] | None:
    """Entries that change those of the known name `like`; None for a name that is not known here."""
    known = hub_models()
    plain = name.lower().rstrip("/")
    while True:
        if plain in known:
            return known[plain]
        if (found := _mirrored(plain, known)) is not None:
            return found
        shorter = _VERSION.sub("", plain)
        if shorter == plain:
            return None
        plain = shorter


def _mirrored(name: str, known: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    account, slash, model = name.rpartition("/")
    if slash and f"{account}/" not in _MIRRORS and not _FOLDER.match(account):
        return None
    return next((entry for full, entry in known.items() if full.rpartition("/")[2] == model), None)


@cache
def hub_models() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("hub.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
