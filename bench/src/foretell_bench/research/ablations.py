"""What each part of the predictor contributes: the same steps predicted with a part removed, on the same folds.

Families are dealt into a few folds; of each, everything is fitted without it. That leaves more out at a time than one family
does, so these errors are larger than those of the accuracy page and to be compared with each other alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description, describe
from foretell.cost.host import HostCosts
from foretell.cost.interaction import Interaction
from foretell.cost.model import CostModel, Priced
from foretell.cost.older_software import OlderSoftware
from foretell.cost.operators import matrix
from foretell.cost.roofline import Price, price_calls
from foretell.forecasting.step import Pricing, one_device_step
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.learn.dataset import Measured, OpTable, joined
from foretell.learn.host import fit_host
from foretell.learn.interaction import folds, unseen_networks
from foretell.learn.operators import TrainingRows, fit_operators, training_rows
from foretell.learn.options import FitOptions
from foretell.learn.workers import each
from foretell.units import Seconds
from foretell_bench.errors import Errors

Floats = npt.NDArray[np.float64]
WHOLE, NO_NETWORK, NO_HOST, NO_PHYSICS, PERCEPTRONS, HALF, QUARTER = (
    "whole", "no network", "no host", "no physics", "perceptrons", "half", "quarter",
)  # fmt: skip
ABOUT: Final = {
    WHOLE: "operators, network, host",
    NO_NETWORK: "op times are summed",
    NO_HOST: "a step takes as long as its kernels",
    NO_PHYSICS: "trees of plain sizes predict the time itself, with no roofline, waves, alignment or cache; no network",
    PERCEPTRONS: "a small neural network for each family of operators in place of the trees; no network over ops",
    HALF: "of the seen architectures, and of the ops measured by themselves, half; no network",
    QUARTER: "a quarter; no network",
}
# Columns that know the device or how kernels tile; the others are sizes, counts, types and layouts.
_PHYSICS: Final = ("arithmetic", "memory", "balance", "in_cache", "wave", "fill", "edge", "align", "chunk", "least",
                   "split_k", "skipped")  # fmt: skip
_WIDTH: Final = 64
_EPOCHS: Final = 25
_LOOKS: Final = 500  # batches that small families get at least
_TOGETHER: Final = 512
_FEWEST: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    name: str
    device: Errors
    step: Errors


class Operators(Protocol):
    def seconds(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats: ...


@dataclass(frozen=True, slots=True)
class _Task:
    measured: Measured
    ops: OpTable
    fold_of: Mapping[int, int]
    networks: Mapping[int, Interaction]  # by fold
    options: FitOptions


Answers = dict[str, tuple[Seconds, Seconds]]  # of a step, by variant: device time, step time


def ablate(
    measured: Measured, group_of: Mapping[int, str], options: FitOptions, more: Sequence[OpTable] = ()
) -> list[Ablation]:
    """Errors of every variant on every step of `group_of` (index → group), its fold of groups left out."""
    wanted = {i: g for i, g in group_of.items() if measured.is_timed(i)}
    ops = joined([measured.ops, *more])
    dealt = folds(wanted)
    networks = {dealt[group]: network for group, network in unseen_networks(measured, ops, wanted, options).items()}
    task = _Task(measured, ops, {i: dealt[g] for i, g in wanted.items()}, networks, options)
    found: dict[int, Answers] = {}
    parts = sorted(set(dealt.values()))
    for number, (_, those) in enumerate(each(_left_out, task, parts, options.workers), 1):
        found |= those
        options.progress(f"removed parts in {number} of {len(parts)} folds")
    steps = [measured.steps[i] for i in found]
    true = [s.device_seconds or 0.0 for s in steps], [s.step_seconds or 0.0 for s in steps]

    def errors(name: str, which: int) -> Errors:
        return Errors.of([answers[name][which] for answers in found.values()], true[which])

    there = [name for name in ABOUT if all(name in answers for answers in found.values())]
    return [Ablation(name=name, device=errors(name, 0), step=errors(name, 1)) for name in there]


def _left_out(task: _Task, fold: int) -> dict[int, Answers]:
    measured = task.measured
    gone = {i for i, f in task.fold_of.items() if f == fold}
    seen = task.ops.where(~np.isin(task.ops.step, sorted(gone)))
    others = [s for i, s in enumerate(measured.steps) if i not in gone]
    host = fit_host(Measured(device=measured.device, steps=others, graphs=measured.graphs, ops=seen))

    def fitted(name: str, ops: OpTable) -> CostModel:
        operators = fit_operators(ops, seed=task.options.seed, rounds=task.options.rounds)
        return CostModel(name=name, device=measured.device.name, operators=operators, host=host)

    models: dict[str, Pricing] = {
        name: fitted(name, seen.where(_kept(seen, measured, part, task.options.seed)))
        for name, part in ((HALF, 0.5), (QUARTER, 0.25))
    }
    models[NO_NETWORK] = plain = fitted(NO_NETWORK, seen)
    if fold in task.networks:
        models[WHOLE] = replace(plain, name=WHOLE, interaction=task.networks[fold])
    without = fit_operators(_plain_table(seen), seed=task.options.seed, rounds=task.options.rounds)
    models[NO_PHYSICS] = _Variant(operators=_Plain(without), host=host, bounded=False)
    models[PERCEPTRONS] = _Variant(operators=_Perceptrons(seen, seed=task.options.seed), host=host)
    return {i: _answers(measured.graphs[measured.steps[i].graph or ""], measured.device, models) for i in sorted(gone)}


def _answers(graph: Graph, device: Device, models: Mapping[str, Pricing]) -> Answers:
    steps = {name: one_device_step(graph, device, model) for name, model in models.items()}
    answers = {name: (step.device_seconds, step.step_seconds) for name, step in steps.items()}
    whole = answers.get(WHOLE, answers[NO_NETWORK])[0]
    return answers | {NO_HOST: (whole, whole)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A cost model whose operators are of another kind."""

    operators: Operators
    host: HostCosts
    bounded: bool = True  # by the roofline
    older_software: OlderSoftware = field(default_factory=OlderSoftware)

    def price(self, graph: Graph, device: Device) -> Priced:
        calls, prices = graph.calls, price_calls(graph, device)
        kernels = {
            id(call.signature): call.signature for call, p in zip(calls.distinct, prices, strict=True) if p.work.kernel
        }
        descriptions = [describe(s, device, tf32=graph.precision.wanted() == "tf32") for s in kernels.values()]
        seconds = self.operators.seconds([s.name for s in kernels.values()], descriptions)
        of = dict(zip(kernels, seconds.tolist(), strict=True))
        return Priced(
            calls=calls,
            of_calls=[
                Price(p.work, max(of[id(call.signature)], p.seconds if self.bounded else 0.0)) if p.work.kernel else p
                for call, p in zip(calls.distinct, prices, strict=True)
            ],
        )


def _kept(seen: OpTable, measured: Measured, part: float, seed: int) -> npt.NDArray[np.bool_]:
    """A part of the architectures with all their steps, and as large a part of the ops measured by themselves."""
    draw = np.random.default_rng(seed)
    source = np.array([measured.steps[i].source if i >= 0 else "" for i in seen.step.tolist()])
    known = sorted(set(source) - {""})
    chosen = [known[i] for i in draw.permutation(len(known))[: max(1, round(part * len(known)))].tolist()]
    return np.where(source == "", draw.random(len(source)) < part, np.isin(source, chosen))


def _plain(d: Description) -> Description:
    values = {name: v for name, v in d.values.items() if not any(word in name for word in _PHYSICS)}
    return replace(d, roofline=1.0, values=values)


def _plain_table(ops: OpTable) -> OpTable:
    return replace(ops, descriptions=[_plain(d) for d in ops.descriptions])


@dataclass(frozen=True, slots=True)
class _Plain:
    models: Operators

    def seconds(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        return self.models.seconds(names, [_plain(d) for d in descriptions])


class _Perceptrons:
    """Two hidden layers for each family of operators, on the same rows, columns, weights and loss as the trees."""

    def __init__(self, ops: OpTable, *, seed: int) -> None:
        self._of = {
            family: (rows, _Perceptron(rows, seed))
            for family, rows in training_rows(ops).items()
            if len(rows.wanted) >= _FEWEST
        }

    def seconds(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        out = np.array([d.roofline for d in descriptions])
        for family, (rows, network) in self._of.items():
            own = [i for i, d in enumerate(descriptions) if d.family == family]
            if own:
                table = matrix([names[i] for i in own], [descriptions[i] for i in own], rows.columns, rows.operators)
                out[own] *= np.exp(network(table))
        return out


class _Perceptron:
    def __init__(self, rows: TrainingRows, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._operators = len(rows.operators)
        table = self._wide(rows.table)
        self._mean, self._scale = table.mean(0), np.maximum(table.std(0), 0.05)
        self._network = nn.Sequential(
            nn.Linear(table.shape[1], _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
        )
        x, y, w = (torch.tensor(a, dtype=torch.float32) for a in (self._even(table), rows.wanted, rows.weights))
        batches = -(-len(y) // _TOGETHER)
        epochs = max(_EPOCHS, _LOOKS // batches)
        optimizer = torch.optim.AdamW(self._network.parameters(), lr=3e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * batches)
        draw = np.random.default_rng(seed)
        for _ in range(epochs):
            for some in np.array_split(draw.permutation(len(y)), batches):
                predicted = self._network(x[some])[:, 0]
                loss = (w[some] * nn.functional.huber_loss(predicted, y[some], reduction="none", delta=0.5)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()

    def __call__(self, table: Floats) -> Floats:
        import torch

        with torch.no_grad():
            predicted = self._network(torch.tensor(self._even(self._wide(table)), dtype=torch.float32))[:, 0]
        return np.asarray(predicted.numpy(), dtype=np.float64)

    def _wide(self, table: Floats) -> Floats:
        """The operator is a category: a column for each; what is not there has a column too."""
        numbers = table[:, :-1]
        kinds = (table[:, -1:] == np.arange(self._operators)).astype(np.float64)
        return np.hstack([np.nan_to_num(numbers), np.isnan(numbers), kinds])

    def _even(self, table: Floats) -> Floats:
        return np.asarray(np.clip((table - self._mean) / self._scale, -6, 6), dtype=np.float64)
