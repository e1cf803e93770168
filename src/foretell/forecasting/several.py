"""How sure a forecast of several ranks is: errors of its parts passed through the simulator, and scaled by how far forecasts of
published jobs were off.

A step is uncertain by its operators, its host, its network, and by what no part says of a trainer. How much each moves the
step is found by simulating it again. Whether nine of ten jobs then fall inside is a question to jobs that others published:
their errors, counted in spreads, are what an interval is made of, every source counting as one. What they took longer in the
middle is what trainers add to their steps: input, logs, checks, and kernels that wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from foretell.cost.files import check_numbers
from foretell.cost.model import CostModel
from foretell.forecasting.calibration import LEVEL, Range, beside, read
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.run import Run
from foretell.hardware import Cluster, fabric_of
from foretell.program import Program
from foretell.units import Seconds

FILE: Final = "jobs.json"
_HOST, _NETWORK = 0.4, 0.5  # how far they are moved, as logarithms, to see how the step follows
_WIDEST: Final = 100.0  # spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a step may be from its forecast, as logarithms, for all that its parts say."""

    shorter: float
    longer: float

    def beyond(self, floor: float) -> Spread:
        """With what no part says."""
        return Spread(shorter=math.hypot(self.shorter, floor), longer=math.hypot(self.longer, floor))

    def count(self, error: float) -> float:
        """A logarithm, in spreads."""
        return error / (self.longer if error > 0 else self.shorter)


def spread(program: Program, ran: Run, *, device: float, host: float, network: float) -> Spread:
    """Of a run, from how far its device, its host and its network may be off, as logarithms."""
    base = ran.timeline.period

    def side(way: int) -> float:
        by_host = math.log(ran.under(program, host=math.exp(way * _HOST)) / base) / (way * _HOST)
        by_wire = math.log(ran.under(program, communication=math.exp(way * _NETWORK)) / base) / (way * _NETWORK)
        by_device = max(1.0 - by_host - by_wire, 0.0)  # all durations doubled, so is the step
        return math.hypot(by_device * device, by_host * host, by_wire * network)

    return Spread(shorter=side(-1), longer=side(1))


def network_error(cluster: Cluster) -> float:
    """Of the kind of link that is known worst, of those that ranks of the cluster communicate over."""
    ways = {node.inside for node in cluster.nodes if node.count > 1} | ({cluster.between} if cluster.between else set())
    return max((fabric_of(way).error for way in ways), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Jobs that one document describes."""

    name: str
    errors: Sequence[float]  # log(measured ÷ predicted) of each beyond what all lose, in its spreads

    def __post_init__(self) -> None:
        check_numbers("errors", self.errors, least=-_WIDEST, most=_WIDEST)
        if not len(self.errors):
            raise ValueError("a source without jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJobs:
    """Errors of forecasts of published jobs, nothing fitted to one of them or its source."""

    sources: Sequence[Source]
    floor: float  # what no part of a step says of a trainer, as a logarithm
    lost: float = 0.0  # what trainers add to their steps, as a part of them

    def __post_init__(self) -> None:
        check_numbers("floor", self.floor, dims=0, least=1e-3, most=5.0)
        check_numbers("lost", self.lost, dims=0, least=0.0, most=_WIDEST)
        if not self.sources:
            raise ValueError("jobs of no source")

    def range(self, seconds: Seconds, of: Spread) -> Range:
        """Of a step, with what its trainer adds."""
        low, high = self.quantiles()
        wide = of.beyond(self.floor)
        return seconds * math.exp(low * wide.shorter), seconds * math.exp(high * wide.longer)

    def quantiles(self) -> tuple[float, float]:
        """That hold nine of ten jobs, each source counting as one; the forecast itself lies between them."""
        errors = np.concatenate([np.asarray(s.errors, dtype=float) for s in self.sources])
        weights = np.concatenate([np.full(len(s.errors), 1 / len(s.errors)) for s in self.sources])
        order = np.argsort(errors)
        reached = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
        low, high = np.interp(((1 - LEVEL) / 2, (1 + LEVEL) / 2), reached, errors[order])
        return min(float(low), 0.0), max(float(high), 0.0)

    @classmethod
    def load(cls, path: Path) -> PublishedJobs:
        return read(path, lambda found: cls(**found | {"sources": [Source(**s) for s in found["sources"]]}))


def jobs_of(model: CostModel) -> PublishedJobs | None:
    """A model's errors on published jobs; None where they are not known."""
    return beside(model, FILE, PublishedJobs.load)


def same_trainer(conditions: Conditions, model: CostModel, *, training: bool, profiled: bool) -> Conditions:
    """For who compares numbers of devices: one device has the trainer that several have, or it would win by what that adds."""
    known = jobs_of(model) if conditions.trainer is None and training and not profiled else None
    return replace(conditions, trainer=known.lost) if known else conditions
