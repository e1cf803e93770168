"""The model a configuration names, as a SOURCE: a file beside it, or a known name built from its numbers, no download."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError, did_you_mean
from foretell.sources.configs.files import is_file

# What tells versions of the same shapes apart, at the end of a name.
_VERSION: Final = re.compile(
    r"-(hf|instruct|chat|base|it|pt|v0\.[0-9]+|v1\.[0-9]+|4bit|bnb-4bit|unsloth-bnb-4bit|gptq|awq|instruct-[0-9]{4})$"
)
_MIRRORS: Final = ("unsloth/", "llm-foundry/", "axolotl-ai-co/")  # the same weights under another account


def named_model(name: str, folder: Path) -> str | Mapping[str, Any]:
    """A SOURCE, or the entries of a configuration."""
    for place in (folder / name, Path(name)):
        for path in (place / "config.json", place):
            if path.suffix == ".json" and is_file(path):
                return str(path)
    known = _known()
    entry = known.get(wanted := _plain(name)) or _mirrored(wanted, known)
    if entry is None:
        raise SourceError(
            f"the configuration of the model {name[:100]!r} is not known here, and nothing is downloaded. "
            f"{did_you_mean(wanted, known)}Give --set model=hf/NAME (foretell models hf), or the path of its config.json."
        )
    return f"hf/{entry['like']}" if len(entry) == 1 else entry


def _plain(name: str) -> str:
    name, before = name.lower().strip("/"), ""
    while name != before:
        before, name = name, _VERSION.sub("", name)
    return name


def _mirrored(name: str, known: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    for mirror in _MIRRORS:
        if name.startswith(mirror):
            model = name.removeprefix(mirror)
            return next((entry for full, entry in known.items() if full.rpartition("/")[2] == model), None)
    return None


@cache
def _known() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("hub.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
