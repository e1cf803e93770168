"""Plain ways to foretell a step's device time, fitted on the same steps: what ours has to beat.

`formula` is what PyTorch's RuntimeEstimator computes: an op takes the longer of its arithmetic at three quarters of the
peak and its traffic at full bandwidth. `linear` adds up, for each operator, a time per call, per floating-point operation
and per byte. `trees` sees the step as a whole: how often each operator runs and follows each family, and the totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import describe
from foretell.cost.roofline import peak_name, price_ops
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
NAMES: Final = ("formula", "linear", "trees")
_OF_PEAK: Final = 0.75  # RuntimeEstimator's own factor
_TREES: Final[dict[str, Any]] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 4, "feature_fraction": 0.5,
    "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A step as the rivals see it."""

    formula: Seconds
    work: Mapping[str, tuple[float, float, float]]  # operator → calls, floating-point operations, bytes
    columns: Mapping[str, float]  # of the structural matrix, and the totals


def summary(graph: Graph, device: Device) -> Summary:
    tf32 = graph.precision == "tf32"
    formula = 0.0
    work: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    families: dict[int, str] = {}
    before = "start"
    for op, price in zip(graph.ops, price_ops(graph, device), strict=True):
        if not price.work.kernel:
            continue
        flops, traffic = price.work.flops, price.work.traffic
        peak = _OF_PEAK * device.peak(peak_name(op.signature, tf32=tf32))
        formula += max(flops / peak, traffic / device.bandwidth) * op.times
        sums = work.setdefault(op.signature.name, [0.0, 0.0, 0.0])
        for i, amount in enumerate((1.0, flops, float(traffic))):
            sums[i] += amount * op.times
        key = id(op.signature)
        if key not in families:
            families[key] = describe(op.signature, device, tf32=tf32).family
        counts[op.signature.name] += op.times
        counts[f"{before} then {families[key]}"] += op.times
        before = families[key]
    totals = {"all flops": sum(w[1] for w in work.values()), "all bytes": sum(w[2] for w in work.values())}
    columns = {name: float(np.log1p(n)) for name, n in (counts | Counter(totals)).items()}
    columns["parameters"] = float(np.log1p(graph.bytes_of("parameter")))
    columns["half"] = float(graph.precision.endswith("16"))
    columns["tf32"] = float(tf32)
    return Summary(formula=formula, work={k: (v[0], v[1], v[2]) for k, v in work.items()}, columns=columns)


def rivals_say(seen: Sequence[Summary], took: Floats, wanted: Sequence[Summary]) -> list[dict[str, Seconds]]:
    """What each rival says of the wanted steps after fitting the seen ones."""
    linear, trees = _linear(seen, took, wanted), _trees(seen, took, wanted)
    return [
        {"formula": s.formula, "linear": float(a), "trees": float(b)}
        for s, a, b in zip(wanted, linear, trees, strict=True)
    ]


def _linear(seen: Sequence[Summary], took: Floats, wanted: Sequence[Summary]) -> Floats:
    from scipy.optimize import nnls

    operators = sorted({name for s in seen for name in s.work})
    place = {name: 3 * i for i, name in enumerate(operators)}

    def table(steps: Sequence[Summary]) -> Floats:
        rows = np.zeros((len(steps), 3 * len(operators)))
        for row, s in zip(rows, steps, strict=True):
            for name, amounts in s.work.items():
                if name in place:
                    row[place[name] : place[name] + 3] += amounts
        return rows

    known = table(seen)
    scale = np.maximum((known / took[:, None]).max(axis=0), 1e-300)
    costs, _ = nnls(known / took[:, None] / scale, np.ones(len(seen)), maxiter=20 * known.shape[1])
    return np.asarray(table(wanted) @ (costs / scale), dtype=np.float64)


def _trees(seen: Sequence[Summary], took: Floats, wanted: Sequence[Summary]) -> Floats:
    import lightgbm

    often = Counter(name for s in seen for name in s.columns)
    columns = sorted(name for name, n in often.items() if n >= 5)

    def table(steps: Sequence[Summary]) -> Floats:
        return np.array([[s.columns.get(name, 0.0) for name in columns] for s in steps])

    booster = lightgbm.train(_TREES, lightgbm.Dataset(table(seen), np.log(took)), num_boost_round=_ROUNDS)
    return np.exp(np.asarray(booster.predict(table(wanted), num_threads=1), dtype=np.float64))
