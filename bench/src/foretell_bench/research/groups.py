"""What is left out together: families, architectures, random steps, or the largest batch of every architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from foretell.learn.dataset import Measured
from foretell.learn.fit import by_family

SPLITS: Final = ("family", "architecture", "random", "batch")
_FOLDS: Final = 8


def groups(measured: Measured, split: str, families: Mapping[str, str], seed: int = 0) -> dict[int, str]:
    """Timed step → the group it is left out with."""
    if split == "family":
        return by_family(measured, families)
    steps = {i: s for i, s in enumerate(measured.steps) if measured.is_timed(i)}
    draw = np.random.default_rng(seed)
    if split == "architecture":
        sources = sorted({s.source for s in steps.values()})
        fold = dict(zip(sources, (draw.permutation(len(sources)) % _FOLDS).tolist(), strict=True))
        return {i: f"fold {fold[s.source]}" for i, s in steps.items()}
    if split == "random":
        drawn = (draw.permutation(len(steps)) % _FOLDS).tolist()
        return {i: f"fold {fold}" for i, fold in zip(steps, drawn, strict=True)}
    batches: dict[str, set[float]] = {}
    for s in steps.values():
        batches.setdefault(s.source, set()).add(s.samples or 0.0)
    several = {source: max(those) for source, those in batches.items() if len(those) > 1}
    return {i: "largest" for i, s in steps.items() if s.source in several and s.samples == several[s.source]}
