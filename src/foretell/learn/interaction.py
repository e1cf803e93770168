"""Measured steps → the interaction network, taught what models of operators say of steps they have not seen.

Models know the ops they were fitted on too well: a network that is to mend their errors must see errors as they are on
unseen families. So families are dealt into a few folds, the ops of each are foretold by models fitted without it, and the
network learns from those. How much of what it says is believed is found by leaving each fold out of the network too: where
nothing it says holds on unseen families, nothing is. To judge it, one fold more is left out of everything.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.cost.interaction import Interaction, Outline, node_table, outline
from foretell.cost.operators import OperatorModels
from foretell.cost.roofline import price_ops
from foretell.graph import Signature
from foretell.hardware import Device
from foretell.learn.dataset import Measured, OpTable
from foretell.learn.operators import ROUNDS, fit_operators
from foretell.learn.workers import each
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.learn.graph_network import Shown

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]
FOLDS: Final = 5
FEWEST: Final = 60  # steps a network needs to learn from
INSTALL: Final = (
    "PyTorch Geometric is not here, so no interaction network is trained and op times are added up. "
    "Install it with: pip install 'foretell[learn]'"
)
_EPOCHS: Final = 8  # more, and it learns its families by heart
_STRENGTHS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST: Final = 1.0  # logarithm beyond which an error of an op says no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A measured step, its nodes described, and what each of their ops took in it."""

    index: int  # among the measured steps
    source: str
    step: Outline
    names: Sequence[str]
    descriptions: Sequence[Description]
    took: Floats  # nan where the op launched nothing
    whole: Seconds

    def said(self, models: OperatorModels) -> Floats:
        return np.maximum(models.seconds(self.names, self.descriptions), self.step.least)

    def sum_of(self, seconds: Floats) -> Seconds:
        return float(seconds @ self.step.count)

    @property
    def families(self) -> list[str]:
        return [d.family for d in self.descriptions]


Said = Mapping[int, Floats]  # index of a step → seconds of its nodes, by models that had not seen it


def is_installed() -> bool:
    return find_spec("torch_geometric") is not None


def examples(measured: Measured, wanted: Iterable[int]) -> list[Example]:
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(measured.ops.step.tolist()):
        rows_of[index].append(row)
    known: dict[tuple[Signature, bool], Description] = {}
    found = []
    for index in sorted(wanted):
        step = measured.steps[index]
        graph = measured.graphs[step.graph or ""]
        tf32 = graph.precision == "tf32"
        drawn = outline(graph, price_ops(graph, measured.device), measured.device)
        signatures = [graph.ops[place].signature for place in drawn.firsts]
        for s in signatures:
            if (s, tf32) not in known:
                known[s, tf32] = describe(s, measured.device, tf32=tf32)
        names, descriptions = [s.name for s in signatures], [known[s, tf32] for s in signatures]
        found.append(
            Example(
                index=index, source=step.source, step=drawn, names=names, descriptions=descriptions,
                took=_took(names, descriptions, measured.ops, rows_of[index]), whole=step.device_seconds or 0.0,
            )
        )  # fmt: skip
    return found


def _took(names: Sequence[str], descriptions: Sequence[Description], ops: OpTable, rows: Sequence[int]) -> Floats:
    """The table names no signature, but describes it; ops that look alike come in the same order."""
    waiting: dict[object, list[Seconds]] = defaultdict(list)
    for row in reversed(rows):
        waiting[_look(ops.names[row], ops.descriptions[row])].append(float(ops.seconds[row]))
    looks = [_look(name, d) for name, d in zip(names, descriptions, strict=True)]
    return np.array([waiting[look].pop() if waiting[look] else math.nan for look in looks])


def _look(name: str, d: Description) -> object:
    return name, d.roofline, tuple(d.values.items())


def folds(group_of: Mapping[int, str], count: int = FOLDS) -> dict[str, int]:
    """Group → fold: the largest first, each to the fold that has least."""
    sizes = Counter(group_of.values())
    held = [0] * min(count, len(sizes))
    dealt = {}
    for group, size in sorted(sizes.items(), key=lambda t: (-t[1], t[0])):
        dealt[group] = held.index(min(held))
        held[dealt[group]] += size
    return dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    device: Device
    examples: Sequence[Example]
    ops: OpTable
    fold_of: Mapping[int, int]  # index of a step → its fold
    seed: int
    rounds: int

    @classmethod
    def of(cls, measured: Measured, ops: OpTable, group_of: Mapping[int, str], seed: int, rounds: int) -> _Task:
        dealt = folds(group_of)
        return cls(
            device=measured.device, examples=examples(measured, group_of), ops=ops,
            fold_of={i: dealt[group] for i, group in group_of.items()}, seed=seed, rounds=rounds,
        )  # fmt: skip


def is_enough(group_of: Mapping[int, str]) -> bool:
    return len(group_of) >= FEWEST and len(set(group_of.values())) >= FOLDS


def fit_interaction(
    measured: Measured, ops: OpTable, group_of: Mapping[int, str], *, seed: int = 0, rounds: int = ROUNDS,
    workers: int = 1, progress: Say = lambda text: None,
) -> Interaction | None:  # fmt: skip
    """A network for models of operators fitted on all of `ops`; None where there is too little to learn from."""
    if not is_enough(group_of) or not is_installed():
        return None
    task = _Task.of(measured, ops, group_of, seed, rounds)
    said = _say_unseen(task, [(fold,) for fold in range(FOLDS)], workers, progress)
    progress("training the network")
    # In a worker too: torch does not like to be forked once it has trained.
    [(_, network)] = each(_train, task, [_of_steps(said.values())], workers)
    return network


def unseen_networks(
    measured: Measured, ops: OpTable, group_of: Mapping[int, str], *, seed: int = 0, rounds: int = ROUNDS,
    workers: int = 1, progress: Say = lambda text: None,
) -> dict[str, Interaction]:  # fmt: skip
    """For each group a network that saw nothing of it, nor did the models whose errors it learned. All of a fold share one."""
    if not is_enough(group_of) or not is_installed():
        return {}
    task = _Task.of(measured, ops, group_of, seed, rounds)
    said = _say_unseen(task, list(combinations(range(FOLDS), 2)), workers, progress)
    trained = {}
    for fold, network in each(_train_without, (task, said), range(FOLDS), workers):
        trained[fold] = network
        progress(f"trained {len(trained)} of {FOLDS} networks")
    return {group: trained[fold] for group, fold in folds(group_of).items()}


def _say_unseen(
    task: _Task, parts: Sequence[tuple[int, ...]], workers: int, progress: Say
) -> dict[tuple[int, ...], Said]:
    said: dict[tuple[int, ...], Said] = {}
    for part, found in each(_without, task, parts, workers):
        said[part] = found
        progress(f"what operators say of families they have not seen: {len(said)} of {len(parts)} fits")
    return said


def _without(task: _Task, left_out: tuple[int, ...]) -> Said:
    """Seconds of the nodes of every step in folds that are left out together."""
    gone = [i for i, fold in task.fold_of.items() if fold in left_out]
    models = fit_operators(task.ops.where(~np.isin(task.ops.step, gone)), seed=task.seed, rounds=task.rounds)
    return {e.index: e.said(models) for e in task.examples if task.fold_of[e.index] in left_out}


def _train_without(both: tuple[_Task, Mapping[tuple[int, ...], Said]], fold: int) -> Interaction:
    task, said = both
    seen = _of_steps(those for pair, those in said.items() if fold in pair)
    kept = {i: seconds for i, seconds in seen.items() if task.fold_of[i] != fold}
    return _train(task, kept)


def _train(task: _Task, said: Said) -> Interaction:
    """On all steps that something was said of, believed as far as it holds on folds it has not seen."""

    def trained(those: Said) -> Interaction:
        return train_interaction(task.examples, those, task.device, seed=task.seed)

    parts = sorted({task.fold_of[i] for i in said})
    off: dict[float, list[float]] = {strength: [] for strength in _STRENGTHS}
    for fold in parts:
        network = trained({i: seconds for i, seconds in said.items() if task.fold_of[i] != fold})
        for e in task.examples:
            if e.index in said and task.fold_of[e.index] == fold:
                corrections = network.correct(e.step, said[e.index], e.families, task.device)
                for strength in _STRENGTHS:
                    off[strength].append(abs(e.sum_of(said[e.index] * np.exp(strength * corrections)) / e.whole - 1))
    best = min(_STRENGTHS, key=lambda strength: float(np.mean(off[strength])))
    return replace(trained(said), strength=best)


def _of_steps(parts: Iterable[Said]) -> dict[int, Floats]:
    return {i: seconds for those in parts for i, seconds in those.items()}


def train_interaction(
    examples: Sequence[Example], said: Said, device: Device, *, seed: int, epochs: int | None = None
) -> Interaction:
    """On the steps that something was said of."""
    from foretell.learn import graph_network as networks

    mine = [e for e in examples if e.index in said]
    families = tuple(sorted({family for e in mine for family in e.families}))
    often = Counter(e.source for e in mine)
    shown = [
        show(e, said[e.index], families, device, weight=1 / math.sqrt(often[e.source])) for e in mine
    ]  # an architecture that was measured often counts more, but not in proportion
    networks.seeded(seed)
    network = networks.Corrector(shown)
    networks.train(network, shown, seed=seed, epochs=epochs or _EPOCHS)
    return Interaction(families=families, weights=networks.weights(network))


def show(e: Example, seconds: Floats, families: Sequence[str], device: Device, *, weight: float) -> Shown:
    from foretell.learn.graph_network import Shown

    whole = float(seconds @ e.step.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = np.clip(np.log(e.took / seconds), -_MOST, _MOST)
    return Shown(
        table=node_table(e.step, seconds, e.families, families, device), makes=e.step.makes, takes=e.step.takes,
        into=e.step.shares(), onto=e.step.shares(onto=True), share=seconds * e.step.count / whole, wanted=wanted,
        whole=math.log(e.whole / whole), weight=weight, totals=np.zeros(1),
    )  # fmt: skip
