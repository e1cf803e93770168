"""What simulating a candidate came to, in the few numbers that a choice needs, and where such answers are kept."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from foretell.capture.cache import folder
from foretell.cost.accuracy import shipped_accuracy
from foretell.distribution import LogNormal
from foretell.forecasting.memory import probability_of_fitting
from foretell.forecasting.result import Forecast, Memory
from foretell.planner.result import Range
from foretell.units import Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step of a candidate."""

    seconds: Seconds
    low: Seconds | None
    high: Seconds | None
    exposed: Seconds
    bubble: Seconds
    total: Bytes
    capacity: Bytes
    fits: bool
    fit_probability: float
    samples: float  # of a step of all replicas
    tokens: float
    mfu: float | None
    watts: float
    why: str = ""  # it cannot be simulated

    @property
    def step(self) -> Range:
        """Seconds of the step, with the interval that is known, or as wide as published jobs were off."""
        if self.low is not None and self.high is not None:
            return Range(median=self.seconds, low=self.low, high=self.high)
        return Range.of(LogNormal.from_sigma(self.seconds, shipped_accuracy().step_sigma))

    @property
    def headroom(self) -> float:
        """The part of a device's memory that stays free."""
        return 1 - self.total / self.capacity if self.capacity else 0.0


def impossible(why: str) -> Outcome:
    return Outcome(
        seconds=math.inf, low=None, high=None, exposed=0.0, bubble=0.0, total=0, capacity=0, fits=False,
        fit_probability=0.0, samples=0.0, tokens=0.0, mfu=None, watts=0.0, why=why,
    )  # fmt: skip


def outcome_of(answer: Forecast) -> Outcome:
    step, rate = answer.step_time, answer.throughput
    return Outcome(
        seconds=step.seconds,
        low=step.low,
        high=step.high,
        exposed=answer.exposed_communication.seconds,
        bubble=answer.bubble.seconds,
        total=answer.memory.total,
        capacity=answer.memory.capacity,
        fits=answer.memory.fits,
        fit_probability=_fit_probability(answer.memory),
        samples=float(round((rate.samples_per_second or 0.0) * step.seconds)),  # whole numbers, which products are not
        tokens=float(round((rate.tokens_per_second or 0.0) * step.seconds)),
        mfu=rate.mfu,
        watts=answer.energy.watts if answer.energy else 0.0,
    )


def _fit_probability(memory: Memory) -> float:
    """That it fits with its cache: a run that has to give its cache back is slow long before it fails."""
    ranks = sum(r.count for r in memory.ranks)
    return min(memory.fit_probability, probability_of_fitting(memory.total, memory.capacity, ranks))


class OutcomeCache:
    """Outcomes on disk, by graph, cluster, plan and all that prices them. Losing it costs time alone."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder() / "plans.sqlite"
        self._known: dict[str, Outcome] = {}

    def get(self, key: str) -> Outcome | None:
        if key not in self._known:
            with contextlib.suppress(sqlite3.Error, OSError, TypeError, ValueError), self._open() as base:
                row = base.execute("SELECT answer FROM outcomes WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    self._known[key] = Outcome(**json.loads(row[0]))
        return self._known.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        self._known[key] = outcome
        with contextlib.suppress(sqlite3.Error, OSError), self._open() as base:
            base.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, json.dumps(asdict(outcome))))

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(self.path, timeout=5.0)
        base.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, answer TEXT)")
        return base
