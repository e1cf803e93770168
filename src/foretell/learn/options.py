"""How a fit runs: its seed, how long it boosts trees, how many workers it has, whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ROUNDS: Final = 450  # of boosting


def quiet(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    seed: int = 0
    rounds: int = ROUNDS
    workers: int = 1  # fits that run side by side
    progress: Callable[[str], None] = quiet
