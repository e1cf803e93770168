"""Whether forecasts still hold for the jobs that were watched: since when they do not, and by how much.

Of each kind of job the logarithms of measured over predicted go through a cumulative sum (CUSUM) in both directions, twice:
around the forecast, where its own interval costs nothing, and around the job's own beginning, where a few per cent
cost nothing. A window adds at most a little, so that one bad minute is no drift; and the sum falls again when what was
wrong is mended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

from foretell.measure.record import StepRow
from foretell.units import Seconds

Verdict = Literal["holds", "too few", "off", "changed"]
_FEWEST: Final = 3  # windows that say anything
_BEGINNING: Final = 10  # windows, or a quarter of all, that say what a job was like at first
_ALARM: Final = 4.0  # of the sum, in spreads of a window
_STEP: Final = 1.5  # the most that a window adds: drift is three windows or more
_SLACK: Final = 0.75  # spread that cost nothing either: noise alone adds up to no drift
_LEAST_SPREAD: Final = 0.01  # of windows, relative
_NO_INTERVAL: Final = math.log(1.1)  # where the forecast has none
_ALLOWED_CHANGE: Final = math.log(1.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What became of one kind of job."""

    verdict: Verdict
    ratio: float  # measured over predicted: of the windows since then, or of all
    since: int | None = None  # the first window of it
    before: float | None = None  # measured over predicted until then


@dataclass(frozen=True, kw_only=True)
class Course:
    """The windows of jobs that were asked about alike, in order of time."""

    windows: tuple[StepRow, ...]

    @property
    def latest(self) -> StepRow:
        return self.windows[-1]

    @cached_property
    def logs(self) -> list[float]:
        return [math.log(_ratio(window)) for window in self.windows]

    @property
    def interval(self) -> tuple[float, float]:
        """Of the latest forecast, as logarithms of ratios to it."""
        predicted, low, high = self.latest.predicted_seconds, self.latest.predicted_low, self.latest.predicted_high
        if not predicted or not low or not high:
            return -_NO_INTERVAL, _NO_INTERVAL
        return math.log(low / predicted), math.log(high / predicted)

    @cached_property
    def drift(self) -> Drift:
        logs = self.logs
        if len(logs) < _FEWEST:
            return Drift(verdict="too few", ratio=_middle(logs))
        spread = _spread(logs)
        low, high = self.interval
        if (since := _since(logs, low, high, spread)) is not None:
            before = _middle(logs[:since]) if since else None
            return Drift(verdict="off", ratio=_middle(logs[since:]), since=since, before=before)
        first = statistics.median(_beginning(logs))
        if since := _since(logs, first - _ALLOWED_CHANGE, first + _ALLOWED_CHANGE, spread):
            return Drift(verdict="changed", ratio=_middle(logs[since:]), since=since, before=_middle(logs[:since]))
        return Drift(verdict="holds", ratio=_middle(logs))

    @property
    def is_drift(self) -> bool:
        return self.drift.since is not None


def courses(rows: Iterable[StepRow], profile: str | None = None) -> list[Course]:
    """Those with a drift first; of one profile, where it is named."""
    groups: dict[tuple[str, ...], list[StepRow]] = {}
    for row in rows:
        if row.kind == "watched" and row.step_seconds and row.predicted_seconds and profile in (None, row.profile):
            key = (row.point, row.cluster, row.profile, row.model, row.device_name)
            groups.setdefault(key, []).append(row)
    found = [Course(windows=tuple(sorted(each, key=lambda row: row.date))) for each in groups.values()]
    return sorted(found, key=lambda course: (not course.is_drift, course.latest.source, course.latest.settings))


def _ratio(row: StepRow) -> float:
    assert row.step_seconds
    assert row.predicted_seconds
    return row.step_seconds / row.predicted_seconds


def _middle(logs: Sequence[float]) -> float:
    return math.exp(statistics.median(logs))


def _beginning(logs: Sequence[float]) -> Sequence[float]:
    return logs[: max(_BEGINNING, len(logs) // 4)]


def _spread(logs: Sequence[float]) -> float:
    """Of a window around its neighbours, and of the beginning around its middle; a drift itself widens neither much."""
    steps = [abs(b - a) for a, b in pairwise(logs)]
    middle = statistics.median(_beginning(logs))
    around = [abs(value - middle) for value in _beginning(logs)]
    return max(1.05 * statistics.median(steps), 1.48 * statistics.median(around), _LEAST_SPREAD)


def _since(logs: Sequence[float], low: float, high: float, spread: float) -> int | None:
    """The window since which they lie outside; None where the sums do not say so at the end."""
    over = ((value - high) / spread - _SLACK for value in logs)
    under = ((low - value) / spread - _SLACK for value in logs)
    return next((start for start in map(_sum, (over, under)) if start is not None), None)


def _sum(excess: Iterator[float]) -> int | None:
    total, start = 0.0, 0
    for number, value in enumerate(excess):
        if total <= 0:
            total, start = 0.0, number
        total = min(total + max(min(value, _STEP), -_STEP), 2 * _ALARM)  # so that a mended one is soon mended
    return start if total > _ALARM else None


def seconds_of(course: Course) -> tuple[Seconds, Seconds]:
    """Measured since the drift, or throughout; and predicted."""
    windows = course.windows[course.drift.since or 0 :]
    latest = course.latest.predicted_seconds or 0.0
    return statistics.median(window.step_seconds or 0.0 for window in windows), latest
