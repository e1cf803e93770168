"""Data sets of the hub that are known: their splits and columns, by name and configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from foretell.capture.script.pretend.sets.columns import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSet:
    """Rows of each split, and what each column holds."""

    splits: Mapping[str, int]
    columns: Mapping[str, Spec]


def known_set(name: str, configuration: str | None = None) -> KnownSet | None:
    """The set of that name, whoever's account it is under."""
    wanted = re.sub("-", "_", name.lower().strip("/"))
    last = wanted.rpartition("/")[2]
    table = _table()
    found = table.get(wanted) or table.get(last) or table.get(re.sub(r"_(v?[0-9_.]+|dataset|hf)$", "", last))
    if found is None:
        return None
    configs: Mapping[str, Any] = found.get("configs", {})
    chosen = configs.get(re.sub("-", "_", (configuration or "").lower()), {})
    entry = {**found, **chosen}
    return KnownSet(splits=entry["splits"], columns=entry["columns"])


def languages_of(*words: str | None) -> Sequence[str]:
    """Two languages that a configuration's name tells, such as ro-en or en_XX."""
    for word in filter(None, words):
        if pair := re.search(r"(?<![a-z])([a-z]{2,3})[-_]([a-z]{2,3})(?![a-z])", word.lower()):
            return pair.groups()
    return ()


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("known.toml").read_text(encoding="utf-8"))
