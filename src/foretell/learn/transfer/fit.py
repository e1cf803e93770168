"""Models of operators for devices that were not measured here, from public measurements of many beside our own.

An op is described by how it lies on its device: time at its peaks, tiles over its units, bytes over its cache. That is
all a model knows of a device. Columns for the device itself were tried, and did not help those left out: a dozen devices
are too few to learn from. To see how large errors are, each chip in turn is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import plain
from foretell.learn.dataset import OpTable, joined
from foretell.learn.operators import training_rows

ROUNDS: Final = 150
# Fewer and rounder leaves than for one device: what is learned must hold on devices between and beyond the known ones.
TREES: Final[Mapping[str, Any]] = {
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.5,
    "learning_rate": 0.08,
}
_OWN_KEPT: Final = 4_000  # ops of a family from our own device: the others must count too


def fit_other_devices(
    public: Mapping[str, OpTable], own: OpTable, *, seed: int = 0, progress: Callable[[str], None] = lambda text: None
) -> OperatorModels:
    """A model of every family that others have measured; `public` as `public_ops` gives it."""
    tables = [replace(table, descriptions=[plain(d) for d in table.descriptions]) for table in public.values()]
    families = {d.family for table in tables for d in table.descriptions}
    models = {}
    for family, rows in training_rows(joined([_some(own, families, seed), *tables])).items():
        progress(f"fitting {family} across devices on {len(rows.wanted)} ops")
        models[family] = rows.fit(seed=seed, rounds=ROUNDS, trees=TREES)
    return OperatorModels(families=models)


def _some(ops: OpTable, families: Iterable[str], seed: int) -> OpTable:
    draw = np.random.default_rng(seed)
    of = np.array([d.family for d in ops.descriptions])
    kept = np.zeros(len(of), dtype=bool)
    for family in sorted(families):
        kept[draw.permutation(np.flatnonzero(of == family))[:_OWN_KEPT]] = True
    return ops.where(kept)


def chip(name: str) -> str:
    """One chip is sold on several boards: to know one is to know the others."""
    return name.split("-")[0]


def without_each(
    public: Mapping[str, OpTable], own: OpTable, *, seed: int = 0, progress: Callable[[str], None] = lambda text: None
) -> dict[str, OperatorModels]:
    """For each chip the models that saw nothing of it."""
    models = {}
    for group in sorted({chip(name) for name in public}):
        progress(f"fitting without {group}")
        seen = {name: table for name, table in public.items() if chip(name) != group}
        models[group] = fit_other_devices(seen, own, seed=seed)
    return models
