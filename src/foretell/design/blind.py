"""Which generated networks judge models and are never fitted on."""

from __future__ import annotations

from typing import Final

GENERATED: Final = "generated/"
_QUARTER: Final = 4
_FOLDS: Final = 8  # in which generated networks are left out of a fit


def is_generated(source: str) -> bool:
    return source.startswith(GENERATED)


def is_blind(source: str) -> bool:
    """Seeds that four divides: drawn before anything was measured, kept from every fit and every choice."""
    return is_generated(source) and _seed(source) % _QUARTER == 0


def fold_of(source: str) -> str:
    """Generated networks have no families: they are left out in a few folds."""
    return f"generated {_seed(source) // _QUARTER % _FOLDS}"


def _seed(source: str) -> int:
    return int(source.removeprefix(GENERATED))
