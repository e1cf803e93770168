"""Which networks judge models and are never fitted on: generated ones of some seeds, and hand-written ones set apart."""

from __future__ import annotations

from typing import Final

GENERATED: Final = "generated/"
_APART: Final = "blind"  # a package whose workloads are all blind
_QUARTER: Final = 4
_FOLDS: Final = 8  # in which generated networks are left out of a fit


def is_generated(source: str) -> bool:
    return source.startswith(GENERATED)


def is_blind(source: str) -> bool:
    """Seeds that four divides, and functions in a package called blind: kept from every fit and every choice."""
    if is_generated(source):
        return _seed(source) % _QUARTER == 0
    return _APART in source.partition(":")[0].split(".")


def fold_of(source: str) -> str:
    """Generated networks have no families: they are left out in a few folds."""
    return f"generated {_seed(source) // _QUARTER % _FOLDS}"


def _seed(source: str) -> int:
    return int(source.removeprefix(GENERATED))
