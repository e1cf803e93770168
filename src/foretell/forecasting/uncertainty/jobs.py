"""Steps of several ranks: errors of their parts passed through the simulator, and scaled by how far forecasts of published jobs
were off.

A step is uncertain by its operators, its host, its network, and by what no part says of a trainer. How much each moves the
step is found by simulating it again. Whether nine of ten jobs then fall inside is a question to jobs that others published:
their errors, counted in errors of their parts, are what an interval is made of, every source counting as one and each
predicted from the others. What jobs of trainers of a kind took longer in the middle is what those add to their steps: input,
logs, checks, and kernels that wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once
from foretell.cost.model import CostModel
from foretell.distribution import TAILS, Z90, LogNormal
from foretell.forecasting.run import Run
from foretell.hardware import Cluster, fabric_of
from foretell.program import Program
from foretell.trainers import KINDS, Kind
from foretell.units import Seconds

FILE: Final = "trainers.json"
OLD_FILE: Final = "jobs.json"  # with one number for all trainers
_ONE_FOR_ALL: Final = ("trainer_overhead", "lost")  # as models up to h200-2026.11.2 call that, and up to h200-2026.11
_HOST, _NETWORK = 0.4, 0.5  # how far they are moved, as logarithms, to see how the step follows
_ENOUGH: Final = 8  # jobs of a source that counts as one: of fewer, a single one would be a tail of its own
_WIDEST: Final = 100.0  # errors of parts


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsError:
    """How far a step may be from its forecast, as logarithms, for all that its parts say."""

    shorter: float
    longer: float

    def beyond(self, floor: float) -> PartsError:
        """With what no part says."""
        return PartsError(shorter=math.hypot(self.shorter, floor), longer=math.hypot(self.longer, floor))

    def count(self, error: float) -> float:
        """How many times itself a logarithm is."""
        return error / (self.longer if error > 0 else self.shorter)


def parts_error(program: Program, ran: Run, *, device: float, host: float, network: float) -> PartsError:
    """Of a run, from how far its device, its host and its network may be off, as logarithms."""
    base = ran.timeline.period

    def side(way: int) -> float:
        by_host = math.log(ran.under(program, host=math.exp(way * _HOST)) / base) / (way * _HOST)
        by_wire = math.log(ran.under(program, communication=math.exp(way * _NETWORK)) / base) / (way * _NETWORK)
        by_device = max(1.0 - by_host - by_wire, 0.0)  # all durations doubled, so is the step
        return math.hypot(by_device * device, by_host * host, by_wire * network)

    return PartsError(shorter=side(-1), longer=side(1))


def network_error(cluster: Cluster) -> float:
    """Of the kind of link that is known worst, of those that ranks of the cluster communicate over."""
    ways = {node.inside for node in cluster.kinds if node.count > 1} | ({cluster.between} if cluster.between else set())
    return max((fabric_of(way).error for way in ways), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What trainers of one kind make of a step, as a logarithm: in the middle, and how far a new one may be from that."""

    added: float
    spread: float  # a standard deviation

    def __post_init__(self) -> None:
        check_numbers("added", self.added, dims=0, least=-5.0, most=5.0)
        check_numbers("spread", self.spread, dims=0, least=0.0, most=5.0)

    @property
    def fraction(self) -> float:
        """What is added to a step, as a part of it; a trainer takes nothing from one."""
        return max(math.expm1(self.added), 0.0)

    @property
    def spread_from_nothing(self) -> float:
        """How far a step may be from one to which nothing is added."""
        return math.hypot(self.added, self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Jobs that one document describes."""

    name: str
    # log(measured ÷ predicted) of each, beyond what trainers like its own differ by, in errors of its parts
    errors: Sequence[float]

    def __post_init__(self) -> None:
        check_numbers("errors", self.errors, least=-_WIDEST, most=_WIDEST)
        if not len(self.errors):
            raise ValueError("a source without jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJobs:
    """Errors of forecasts of published jobs, nothing fitted to one of them or its source."""

    sources: Sequence[Source]
    floor: float  # what no part of a step says of a trainer, as a logarithm
    trainers: Mapping[Kind, Overhead] = field(default_factory=dict)  # by kind; of older files, the same for all
    unknown: Overhead = Overhead(added=0.0, spread=0.0)  # one of which nothing is known

    def __post_init__(self) -> None:
        check_numbers("floor", self.floor, dims=0, least=1e-3, most=5.0)
        if not self.sources:
            raise ValueError("jobs of no source")
        if strange := set(self.trainers) - set(KINDS):
            raise ValueError(f"trainers of kinds that nobody knows: {sorted(strange)}")

    def overhead(self, kind: Kind | None) -> Overhead:
        """Of a trainer of a kind; None: of one that is not known."""
        return self.unknown if kind is None else self.trainers.get(kind, self.unknown)

    def step_time(self, seconds: Seconds, parts: PartsError, spread: float = 0.0) -> LogNormal:
        """Of a step, with what its trainer adds; `spread`: how far that may be from it, at least as far as for the surest."""
        low, high = self.quantiles()
        surest = min((overhead.spread for overhead in self.trainers.values()), default=0.0)
        wide, other = parts.beyond(self.floor), Z90 * max(spread, surest)
        below, above = math.hypot(low * wide.shorter, other), math.hypot(high * wide.longer, other)
        return LogNormal(median=seconds, below=below, above=above)

    def quantiles(self) -> tuple[float, float]:
        """That contain nine of ten jobs, each source counting as one, or less where it has few; the forecast lies between them."""
        errors = np.concatenate([np.asarray(s.errors, dtype=float) for s in self.sources])
        weights = np.concatenate([np.full(len(s.errors), 1 / max(len(s.errors), _ENOUGH)) for s in self.sources])
        order = np.argsort(errors)
        reached = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
        low, high = np.interp(TAILS, reached, errors[order])
        return min(float(low), 0.0), max(float(high), 0.0)

    @property
    def source(self) -> str:
        """What an interval is made from, in words."""
        jobs = sum(len(source.errors) for source in self.sources)
        return (
            f"The interval is from errors of operators, host, network and trainers, scaled by those of forecasts of {jobs} "
            f"published jobs of {len(self.sources)} sources."
        )

    @classmethod
    def load(cls, path: Path) -> PublishedJobs:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> PublishedJobs:
        """Read a file; those of models up to h200-2026.11.2 have one number for all trainers."""
        rest = {name: value for name, value in content.items() if name not in (*_ONE_FOR_ALL, "trainers")}
        if (one := next((content[name] for name in _ONE_FOR_ALL if name in content), None)) is not None:
            check_numbers("trainer_overhead", one, dims=0, least=0.0, most=_WIDEST)
            rest["unknown"] = {"added": math.log1p(one), "spread": 0.0}
        if "unknown" in rest:
            rest["unknown"] = Overhead(**rest["unknown"])
        kinds = {kind: Overhead(**fitted) for kind, fitted in content.get("trainers", {}).items()}
        return cls(**rest | {"trainers": kinds, "sources": [Source(**s) for s in content["sources"]]})


def jobs_of(model: CostModel) -> PublishedJobs | None:
    """A model's errors on published jobs; None where they are not known."""
    return read_once(model.folder, PublishedJobs.load, FILE, OLD_FILE)
