"""After Ernest (Venkataraman et al., NSDI 2016): t(s, m) = θ · [1, s/m, log m, m] with θ ≥ 0, one fit for each workload.

A workload is a black box: an architecture with its settings, precision and plan on one kind of device. Of the runs it may
learn from, Ernest takes those that an A-optimal design chooses under a budget of seconds; the seconds of those runs are the
price of its answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from foretell.errors import InputError
from foretell.methods.protocol import JOB_TIME, Example, Prediction, Query
from foretell.methods.surroundings import micro_steps, precision_of, same_but_for_scale
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
_RIDGE: Final = 1e-6  # of the information of all runs: a design of fewer runs than terms has none of its own
_RUN_BY_RUN: Final = frozenset(("record", "run", "batch", "placement", "status", "steps"))
_UNSEEN: Final = "Ernest knows only workloads it has run, and this one was not among its runs"


class Ernest:
    """`budget` is the part of the measured seconds of a workload that its design may spend; 1: all runs there are."""

    def __init__(self, *, budget: float = 1.0) -> None:
        if not 0 < budget <= 1:
            raise InputError(f"the budget is a part of the runs' seconds, more than 0 and at most 1, got {budget!r}.")
        self.budget = budget
        self.fits_: dict[Hashable, Floats] = {}
        self.targets_: tuple[str, ...] = ()
        self.spent_: Seconds = 0.0

    @property
    def name(self) -> str:
        return "Ernest" if self.budget == 1 else f"Ernest, {self.budget:.0%} of the runs' seconds"

    def fit(self, examples: Sequence[Example]) -> Self:
        if not examples:
            raise InputError("Ernest cannot be fitted: no runs were given. Give it some of every workload.")
        runs: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
        for i, example in enumerate(examples):
            for target in example.measured:
                runs[workload(example.query, target)].append(i)
        spent: set[int] = set()
        self.fits_ = {}
        for key, own in runs.items():
            target = str(key[0])
            table = np.array([features(examples[i].query, target) for i in own])
            chosen = a_optimal(table, [examples[i].cost for i in own], self.budget)
            self.fits_[key] = _theta(table[chosen], [examples[own[i]].measured[target] for i in chosen])
            spent |= {own[i] for i in chosen}
        self.targets_ = tuple(sorted({target for example in examples for target in example.measured}))
        self.spent_ = sum(examples[i].cost for i in spent)
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Prediction:
        fits = {target: self.fits_.get(workload(query, target)) for target in self.targets_}
        found = {t: float(features(query, t) @ theta) for t, theta in fits.items() if theta is not None}
        values = {target: value for target, value in found.items() if value > 0}
        return Prediction(values=values, why="" if values else _UNSEEN)


def workload(query: Query, target: str) -> tuple[Hashable, ...]:
    """What is one job to Ernest: whatever it is, apart from the data and machines it is given.

    A job goes through its data in batches of one size, a step's data is its batch; one that accumulates goes through it in
    micro-batches of one size. Another precision or plan is another workload: its law of scale is another.
    """
    kept = tuple(sorted((k, v) for k, v in query.settings.items() if k not in _RUN_BY_RUN))
    device = query.cluster.nodes[0].device.name
    batch = query.batch / query.plan.dp
    own = batch if target == JOB_TIME else batch / micro_steps(query) if query.plan.grad_accumulation else 0.0
    plan = same_but_for_scale(query.plan)
    return target, query.architecture, kept, device, str(precision_of(query)), str(plan), own


def features(query: Query, target: str) -> Floats:
    """[1, s/m, log m, m]: the data of a step is its batch, of a job the fraction it goes through."""
    machines = query.cluster.devices
    data = query.fraction if target == JOB_TIME else query.batch
    return np.array([1.0, data / machines, np.log(machines), float(machines)])


def _theta(table: Floats, measured: Sequence[float]) -> Floats:
    from scipy.optimize import nnls

    theta, _ = nnls(table, np.array(measured))
    return np.asarray(theta, dtype=np.float64)


def a_optimal(table: Floats, costs: Sequence[Seconds], budget: float) -> list[int]:
    """Runs that make the trace of (XᵀX)⁻¹ small for at most this part of all seconds, by greedy choice.

    Each turn takes the run that lowers the trace most for a second of it, until none is affordable. The paper relaxes the
    choice to weights and rounds them; with a few dozen runs to choose from, choosing whole runs needs no rounding.
    """
    if budget >= 1:
        return list(range(len(table)))
    scaled = table / np.maximum(np.abs(table).max(axis=0), 1e-12)
    information = _RIDGE * len(scaled) * np.eye(scaled.shape[1])
    left, chosen = budget * float(np.sum(costs)), list[int]()
    while True:
        inverse = np.linalg.inv(information)
        gains = {}
        for i in set(range(len(scaled))) - set(chosen):
            if costs[i] <= left or not chosen:
                along = inverse @ scaled[i]
                gains[i] = float(along @ along) / (1 + float(scaled[i] @ along)) / max(costs[i], 1e-9)
        if not gains:
            return sorted(chosen)
        best = max(gains, key=lambda i: (gains[i], -i))
        chosen.append(best)
        left -= costs[best]
        information += np.outer(scaled[best], scaled[best])
