"""What a search answers: choices with their odds, the best of them, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretell.distribution import LogNormal, interval
from foretell.forecasting.job import Job
from foretell.forecasting.result import plain_values
from foretell.hardware import Term
from foretell.text import json_text
from foretell.units import Bytes, Dollars, Seconds

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A median with its 90 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, distribution: LogNormal) -> Range:
        low, high = interval(distribution)
        return cls(median=distribution.median, low=low, high=high)

    @property
    def distribution(self) -> LogNormal:
        return LogNormal.from_interval(self.median, self.low, self.high)

    def times(self, factor: float) -> Range:
        return Range(median=self.median * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan on a cluster, and what the job takes there.

    Attributes:
        cluster: Where, with so many `devices`, a `plan`, a micro-`batch` and the `settings` of the source.
        step: Seconds of a step, `time` of the job, `cost` in dollars: each with its 90 % interval.
        memory: Bytes of the heaviest rank, of `capacity`; `headroom` is the part that stays free.
        fit_probability: Of fitting; `deadline_probability` of being done in time, `budget_probability` of costing less.

    Examples:
        >>> found = foretell.plan("torchvision/resnet18", on="8xt4", job=foretell.JobLength.usual(samples=1e6))
        >>> found.recommended.devices
        8
    """

    cluster: str
    devices: int
    plan: str
    batch: int  # of a micro-step
    global_batch: float  # samples of a step
    settings: Mapping[str, str]  # of the source
    step: Range  # seconds
    time: Range  # seconds of the job
    cost: Range | None  # dollars
    price: str | None  # whose price that is, on which term and of which date; None: one's own
    goodput: Range  # the part of the job in steps that count
    kwh: Range
    job: Job
    memory: Bytes
    capacity: Bytes
    headroom: float  # part of the memory that stays free
    fit_probability: float
    deadline_probability: float | None  # of being done in time
    budget_probability: float | None
    mfu: float | None
    exposed_communication: Seconds
    bubble: Seconds
    calibrated: bool  # the interval is from validated errors of such steps; else a usual one of published jobs
    term: Term = "on-demand"
    precision: str = "fp32"  # of the step
    compiled: bool = False  # by torch's compiler, whose time is in the job's start

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = plain_values(self)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Choice:
        """The choice that `to_dict` has written."""
        ranges = {name: Range(**plain[name]) for name in ("step", "time", "goodput", "kwh")}
        cost = None if plain["cost"] is None else Range(**plain["cost"])
        return cls(**{**plain, **ranges, "cost": cost, "job": Job(**plain["job"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Candidates that were not chosen from, by reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A plan that was run, with what was forecast of it and what was measured."""

    plan: str
    batch: int
    forecast: Seconds
    seconds: Seconds | None  # None: it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer of a search.

    Attributes:
        recommended: The best choice; None where nothing qualifies.
        reason: Why it, or what would have to give; `nearest` is what comes closest.
        front: Choices of which none is beaten in time, cost and memory by another, the fastest first.
        pruned: Candidates that were not simulated, by reason; `candidates` and `simulated` count them.

    Examples:
        >>> found = foretell.plan("torchvision/resnet18", on="8xt4", job=foretell.JobLength.usual(samples=1e6))
        >>> found.front[0].cluster
        '8xt4'
    """

    workload: str
    model: str
    profile: str | None
    deadline: Seconds | None
    budget: Dollars | None
    confidence: float
    recommended: Choice | None
    reason: str
    nearest: Choice | None  # where nothing qualifies: what comes closest
    front: tuple[Choice, ...]  # none of them is beaten in time, cost and memory by another; fastest first
    pruned: tuple[Pruned, ...]
    candidates: int
    simulated: int
    seconds: Seconds  # that the search took
    caveats: tuple[str, ...] = ()
    runs: tuple[MeasuredRun, ...] = ()  # with `measure`, in the order they were made
    choices: tuple[Choice, ...] = field(default=(), repr=False)  # all that were simulated and fit

    def to_dict(self) -> dict[str, Any]:
        from foretell import __version__

        answer = {"schema_version": SCHEMA_VERSION, "foretell": __version__, **plain_values(self)}
        del answer["choices"]
        return answer

    def to_json(self) -> str:
        return json_text(self.to_dict())
