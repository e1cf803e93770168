"""Measured steps → the interaction network, trained on what models of operators predict of steps they have not seen.

Models know the ops they were fitted on too well: a network that is to mend their errors must see errors as they are on
unseen families. So families are dealt into a few folds, the ops of each are predicted by models fitted without it, and
the network learns from those. How much of its correction is applied is found by leaving each fold out of the network
too: where no correction holds on unseen families, none is applied. To judge it, one fold more is left out of everything.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.cost.interaction import Interaction, Outline, node_table, outline
from foretell.cost.operators import OperatorModels
from foretell.cost.roofline import on_tf32
from foretell.graph import Signature
from foretell.hardware import Device
from foretell.learn.dataset import Measured, OpTable
from foretell.learn.operators import fit_operators
from foretell.learn.options import FitOptions
from foretell.learn.workers import each
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.learn.graph_network import Sample

Floats = npt.NDArray[np.float64]
Predicted = Mapping[int, Floats]  # index of a step → seconds of its nodes, by models that had not seen it
FOLDS: Final = 5
FEWEST: Final = 60  # steps a network needs to learn from
INSTALL: Final = (
    "PyTorch Geometric is not here, so no interaction network is trained and op times are added up. "
    "Install it with: pip install 'foretell[learn]'"
)
_EPOCHS: Final = 8  # more, and it learns its families by heart
_STRENGTHS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_LOG_ERROR: Final = 1.0  # logarithm beyond which an error of an op says no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A measured step, its nodes described, and the measured seconds of each."""

    index: int  # among the measured steps
    source: str
    step: Outline
    names: Sequence[str]
    descriptions: Sequence[Description]
    measured: Floats  # nan where the op launched nothing
    whole: Seconds

    def predicted(self, models: OperatorModels) -> Floats:
        return np.maximum(models.seconds(self.names, self.descriptions), self.step.least)

    def sum_of(self, seconds: Floats) -> Seconds:
        return float(seconds @ self.step.count)

    @property
    def families(self) -> list[str]:
        return [d.family for d in self.descriptions]


def is_installed() -> bool:
    return find_spec("torch_geometric") is not None


def examples(measured: Measured, wanted: Iterable[int]) -> list[Example]:
    seconds_of: dict[int, dict[Signature, Seconds]] = defaultdict(dict)
    table = measured.ops
    for index, signature, seconds in zip(table.step.tolist(), table.signatures, table.seconds.tolist(), strict=True):
        seconds_of[index][signature] = seconds
    described = cache(lambda signature, tf32: describe(signature, measured.device, tf32=tf32))
    found = []
    for index in sorted(wanted):
        step, graph = measured.steps[index], measured.graph(index)
        drawn = outline(graph, measured.device)
        signatures = drawn.signatures
        found.append(
            Example(
                index=index,
                source=step.source,
                step=drawn,
                names=[s.name for s in signatures],
                descriptions=[described(s, on_tf32(s.name, graph.precision, measured.device)) for s in signatures],
                measured=np.array([seconds_of[index].get(s, math.nan) for s in signatures]),
                whole=step.device_seconds or 0.0,
            )
        )
    return found


def folds(group_of: Mapping[int, str], count: int = FOLDS) -> dict[str, int]:
    """Group → fold: the largest first, each to the fold that has least."""
    sizes = Counter(group_of.values())
    filled = [0] * min(count, len(sizes))
    dealt = {}
    for group, size in sorted(sizes.items(), key=lambda t: (-t[1], t[0])):
        dealt[group] = filled.index(min(filled))
        filled[dealt[group]] += size
    return dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    device: Device
    examples: Sequence[Example]
    ops: OpTable
    fold_of: Mapping[int, int]  # index of a step → its fold
    options: FitOptions

    @classmethod
    def of(cls, measured: Measured, ops: OpTable, group_of: Mapping[int, str], options: FitOptions) -> _Task:
        dealt = folds(group_of)
        fold_of = {i: dealt[group] for i, group in group_of.items()}
        those = examples(measured, group_of)
        return cls(device=measured.device, examples=those, ops=ops, fold_of=fold_of, options=options)


def is_enough(group_of: Mapping[int, str]) -> bool:
    """Whether there are steps and groups enough to train networks, and what trains them."""
    return len(group_of) >= FEWEST and len(set(group_of.values())) >= FOLDS and is_installed()


def fit_interaction(
    measured: Measured, ops: OpTable, group_of: Mapping[int, str], options: FitOptions
) -> Interaction | None:
    """A network for models of operators fitted on all of `ops`; None where there is too little to learn from."""
    if not is_enough(group_of):
        return None
    task = _Task.of(measured, ops, group_of, options)
    predicted = _predict_unseen(task, [(fold,) for fold in range(FOLDS)])
    options.progress("training the network")
    # In a worker too: torch does not like to be forked once it has trained.
    [(_, network)] = each(_train, task, [_of_steps(predicted.values())], options.workers)
    return network


def unseen_networks(
    measured: Measured, ops: OpTable, group_of: Mapping[int, str], options: FitOptions
) -> dict[str, Interaction]:
    """For each group a network that saw nothing of it, nor did the models whose errors it learned. All of a fold share one."""
    if not is_enough(group_of):
        return {}
    task = _Task.of(measured, ops, group_of, options)
    predicted = _predict_unseen(task, list(combinations(range(FOLDS), 2)))
    trained = {}
    for fold, network in each(_train_without, (task, predicted), range(FOLDS), options.workers):
        trained[fold] = network
        options.progress(f"trained {len(trained)} of {FOLDS} networks")
    return {group: trained[fold] for group, fold in folds(group_of).items()}


def _predict_unseen(task: _Task, parts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Predicted]:
    predicted: dict[tuple[int, ...], Predicted] = {}
    for part, found in each(_without, task, parts, task.options.workers):
        predicted[part] = found
        task.options.progress(
            f"predicting families that operators have not seen: {len(predicted)} of {len(parts)} fits"
        )
    return predicted


def _without(task: _Task, left_out: tuple[int, ...]) -> Predicted:
    """Seconds of the nodes of every step in folds that are left out together."""
    gone = [i for i, fold in task.fold_of.items() if fold in left_out]
    models = fit_operators(
        task.ops.where(~np.isin(task.ops.step, gone)), seed=task.options.seed, rounds=task.options.rounds
    )
    return {e.index: e.predicted(models) for e in task.examples if task.fold_of[e.index] in left_out}


def _train_without(both: tuple[_Task, Mapping[tuple[int, ...], Predicted]], fold: int) -> Interaction:
    task, predicted = both
    seen = _of_steps(those for pair, those in predicted.items() if fold in pair)
    return _train(task, {i: seconds for i, seconds in seen.items() if task.fold_of[i] != fold})


def _train(task: _Task, predicted: Predicted) -> Interaction:
    """On all predicted steps, its correction as strong as holds on folds it has not seen."""

    def trained(those: Predicted) -> Interaction:
        return train_interaction(task.examples, those, task.device, seed=task.options.seed)

    errors: dict[float, list[float]] = {strength: [] for strength in _STRENGTHS}
    for fold in sorted({task.fold_of[i] for i in predicted}):
        network = trained({i: seconds for i, seconds in predicted.items() if task.fold_of[i] != fold})
        for e in task.examples:
            if e.index in predicted and task.fold_of[e.index] == fold:
                alone = predicted[e.index]
                corrections = network.correct(e.step, alone, e.families, task.device)
                for strength in _STRENGTHS:
                    errors[strength].append(abs(e.sum_of(alone * np.exp(strength * corrections)) / e.whole - 1))
    best = min(_STRENGTHS, key=lambda strength: float(np.mean(errors[strength])))
    return replace(trained(predicted), strength=best)


def _of_steps(parts: Iterable[Predicted]) -> dict[int, Floats]:
    return {i: seconds for those in parts for i, seconds in those.items()}


def train_interaction(
    examples: Sequence[Example], predicted: Predicted, device: Device, *, seed: int, epochs: int | None = None
) -> Interaction:
    """On the steps that were predicted."""
    from foretell.learn import graph_network as networks

    own = [e for e in examples if e.index in predicted]
    families = tuple(sorted({family for e in own for family in e.families}))
    often = Counter(e.source for e in own)
    # An architecture that was measured often counts more, but not in proportion.
    samples = [sample(e, predicted[e.index], families, device, weight=1 / math.sqrt(often[e.source])) for e in own]
    networks.seeded(seed)
    network = networks.Corrector(samples)
    networks.train(network, samples, seed=seed, epochs=epochs or _EPOCHS)
    return Interaction(families=families, weights=networks.weights(network))


def sample(e: Example, seconds: Floats, families: Sequence[str], device: Device, *, weight: float) -> Sample:
    """An example as the network sees it, with the seconds that were predicted of its nodes."""
    from foretell.learn.graph_network import Sample

    whole = e.sum_of(seconds)
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = np.clip(np.log(e.measured / seconds), -_MAX_LOG_ERROR, _MAX_LOG_ERROR)
    return Sample.of(
        e.step,
        table=node_table(e.step, seconds, e.families, families, device),
        share=seconds * e.step.count / whole,
        wanted=wanted,
        whole=math.log(e.whole / whole),
        weight=weight,
    )
