"""How far a model is from steps it has not seen: each group is left out of everything that is fitted.

Groups are families of networks, architectures or the like, never rows.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import LAUNCH_FLOOR
from foretell.cost.interaction import Interaction
from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.cost.operator_errors import UNKNOWN_FAMILY, OperatorErrors
from foretell.errors import InputError
from foretell.forecasting.step import one_device_step
from foretell.forecasting.uncertainty.operators import expected_error
from foretell.learn.dataset import Measured, OpTable, joined
from foretell.learn.host import fit_host
from foretell.learn.interaction import folds, unseen_networks
from foretell.learn.operators import fit_operators
from foretell.learn.options import FitOptions
from foretell.learn.uncertainty.operators import fit_operator_errors, unseen_operator_errors
from foretell.learn.workers import each
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
_SMALL: Final = 0.03  # part of the steps that groups which are left out of one fit may have together
SUM: Final = "sum"  # our own operators, their times added up with no network over them
# Names of fields in results that earlier versions saved.
_OLD_NAMES: Final = {"spread": "expected_error"}
_OLDEST_NAMES: Final = _OLD_NAMES | {
    "step": "record", "period": "step", "device_said": "device_predicted", "period_said": "step_predicted",
    "host_said": "host_predicted", "parts": "families", "others": "rivals", "said": "predicted",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutStep:
    """A measured step, and what was predicted of it while its group was left out. Times are seconds."""

    record: str  # its id in the store
    source: str
    settings: str
    group: str
    bound: str
    device: Seconds
    step: Seconds
    host: Seconds
    device_predicted: Seconds
    step_predicted: Seconds
    host_predicted: Seconds
    roofline: Seconds
    families: Mapping[str, tuple[Seconds, Seconds]]  # of ops → predicted, measured
    unknown: float  # part of the predicted device time that no model knows
    curve: Sequence[tuple[float, Seconds]]  # the step time if the device were so much slower, and the host as predicted
    trains: bool = True
    expected_error: float = 0.0  # of its device time, as a logarithm, by errors of ops in other steps
    rivals: Mapping[str, Seconds] = field(default_factory=dict)  # the device time as other methods predict it


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Steps predicted while left out, and what error is to be expected of an op."""

    steps: Sequence[LeftOutStep]
    operator_errors: OperatorErrors | None = None


def leave_groups_out(
    measured: Measured, group_of: Mapping[int, str], options: FitOptions, always_seen: Sequence[OpTable] = ()
) -> Unseen:
    """Every step of `group_of` (index → group), predicted by models that saw no step of its group; `always_seen` is in every fit.

    Networks over ops, and models of errors, are fitted for a few folds of groups, each without all groups of its fold.
    """
    wanted = {i: g for i, g in group_of.items() if measured.is_timed(i)}
    ops = joined([measured.ops, *always_seen])
    task = _Task(measured, wanted, ops, options, unseen_networks(measured, ops, wanted, options))
    fits = left_out_together(wanted)
    steps: dict[int, LeftOutStep] = {}
    predicted = np.full(len(measured.ops), np.nan)
    for number, (_, (found, seconds)) in enumerate(each(_left_out, task, fits, options.workers), 1):
        steps |= found
        predicted[np.isin(measured.ops.step, list(found))] = seconds
        options.progress(f"predicting groups that nothing has seen: {number} of {len(fits)} fits")
    return with_expected_errors(measured, wanted, steps, predicted, options)


def left_out_together(group_of: Mapping[int, str]) -> list[tuple[str, ...]]:
    """Groups for each fit, the largest first: one each, but small ones together, as a fit for each would take as long."""
    sizes = Counter(group_of.values())
    fits: list[tuple[str, ...]] = []
    few = _SMALL * len(group_of)
    filled = few
    for group, size in sorted(sizes.items(), key=lambda t: (-t[1], t[0])):
        if filled + size > few:
            fits.append(())
            filled = 0
        fits[-1] += (group,)
        filled += size
    return fits


def with_expected_errors(
    measured: Measured,
    group_of: Mapping[int, str],
    steps: Mapping[int, LeftOutStep],
    predicted: Floats,
    options: FitOptions,
) -> Unseen:
    """Steps with the error to expect of them; `predicted` are the seconds of each measured op while it was left out."""
    options.progress("fitting errors of ops")
    known = np.isfinite(predicted)
    ops, seconds = measured.ops.where(known), predicted[known]
    errors = np.log(ops.seconds / seconds)
    dealt = folds(group_of)
    expected = unseen_operator_errors(ops, errors, {i: dealt[g] for i, g in group_of.items()}, options.seed)
    whole, doubt = (
        np.bincount(ops.step, amount, len(measured.steps))
        for amount in (seconds * ops.count, (seconds * ops.count * expected) ** 2)
    )
    left_out = [
        replace(s, expected_error=math.sqrt(doubt[i]) / whole[i] if whole[i] else UNKNOWN_FAMILY)
        for i, s in steps.items()
    ]
    left_out.sort(key=lambda s: (s.source, s.settings, s.record))
    return Unseen(steps=left_out, operator_errors=fit_operator_errors(ops, errors, options.seed))


@dataclass(frozen=True, slots=True)
class _Task:
    measured: Measured
    group_of: Mapping[int, str]
    ops: OpTable
    options: FitOptions
    networks: Mapping[str, Interaction]  # by a group they have not seen


def _left_out(task: _Task, groups: tuple[str, ...]) -> tuple[dict[int, LeftOutStep], Floats]:
    """The groups' steps, and the predicted seconds of their measured ops, in the order of the table."""
    measured = task.measured
    left_out = sorted(i for i, g in task.group_of.items() if g in groups)
    model = _fit_without(measured, task.ops, left_out, task.options)
    found = {}
    for i in left_out:
        group = task.group_of[i]
        corrected = replace(model, interaction=task.networks.get(group))
        added_up = one_device_step(measured.graph(i), measured.device, model).device_seconds
        found[i] = replace(predict(measured, i, group, corrected), rivals={SUM: added_up})
    assert model.operators is not None
    own = measured.ops.where(np.isin(measured.ops.step, left_out))
    return found, np.maximum(model.operators.seconds(own.names, own.descriptions), LAUNCH_FLOOR)


def _fit_without(measured: Measured, ops: OpTable, left_out: Sequence[int], options: FitOptions) -> CostModel:
    """Operators and host from all but some steps."""
    seen = ops.where(~np.isin(ops.step, left_out))
    steps = [s for i, s in enumerate(measured.steps) if i not in set(left_out)]
    host = fit_host(replace(measured, steps=steps))
    operators = fit_operators(seen, seed=options.seed, rounds=options.rounds)
    return CostModel(name="left out", device=measured.device.name, operators=operators, host=host)


def predict(measured: Measured, index: int, group: str, model: CostModel) -> LeftOutStep:
    """What a model predicts of a measured step."""
    step, graph = measured.steps[index], measured.graph(index)
    predicted = one_device_step(graph, measured.device, model)
    curve = predicted.curve()
    families: dict[str, Seconds] = defaultdict(float)
    for i in np.flatnonzero(measured.ops.step == index).tolist():
        families[measured.ops.descriptions[i].family] += float(measured.ops.seconds[i] * measured.ops.count[i])
    return LeftOutStep(
        record=step.id,
        source=step.source,
        settings=step.settings,
        group=group,
        bound=step.bound,
        device=step.device_seconds or 0.0,
        step=step.step_seconds or 0.0,
        host=step.host_seconds or 0.0,
        device_predicted=predicted.device_seconds,
        step_predicted=dict(curve)[1.0],
        host_predicted=predicted.host_seconds,
        roofline=one_device_step(graph, measured.device, load_model(ROOFLINE)).device_seconds,
        families=_pairs(predicted.families, families),
        unknown=predicted.unknown,
        expected_error=expected_error(predicted),
        curve=curve,
        trains=graph.training,
    )


def _pairs(predicted: Mapping[str, Seconds], measured: Mapping[str, Seconds]) -> dict[str, tuple[Seconds, Seconds]]:
    pairs = {family: (predicted.get(family, 0.0), measured.get(family, 0.0)) for family in {*predicted, *measured}}
    return {family: pair for family, pair in sorted(pairs.items()) if any(pair)}


def operator_errors_file(path: Path) -> Path:
    """Where models of errors lie that belong to a file of steps."""
    return path.with_suffix(".spreads.safetensors")


def read_unseen(path: Path) -> Unseen:
    """As `foretell bench accuracy --save` writes it."""
    file = operator_errors_file(path)
    return Unseen(steps=read_steps(path), operator_errors=OperatorErrors.load(file) if file.is_file() else None)


def read_steps(path: Path) -> list[LeftOutStep]:
    """Steps as `foretell bench accuracy --save` writes them."""
    try:
        return [LeftOutStep(**current_names(row)) for row in json.loads(path.read_text())["steps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no steps predicted while left out ({error}). Make some: foretell bench accuracy --save"
        ) from error


def current_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """A saved row, its fields named as they are today."""
    oldest = "device_said" in row or "said" in row
    names = _OLDEST_NAMES if oldest else _OLD_NAMES
    return {names.get(name, name): value for name, value in row.items()}
