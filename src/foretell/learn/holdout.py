"""How far off models are on what they have not seen: splits by architecture, family or device, never by row.

Each group of steps in turn is left out of everything that is fitted; its steps are then foretold as a user's would be.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from foretell.cost.interaction import Interaction
from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.errors import InputError
from foretell.forecasting.step import one_device_step
from foretell.learn.dataset import RECORDED_ALONE, Measured, OpTable, joined
from foretell.learn.host import fit_host
from foretell.learn.interaction import unseen_networks
from foretell.learn.operators import ROUNDS, fit_operators
from foretell.learn.workers import each
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
BUSY: Final = 0.9  # of the step with a kernel running, at least: the device's speed is the step's


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of predictions against measurements, as fractions of what was measured."""

    mean: float
    median: float
    p90: float
    rmse: float
    bias: float
    rank: float  # Spearman's correlation
    count: int

    @classmethod
    def of(cls, predicted: Floats | Sequence[float], measured: Floats | Sequence[float]) -> Errors:
        predicted, measured = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
        relative = predicted / measured - 1
        off = np.abs(relative)
        ranks = [np.argsort(np.argsort(x)) for x in (predicted, measured)]
        correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(off) > 2 else float("nan")
        return cls(mean=float(off.mean()), median=float(np.median(off)), p90=float(np.quantile(off, 0.9)),
                   rmse=float(np.sqrt((off**2).mean())), bias=float(relative.mean()), rank=correlation,
                   count=len(off))  # fmt: skip

    def __str__(self) -> str:
        return f"mean {self.mean:.1%}, median {self.median:.1%}, p90 {self.p90:.1%}, n {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """A measured step, and what was said of it while its group was left out. Times are seconds."""

    step: str  # its id in the store
    source: str
    settings: str
    group: str
    bound: str
    device: Seconds
    period: Seconds
    host: Seconds
    device_said: Seconds
    period_said: Seconds
    host_said: Seconds
    roofline: Seconds
    parts: Mapping[str, tuple[Seconds, Seconds]]  # family of ops → what was said, what was measured
    unknown: float  # part of the said device time that no model knows
    curve: Sequence[tuple[float, Seconds]]  # the step time if the device were so much slower, and the host as said
    others: Mapping[str, Seconds] = field(default_factory=dict)  # what rivals say of the device time

    @property
    def busy(self) -> bool:
        return self.device >= BUSY * self.period


class Rivals(Protocol):
    """Other ways to predict device time, asked about the same steps after seeing the same others."""

    def predict(self, known: Sequence[int], wanted: Sequence[int]) -> Mapping[int, Mapping[str, Seconds]]: ...


def leave_groups_out(
    measured: Measured, group_of: Mapping[int, str], *, beside: Sequence[OpTable] = (), seed: int = 0,
    rounds: int = ROUNDS, rivals: Rivals | None = None, workers: int = 1, progress: Callable[[str], None] = lambda text: None,
) -> list[Foretold]:  # fmt: skip
    """Every step of `group_of` (index → group), foretold by models that saw no step of its group; `beside` is always seen.

    Networks over ops are trained for a few folds of groups, each without all groups of its fold. `rivals` are asked too.
    """
    wanted = {i: g for i, g in group_of.items() if is_timed(measured, i)}
    ops = joined([measured.ops, *beside])
    networks = unseen_networks(measured, ops, wanted, seed=seed, rounds=rounds, workers=workers, progress=progress)
    task = _Task(measured, wanted, ops, seed, rounds, networks, rivals)
    groups = sorted(set(wanted.values()), key=lambda g: -sum(v == g for v in wanted.values()))
    done: list[Foretold] = []
    for number, (_, found) in enumerate(each(_left_out, task, groups, workers), 1):
        done += found
        progress(f"left out {number} of {len(groups)} groups")
    return sorted(done, key=lambda f: (f.source, f.settings, f.step))


def read_steps(path: Path) -> list[Foretold]:
    """Steps as `foretell bench accuracy --save` writes them."""
    try:
        return [Foretold(**row) for row in json.loads(path.read_text())["steps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no steps foretold while left out ({error}). Make some: foretell bench accuracy --save"
        ) from error


SPLITS: Final = ("family", "architecture", "random", "batch")
_FOLDS: Final = 8


def groups(measured: Measured, split: str, families: Mapping[str, str], seed: int = 0) -> dict[int, str]:
    """Step → the group it is left out with. A batch split leaves out the largest batch of every architecture."""
    steps = {i: s for i, s in enumerate(measured.steps) if is_timed(measured, i)}
    if split == "family":
        return {i: families.get(s.source, s.source) for i, s in steps.items()}
    draw = np.random.default_rng(seed)
    if split == "architecture":
        sources = sorted({s.source for s in steps.values()})
        fold = dict(zip(sources, (draw.permutation(len(sources)) % _FOLDS).tolist(), strict=True))
        return {i: f"fold {fold[s.source]}" for i, s in steps.items()}
    if split == "random":
        return {
            i: f"fold {fold}" for i, fold in zip(steps, (draw.permutation(len(steps)) % _FOLDS).tolist(), strict=True)
        }
    largest: dict[str, float] = {}
    several: dict[str, set[float]] = {}
    for s in steps.values():
        largest[s.source] = max(largest.get(s.source, 0.0), s.samples or 0.0)
        several.setdefault(s.source, set()).add(s.samples or 0.0)
    return {i: "largest" for i, s in steps.items() if len(several[s.source]) > 1 and s.samples == largest[s.source]}


def is_timed(measured: Measured, index: int) -> bool:
    """Whether a step ran plainly, with a time for each of its ops."""
    step = measured.steps[index]
    alone = any(mark.startswith(RECORDED_ALONE) for mark in step.marks)
    return step.kind == "step" and not alone and bool(step.device_seconds and step.step_seconds and step.host_seconds)


@dataclass(frozen=True, slots=True)
class _Task:
    measured: Measured
    group_of: Mapping[int, str]
    ops: OpTable
    seed: int
    rounds: int
    networks: Mapping[str, Interaction]  # by a group they have not seen
    rivals: Rivals | None


def _left_out(task: _Task, group: str) -> list[Foretold]:
    measured = task.measured
    left_out = np.array(sorted(i for i, g in task.group_of.items() if g == group))
    seen = task.ops.where(~np.isin(task.ops.step, left_out))
    others = [s for i, s in enumerate(measured.steps) if task.group_of.get(i) != group]
    model = CostModel(
        name="left out", device=measured.device.name, operators=fit_operators(seen, seed=task.seed, rounds=task.rounds),
        host=fit_host(Measured(device=measured.device, steps=others, graphs=measured.graphs, ops=seen)),
    )  # fmt: skip
    known = [i for i in range(len(measured.steps)) if is_timed(measured, i) and task.group_of.get(i) != group]
    said = task.rivals.predict(known, left_out.tolist()) if task.rivals else {}
    corrected = replace(model, interaction=task.networks.get(group))
    return [
        replace(
            foretold(measured, i, group, corrected),
            others={"sum": device_seconds(model, measured, i), **said.get(i, {})},
        )
        for i in left_out.tolist()
    ]


def foretold(measured: Measured, index: int, group: str, model: CostModel) -> Foretold:
    """What a model says of a measured step."""
    step = measured.steps[index]
    graph = measured.graphs[step.graph or ""]
    said = one_device_step(graph, measured.device, model)
    curve = said.curve()
    took: dict[str, Seconds] = defaultdict(float)
    for i in np.flatnonzero(measured.ops.step == index).tolist():
        took[measured.ops.descriptions[i].family] += float(measured.ops.seconds[i] * measured.ops.count[i])
    return Foretold(
        step=step.id, source=step.source, settings=step.settings, group=group, bound=step.bound,
        device=step.device_seconds or 0.0, period=step.step_seconds or 0.0, host=step.host_seconds or 0.0,
        device_said=said.device_seconds, period_said=dict(curve)[1.0], host_said=said.host_seconds, curve=curve,
        roofline=one_device_step(graph, measured.device, load_model(ROOFLINE)).device_seconds,
        parts=_parts(said.families, took), unknown=said.unknown,
    )  # fmt: skip


def device_seconds(model: CostModel, measured: Measured, index: int) -> Seconds:
    graph = measured.graphs[measured.steps[index].graph or ""]
    return one_device_step(graph, measured.device, model).device_seconds


def _parts(said: Mapping[str, Seconds], took: Mapping[str, Seconds]) -> dict[str, tuple[Seconds, Seconds]]:
    pairs = {family: (said.get(family, 0.0), took.get(family, 0.0)) for family in sorted({*said, *took})}
    return {family: pair for family, pair in pairs.items() if any(pair)}
