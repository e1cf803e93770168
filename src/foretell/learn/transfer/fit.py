"""Models of operators for devices that were not measured here, from public measurements of many beside our own.

An op is described by how it lies on its device: time at its peaks, tiles over its units, bytes over its cache. That is
all a model knows of a device. Columns for the device itself were tried, and did not help those left out: a dozen devices
are too few to learn from. Each chip in turn is left out, and foretold from its published numbers alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import plain, seconds_elsewhere
from foretell.hardware import device as known_device
from foretell.learn.dataset import OpTable, joined
from foretell.learn.holdout import Errors
from foretell.learn.operators import training_rows

Floats = npt.NDArray[np.float64]
ROUNDS: Final = 150
# Fewer and rounder leaves than for one device: what is learned must hold on devices between and beyond the known ones.
TREES: Final[Mapping[str, Any]] = {
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.5,
    "learning_rate": 0.08,
}
_OURS_KEPT: Final = 4_000  # ops of a family from our own device: the others must be heard too


def fit_elsewhere(
    public: Mapping[str, OpTable], ours: OpTable, *, seed: int = 0, rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda text: None,
) -> OperatorModels:  # fmt: skip
    """A model of every family that others have measured; `public` as `public_ops` gives it."""
    tables = [replace(table, descriptions=[plain(d) for d in table.descriptions]) for table in public.values()]
    families = {d.family for table in tables for d in table.descriptions}
    models = {}
    for family, rows in training_rows(joined([_some(ours, families, seed), *tables])).items():
        progress(f"fitting {family} across devices on {len(rows.wanted)} ops")
        models[family] = rows.fit(seed=seed, rounds=rounds, trees=TREES)
    return OperatorModels(families=models)


def _some(ops: OpTable, families: Iterable[str], seed: int) -> OpTable:
    draw = np.random.default_rng(seed)
    of = np.array([d.family for d in ops.descriptions])
    kept = np.zeros(len(of), dtype=bool)
    for family in sorted(families):
        kept[draw.permutation(np.flatnonzero(of == family))[:_OURS_KEPT]] = True
    return ops.where(kept)


def generation(name: str) -> str:
    """Devices of one make: `NVIDIA Pascal` is P4 and P100."""
    device = known_device(name)
    return f"{device.vendor} {device.architecture}"


def chip(name: str) -> str:
    """One chip is sold on several boards: to know one is to know the others."""
    return name.split("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpErrors:
    """Of one family's ops on a device that was left out, as each way of foretelling has them."""

    device: str
    family: str
    dtype: str
    errors: Mapping[str, Errors]  # way → its errors


def without_each(
    public: Mapping[str, OpTable], ours: OpTable, *, by: Callable[[str], str] = chip, seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, OperatorModels]:  # fmt: skip
    """For each chip, or another group of devices, the models that saw nothing of it."""
    models = {}
    for group in sorted({by(name) for name in public}):
        progress(f"fitting without {group}")
        seen = {name: table for name, table in public.items() if by(name) != group}
        models[group] = fit_elsewhere(seen, ours, seed=seed)
    return models


def errors_left_out(
    public: Mapping[str, OpTable], models: Mapping[str, OperatorModels], own: OperatorModels, *,
    by: Callable[[str], str] = chip,
) -> list[OpErrors]:  # fmt: skip
    """Errors on the ops of each device by the models of `without_each`, and by plainer ways.

    `own` is the model of the device that was measured here; `distance` takes its distance from the roofline along.
    """
    found: list[OpErrors] = []
    for name, table in public.items():
        linear = _Linear(joined([t for other, t in public.items() if by(other) != by(name)]))
        found += _errors(name, table, models[by(name)], own, linear)
    return found


def _errors(name: str, ops: OpTable, learned: OperatorModels, own: OperatorModels, linear: _Linear) -> list[OpErrors]:
    bare = [plain(d) for d in ops.descriptions]
    said = {
        "learned": seconds_elsewhere(ops.names, ops.descriptions, learned),
        "clocks": np.array([d.roofline for d in ops.descriptions]),
        "distance": own.seconds(ops.names, bare),
        "linear": linear.seconds(ops),
        "roofline": np.array([d.roofline for d in bare]),
    }
    kinds = np.array([f"{d.family}|{_dtype(d.values)}" for d in ops.descriptions])
    found = []
    for kind in sorted(set(kinds)):
        mine = kinds == kind
        family, dtype = kind.split("|")
        errors = {way: Errors.of(seconds[mine], ops.seconds[mine]) for way, seconds in said.items()}
        found.append(OpErrors(device=name, family=family, dtype=dtype, errors=errors))
    return found


def _dtype(values: Mapping[str, float]) -> str:
    return "fp32" if values.get("first_item", 4.0) == 4.0 else "half"


class _Linear:
    """For each operator a time per call, per time at the device's peak and per time at its bandwidth."""

    def __init__(self, ops: OpTable) -> None:
        self._costs: dict[str, Floats] = {}
        names = np.array(ops.names)
        table = _amounts(ops)
        for name in sorted(set(ops.names)):
            mine = np.flatnonzero(names == name)
            self._costs[name] = _least(table[mine], ops.seconds[mine])
        self._usual = np.median(np.array(list(self._costs.values())), axis=0)

    def seconds(self, ops: OpTable) -> Floats:
        costs = np.array([self._costs.get(name, self._usual) for name in ops.names])
        return np.asarray(np.maximum((_amounts(ops) * costs).sum(axis=1), 1e-7), dtype=np.float64)


def _amounts(ops: OpTable) -> Floats:
    columns = ((1e-6, 2 ** d.values["arithmetic"] * 1e-6, 2 ** d.values["memory"] * 1e-6) for d in ops.descriptions)
    return np.array(list(columns), dtype=np.float64)


def _least(table: Floats, took: Floats) -> Floats:
    from scipy.optimize import nnls

    found, _ = nnls(table / took[:, None], np.ones(len(took)))
    return np.asarray(found, dtype=np.float64)


def summed_up(errors: Sequence[OpErrors]) -> dict[tuple[str, str], dict[str, float]]:
    """(family, type) → way → mean error, each device counted once."""
    of: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for e in errors:
        for way, those in e.errors.items():
            of[e.family, e.dtype][way].append(those.mean)
    return {key: {way: float(np.mean(means)) for way, means in ways.items()} for key, ways in of.items()}
