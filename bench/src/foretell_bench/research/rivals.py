"""Plain ways to foretell a step's device time, fitted on the same steps: what ours has to beat.

`formula` is what PyTorch's RuntimeEstimator computes: an op takes the longer of its arithmetic at three quarters of the
peak and its traffic at full bandwidth. `linear` adds up, for each operator, a time per call, per floating-point operation
and per byte. `trees` sees the step as a whole: how often each operator runs and follows each family, and the totals.
`network` passes messages over the graph of ops and reads the time of the whole step off it, with no model of single ops.
`sum` is ours without the network over ops.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import describe
from foretell.cost.roofline import peak_name, price_ops
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.learn.dataset import Measured
from foretell.learn.holdout import is_timed
from foretell.learn.interaction import FOLDS, Example, examples, folds, is_enough, is_installed
from foretell.learn.workers import each
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.learn.graph_network import Shown

Floats = npt.NDArray[np.float64]
NAMES: Final = ("sum", "formula", "linear", "trees", "network")
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


class Rivals:
    """All rivals, on the timed steps of `measured`; `group_of` says which steps the whole-graph network leaves out together."""

    def __init__(
        self, measured: Measured, group_of: Mapping[int, str], *, seed: int = 0, workers: int = 1,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        progress("summing up steps")
        timed = [i for i in range(len(measured.steps)) if is_timed(measured, i)]  # also those that no group has
        self._measured = measured
        self._summaries = {i: summary(measured.graphs[measured.steps[i].graph or ""], measured.device) for i in timed}
        wanted = {i: group for i, group in group_of.items() if i in self._summaries}
        self._whole = network_says(measured, wanted, seed=seed, workers=workers, progress=progress)

    def predict(self, known: Sequence[int], wanted: Sequence[int]) -> dict[int, dict[str, Seconds]]:
        took = np.array([self._measured.steps[i].device_seconds for i in known], dtype=np.float64)
        said = rivals_say([self._summaries[i] for i in known], took, [self._summaries[i] for i in wanted])
        network = {i: {"network": self._whole[i]} if self._whole else {} for i in wanted}
        return {i: others | network[i] for i, others in zip(wanted, said, strict=True)}


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


def network_says(
    measured: Measured, group_of: Mapping[int, str], *, seed: int = 0, workers: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[int, Seconds]:  # fmt: skip
    """What a whole-graph network says of each step, trained without all groups of its fold."""
    if not is_enough(group_of) or not is_installed():
        return {}
    dealt = folds(group_of)
    task = _Whole(examples(measured, group_of), {i: dealt[group] for i, group in group_of.items()}, seed)
    said: dict[int, Seconds] = {}
    for fold, found in each(_whole_without, task, range(FOLDS), workers):
        said |= found
        progress(f"trained a whole-graph network without fold {fold} of {FOLDS}")
    return said


@dataclass(frozen=True, slots=True)
class _Whole:
    examples: Sequence[Example]
    fold_of: Mapping[int, int]
    seed: int


def _whole_without(task: _Whole, fold: int) -> dict[int, Seconds]:
    from foretell.learn import graph_network as networks

    families = sorted({family for e in task.examples for family in e.families})
    seen = [e for e in task.examples if task.fold_of[e.index] != fold]
    wanted = [e for e in task.examples if task.fold_of[e.index] == fold]
    often = Counter(e.source for e in seen)
    shown = [_plainly(e, families, 1 / math.sqrt(often[e.source])) for e in seen]
    networks.seeded(task.seed)
    network = networks.WholeStep(shown)
    networks.train(network, shown, seed=task.seed, epochs=_EPOCHS)
    said = np.exp(networks.says(network, [_plainly(e, families, 1.0) for e in wanted]))
    return {e.index: float(seconds) for e, seconds in zip(wanted, said, strict=True)}


def _plainly(e: Example, families: Sequence[str], weight: float) -> Shown:
    """A step by its sizes alone: no time of an op, not even the roofline's."""
    from foretell.learn.graph_network import Shown

    step = e.step
    kinds = np.array([[float(family == known) for known in families] for family in e.families])
    flops, traffic = float(step.flops @ step.count), float(step.traffic @ step.count)
    table = np.column_stack([
        np.log1p(step.flops), np.log1p(step.traffic), np.log1p(step.count), step.position, step.phases, step.cached, kinds,
    ])  # fmt: skip
    return Shown(
        table=table, makes=step.makes, takes=step.takes, into=step.shares(), onto=step.shares(onto=True),
        share=step.traffic * step.count / max(traffic, 1.0), wanted=np.full(len(step), math.nan), whole=math.log(e.whole),
        weight=weight,
        totals=np.array([math.log1p(flops), math.log1p(traffic), math.log(step.count.sum()), float(step.training)]),
    )  # fmt: skip
