"""Measured steps → what a host pays to issue ops.

The time of a host-bound step is its host's; of the others the trace says how long issuing took. Counts of ops go
together, so least squares alone would give one kind all and another nothing: a prior keeps it near what single ops
were seen to take in the traces. Most of all those over lists of tensors, of which nearly every step has the same few.

Where a store has steps that were timed in processes that never traced, those say what the host takes: until Foretell 0.2
a tracer stayed in the process, and each launch took a third longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.host import KINDS, MODES, Charge, HostCosts, charges, mode_of, updated_parameters
from foretell.graph import Graph
from foretell.hardware import host as known_host
from foretell.learn.dataset import Measured
from foretell.measure.record import StepRow
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
_HOST_BOUND: Final = 0.85  # of the step with a kernel running, at most
_CHARGES: Final[tuple[Charge, ...]] = (
    *(("kernel", mode, kind) for mode in MODES for kind in KINDS),
    *(("view", mode, "") for mode in MODES),
    *((name, "", "") for name in ("listed", "tensor", "made", "number", "parameter", "inner", "step", "call")),
)
_COLUMN: Final = {charge: column for column, charge in enumerate(_CHARGES)}
# Relative to a forward op, in the order of the charges: medians of issue times in traces.
_SEEN: Final = np.array(
    [
        *np.repeat([0.5, 1.0, 0.8, 0.55], len(KINDS)),
        0.2,
        0.35,
        0.35,
        0.1,
        0.4,
        0.006,
        0.085,
        0.023,
        0.17,
        0.4,
        10.0,
        2.0,
    ]
)
_VIEWS: Final = len(MODES) * len(KINDS)  # where the columns of views begin
_LIST: Final = _VIEWS + len(MODES)
# The weight of what was seen in traces, in steps; more for lists, what they make and numbers in host memory.
_PRIOR: Final = np.array([30.0 if _LIST <= column < _LIST + 4 else 1.0 for column in range(len(_SEEN))])
_LEAST: Final = 0.2  # of what was seen: nothing is free
_ROUNDS: Final = 10
_BUSY: Final = 0.95  # of the step with a kernel running, at least
_FEWEST: Final = 10  # busy steps that say something together
_ENOUGH_PLAIN: Final = 100  # plainly timed steps that say all of it


def fit_host(measured: Measured) -> HostCosts:
    steps = [s for s in measured.steps if s.kind == "step" and s.host_seconds and s.graph in measured.graphs]
    counts = np.array([_counts(measured.graphs[s.graph or ""]) for s in steps])
    traced = {step.point: place for place, step in enumerate(steps)}
    plain = [(traced[s.point], taken) for s in measured.steps if (taken := plain_host_seconds(s, steps, traced))]
    if len(plain) < _ENOUGH_PLAIN:
        plain = [(place, _host_seconds(step)) for place, step in enumerate(steps)]
    places, seconds = zip(*plain, strict=True)
    unit = known_host(measured.device.host).op_seconds
    costs = _solve(counts[list(places)], np.array(seconds, dtype=np.float64)) / unit
    kernel, view = costs[:_VIEWS].reshape(len(MODES), len(KINDS)).tolist(), costs[_VIEWS:_LIST].tolist()
    return HostCosts(
        kernel={mode: dict(zip(KINDS, row, strict=True)) for mode, row in zip(MODES, kernel, strict=True)},
        view=dict(zip(MODES, view, strict=True)),
        gap=_gap(steps, counts),
        **{name: cost for (name, _, _), cost in zip(_CHARGES[_LIST:], costs[_LIST:].tolist(), strict=True)},
    )


def _host_seconds(step: StepRow) -> Seconds:
    """Of a traced step."""
    bound = (step.device_seconds or 0) < _HOST_BOUND * (step.step_seconds or 1)
    return (step.step_seconds if bound else step.host_seconds) or 0.0


def plain_host_seconds(step: StepRow, traced: Sequence[StepRow], places: Mapping[str, int]) -> Seconds | None:
    """Of a step that was timed and not traced, whose kernels another record of the same point has; None of any other.

    Where the device is busy to the end, only one that was issued well before says how long issuing takes.
    """
    if step.kind != "step" or step.device_seconds is not None or not step.step_seconds or step.point not in places:
        return None
    if (traced[places[step.point]].device_seconds or 0) < _HOST_BOUND * step.step_seconds:
        return step.step_seconds
    issued = step.issue_seconds or step.step_seconds
    return issued if issued < _HOST_BOUND * step.step_seconds else None


def _gap(steps: Sequence[StepRow], counts: Floats) -> Seconds:
    """What busy devices' steps take beyond their kernels, for each op that launches one."""
    launching = counts[:, :_VIEWS].sum(axis=1) + counts[:, _LIST]
    gaps = [
        (s.step_seconds - s.device_seconds) / n
        for s, n in zip(steps, launching, strict=True)
        if s.step_seconds and s.device_seconds and _BUSY * s.step_seconds < s.device_seconds < s.step_seconds
    ]
    return float(np.median(gaps)) if len(gaps) >= _FEWEST else 0.0


def _counts(graph: Graph) -> list[float]:
    """How much of each charge a step has."""
    counts = [0.0] * len(_SEEN)
    for call, times in zip(graph.calls.distinct, graph.calls.times, strict=True):
        for charge, amount in charges(call, mode_of(call, graph)):
            counts[_COLUMN[charge]] += times * amount
    counts[_COLUMN["parameter", "", ""]] = updated_parameters(graph)
    counts[_COLUMN["step" if graph.training else "call", "", ""]] = 1.0
    return counts


def _solve(counts: Floats, seconds: Floats) -> Floats:
    """Seconds of each kind: errors as logarithms, robust against odd steps, none below its least.

    What launches a kernel costs what a view costs and something beyond it, which is what is solved for.
    """
    from scipy.optimize import nnls

    prior = _SEEN * float(np.median(seconds / (counts @ _SEEN)))
    summed = _upon_views()
    least = _LEAST * np.linalg.solve(summed, prior)
    pull = np.diag(np.sqrt(_PRIOR) / prior)
    weight = 1 / seconds
    costs = prior
    for _ in range(_ROUNDS):
        table = np.vstack([counts * weight[:, None], pull]) @ summed
        wanted = np.concatenate([seconds * weight, np.sqrt(_PRIOR)])
        beyond, _ = nnls(table, wanted - table @ least)
        costs = summed @ (least + beyond)
        found = counts @ costs
        weight = 1 / np.sqrt(seconds * found) / np.sqrt(np.abs(np.log(found / seconds)) + 0.05)
    return np.asarray(costs, dtype=np.float64)


def _upon_views() -> Floats:
    """Costs from their parts: those of a mode's kernels have its view's in them."""
    summed = np.eye(len(_SEEN))
    for kernel in range(_VIEWS):
        summed[kernel, _VIEWS + kernel // len(KINDS)] = 1.0
    return summed
