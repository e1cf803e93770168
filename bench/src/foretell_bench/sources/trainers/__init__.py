"""What trainers do that no graph carries: one TOML file each, of stated facts and fitted numbers."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path

Rules = Mapping[str, Mapping[str, float]]


@functools.cache
def trainer(name: str) -> Rules:
    """The tables of `name.toml`."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
