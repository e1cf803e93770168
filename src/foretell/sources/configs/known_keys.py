"""Which keys of a trainer cost nothing, and which change the cost and are not modelled: `keys.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from foretell.sources.configs.keys import Keys


def account_for(keys: Keys, trainer: str) -> None:
    """Count the known keys of a trainer as free, or name them; those that a reader has used stay as they are."""
    table = _tables()[trainer]
    keys.not_modelled(*_matching(keys, table["changes"].split()))
    for names in table["free"].values():
        keys.free(*_matching(keys, names.split()))


def _matching(keys: Keys, patterns: list[str]) -> list[str]:
    plain = {name for name in patterns if not name.endswith("*")}
    starts = tuple(name[:-1] for name in patterns if name.endswith("*"))
    return [name for name in keys.left() if name in plain or (starts and name.startswith(starts))]


@cache
def _tables() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("keys.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
