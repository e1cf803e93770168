"""Plain ways to predict a step's device time, fitted on the same steps: what ours has to beat.

`formula` is what PyTorch's RuntimeEstimator computes: an op takes the longer of its arithmetic at three quarters of the
peak and its traffic at full bandwidth. `linear` adds up, for each operator, a time per call, per floating-point operation
and per byte. `trees` sees the step as a whole: how often each operator runs and follows each family, and the totals.
`network` passes messages over the graph of ops and predicts the time of the whole step, with no model of single ops.
"""

from __future__ import annotations

import math
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
from foretell.learn.dataset import Measured
from foretell.learn.interaction import FOLDS, Example, examples, folds, is_enough
from foretell.learn.options import FitOptions
from foretell.learn.workers import each
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
FORMULA, LINEAR, TREES, NETWORK = NAMES = ("formula", "linear", "trees", "network")
_OF_PEAK: Final = 0.75  # RuntimeEstimator's own factor
_TREES: Final[dict[str, Any]] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 4, "feature_fraction": 0.5,
    "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS: Final = 300
_EPOCHS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A step as the rivals see it."""

    formula: Seconds
    work: Mapping[str, tuple[float, float, float]]  # operator → calls, floating-point operations, bytes
    columns: Mapping[str, float]  # of the structural matrix, and the totals


def summary(graph: Graph, device: Device) -> Summary:
    tf32 = graph.precision.wanted() == "tf32"
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
    columns["half"] = float(graph.precision.is_half)
    columns["tf32"] = float(tf32)
    return Summary(formula=formula, work={k: (v[0], v[1], v[2]) for k, v in work.items()}, columns=columns)


class Rivals:
    """All rivals, on the timed steps of `measured`; `group_of` says which steps are left out together."""

    def __init__(self, measured: Measured, group_of: Mapping[int, str], options: FitOptions) -> None:
        options.progress("summing up steps")
        timed = [i for i in range(len(measured.steps)) if measured.is_timed(i)]  # also those that no group has
        self._measured, self._workers = measured, options.workers
        self._summaries = {i: summary(measured.graph(i), measured.device) for i in timed}
        self._group_of = {i: group for i, group in group_of.items() if i in self._summaries}
        self._network = network_predictions(measured, self._group_of, options)

    def predict(self) -> dict[str, dict[str, Seconds]]:
        """Record → what each rival predicts that was fitted without its group."""
        found: dict[str, dict[str, Seconds]] = {}
        for _, those in each(_without, self, sorted(set(self._group_of.values())), self._workers):
            found |= {self._measured.steps[i].id: predicted for i, predicted in those.items()}
        return found

    def without(self, group: str) -> dict[int, dict[str, Seconds]]:
        known = [i for i in self._summaries if self._group_of.get(i) != group]
        wanted = [i for i, own in self._group_of.items() if own == group]
        seen, unseen = [self._summaries[i] for i in known], [self._summaries[i] for i in wanted]
        measured = np.array([self._measured.steps[i].device_seconds for i in known], dtype=np.float64)
        linear, trees = _linear(seen, measured, unseen).tolist(), _trees(seen, measured, unseen).tolist()
        return {
            i: {FORMULA: s.formula, LINEAR: a, TREES: b} | ({NETWORK: self._network[i]} if self._network else {})
            for i, s, a, b in zip(wanted, unseen, linear, trees, strict=True)
        }


def _without(rivals: Rivals, group: str) -> dict[int, dict[str, Seconds]]:
    return rivals.without(group)


def _linear(seen: Sequence[Summary], measured: Floats, wanted: Sequence[Summary]) -> Floats:
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
    scale = np.maximum((known / measured[:, None]).max(axis=0), 1e-300)
    costs, _ = nnls(known / measured[:, None] / scale, np.ones(len(seen)), maxiter=20 * known.shape[1])
    return np.asarray(table(wanted) @ (costs / scale), dtype=np.float64)


def _trees(seen: Sequence[Summary], measured: Floats, wanted: Sequence[Summary]) -> Floats:
    import lightgbm

    often = Counter(name for s in seen for name in s.columns)
    columns = sorted(name for name, n in often.items() if n >= 5)

    def table(steps: Sequence[Summary]) -> Floats:
        return np.array([[s.columns.get(name, 0.0) for name in columns] for s in steps])

    booster = lightgbm.train(_TREES, lightgbm.Dataset(table(seen), np.log(measured)), num_boost_round=_ROUNDS)
    return np.exp(np.asarray(booster.predict(table(wanted), num_threads=1), dtype=np.float64))


def network_predictions(measured: Measured, group_of: Mapping[int, str], options: FitOptions) -> dict[int, Seconds]:
    """What a whole-graph network predicts of each step, trained without all groups of its fold."""
    if not is_enough(group_of):
        return {}
    dealt = folds(group_of)
    task = _Whole(examples(measured, group_of), {i: dealt[group] for i, group in group_of.items()}, options.seed)
    predicted: dict[int, Seconds] = {}
    for fold, found in each(_whole_without, task, range(FOLDS), options.workers):
        predicted |= found
        options.progress(f"trained a whole-graph network without fold {fold} of {FOLDS}")
    return predicted


@dataclass(frozen=True, slots=True)
class _Whole:
    examples: Sequence[Example]
    fold_of: Mapping[int, int]
    seed: int


def _whole_without(task: _Whole, fold: int) -> dict[int, Seconds]:
    from foretell.learn import graph_network as networks
    from foretell_bench.research.whole_step import WholeStep, sample_by_sizes

    families = sorted({family for e in task.examples for family in e.families})
    seen = [e for e in task.examples if task.fold_of[e.index] != fold]
    wanted = [e for e in task.examples if task.fold_of[e.index] == fold]
    often = Counter(e.source for e in seen)
    samples = [sample_by_sizes(e, families, 1 / math.sqrt(often[e.source])) for e in seen]
    networks.seeded(task.seed)
    network = WholeStep(samples)
    networks.train(network, samples, seed=task.seed, epochs=_EPOCHS)
    predicted = np.exp(networks.predictions(network, [sample_by_sizes(e, families, 1.0) for e in wanted]))
    return {e.index: seconds for e, seconds in zip(wanted, predicted.tolist(), strict=True)}
