"""What readings of counters come down to over the steps of a job: seconds idle and active, peaks, and whether they came late."""

from __future__ import annotations

import json
import platform
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from foretell.measure.record import SeriesRow
from foretell.measure.resources import reduce_series

INTERVAL: Final = 0.005  # seconds between readings
LATE: Final = 0.02  # seconds: a reading this late misses what happened meanwhile
MAX_GAP_SHARE: Final = 0.2  # of the time in such gaps: above, resources are left out, as they were not measured
COUNTED: Final = ("_idle_seconds", "_active_seconds", "_peak")
DIGITS: Final = 6  # more than any of this is worth
Reading = Sequence[float]  # a moment, then counters
Facts = dict[str, Any]  # a line of a file of runs, or a part of one


def between(readings: Sequence[Reading], begin: float, end: float) -> Sequence[Reading]:
    return readings[bisect_left(readings, begin, key=lambda r: r[0]) : bisect_right(readings, end, key=lambda r: r[0])]


def gap_share(readings: Sequence[Reading]) -> float:
    """Of the time between readings, the part in which they came late."""
    apart = [b[0] - a[0] for a, b in pairwise(readings)]
    return sum(seconds for seconds in apart if seconds > LATE) / sum(apart) if apart else 1.0


def resource(name: str, points: Sequence[tuple[float, float]], length: float, steps: int) -> dict[str, float]:
    """Idle and active seconds per step, and the peak, of (second, rate) points over steps of this length together."""
    seconds, values = zip(*points, strict=True) if points else ((), ())
    row = SeriesRow(resource=name, counter="", unit="", seconds=seconds, values=values)
    return reduce_series(row, length).columns(name, 1 / steps)


def rates(readings: Sequence[Reading], column: int, begin: float) -> list[tuple[float, float]]:
    """(second, rate) points of a counter."""
    return [(max(0.0, a[0] - begin), (b[column] - a[column]) / (b[0] - a[0])) for a, b in pairwise(readings)]


def trusted(ranks: Sequence[Facts], late: float) -> list[Facts]:
    """The ranks' facts, without resources where the readings came late."""
    if late <= MAX_GAP_SHARE:
        return list(ranks)
    return [{name: v for name, v in rank.items() if not name.endswith(COUNTED)} for rank in ranks]


def means(workers: Sequence[Facts]) -> dict[str, float]:
    """Of resources and bytes, over workers."""
    names = [name for name in workers[0] if name.endswith(COUNTED)]
    return {name: fmean(worker[name] for worker in workers) for name in (*names, "sent_bytes", "received_bytes")}


def software() -> dict[str, str]:
    return {"torch": version("torch"), "python": platform.python_version(), "machine": platform.machine()}


def read_lines(path: Path) -> list[Any]:
    """Those that were written to their end."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
