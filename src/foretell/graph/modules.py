"""Paths of modules, `layers.0.attention.q`, which come from files as long as they like."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

_DEEPEST: Final = 64  # levels; no model has as many, and a path of 100,000 has gigabytes of prefixes


def prefixes(module: str) -> list[str]:
    """The modules that a module lies in, outermost first, and itself; what is deeper than any model counts as one level."""
    return list(accumulate(module.split(".", _DEEPEST - 1), "{}.{}".format)) if module else []
