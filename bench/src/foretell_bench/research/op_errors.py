"""Errors on the ops of devices that were left out, by the models that saw nothing of them and by plainer ways."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import plain, seconds_on_others
from foretell.learn.dataset import OpTable, joined
from foretell.learn.transfer.fit import chip
from foretell.learn.transfer.intervals import CLOCKS, DISTANCE, LEARNED, ROOFLINE
from foretell_bench.errors import Errors

Floats = npt.NDArray[np.float64]
LINEAR = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpErrors:
    """Of one family's ops on a device that was left out, as each way of predicting has them."""

    device: str
    family: str
    dtype: str
    errors: Mapping[str, Errors]  # way → its errors


def errors_left_out(
    public: Mapping[str, OpTable], models: Mapping[str, OperatorModels], own: OperatorModels
) -> list[OpErrors]:
    """By the models of `without_each`; `own` is that of the device measured here, whose distance from the roofline is kept."""
    found: list[OpErrors] = []
    for name, table in public.items():
        linear = _Linear(joined([t for other, t in public.items() if chip(other) != chip(name)]))
        found += _errors(name, table, models[chip(name)], own, linear)
    return found


def _errors(name: str, ops: OpTable, learned: OperatorModels, own: OperatorModels, linear: _Linear) -> list[OpErrors]:
    bare, names = [plain(d) for d in ops.descriptions], ops.names
    predicted = {
        LEARNED: seconds_on_others(names, ops.descriptions, learned),
        CLOCKS: np.array([d.roofline for d in ops.descriptions]),
        DISTANCE: own.seconds(names, bare),
        LINEAR: linear.seconds(ops),
        ROOFLINE: np.array([d.roofline for d in bare]),
    }
    kinds = np.array([f"{d.family}|{_dtype(d.values)}" for d in ops.descriptions])
    found = []
    for kind in sorted(set(kinds)):
        own_rows = kinds == kind
        family, dtype = kind.split("|")
        errors = {way: Errors.of(seconds[own_rows], ops.seconds[own_rows]) for way, seconds in predicted.items()}
        found.append(OpErrors(device=name, family=family, dtype=dtype, errors=errors))
    return found


def _dtype(values: Mapping[str, float]) -> str:
    return "fp32" if values.get("first_item", 4.0) == 4.0 else "half"


class _Linear:
    """For each operator a time per call, per time at the device's peak and per time at its bandwidth."""

    def __init__(self, ops: OpTable) -> None:
        self._costs: dict[str, Floats] = {}
        names, table = np.array(ops.names), _amounts(ops)
        for name in sorted(set(ops.names)):
            rows = np.flatnonzero(names == name)
            self._costs[name] = _least(table[rows], ops.seconds[rows])
        self._usual = np.median(np.array(list(self._costs.values())), axis=0)

    def seconds(self, ops: OpTable) -> Floats:
        costs = np.array([self._costs.get(name, self._usual) for name in ops.names])
        return np.asarray(np.maximum((_amounts(ops) * costs).sum(axis=1), 1e-7), dtype=np.float64)


def _amounts(ops: OpTable) -> Floats:
    columns = ((1e-6, 2 ** d.values["arithmetic"] * 1e-6, 2 ** d.values["memory"] * 1e-6) for d in ops.descriptions)
    return np.array(list(columns), dtype=np.float64)


def _least(table: Floats, measured: Floats) -> Floats:
    from scipy.optimize import nnls

    found, _ = nnls(table / measured[:, None], np.ones(len(measured)))
    return np.asarray(found, dtype=np.float64)


def mean_errors(errors: Sequence[OpErrors]) -> dict[tuple[str, str], dict[str, float]]:
    """(family, type) → way → mean error, each device counted once."""
    of: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for e in errors:
        for way, those in e.errors.items():
            of[e.family, e.dtype][way].append(those.mean)
    return {key: {way: float(np.mean(means)) for way, means in ways.items()} for key, ways in of.items()}
