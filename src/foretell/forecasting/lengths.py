"""Sequences of many lengths: a distribution of them gives a distribution of step times, and the memory of the worst batch.

Batches are drawn and padded to their longest sequence; packed, they are filled up to a length. The step is captured at two
lengths and continued to others; between the lengths that are forecast, times are interpolated.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from foretell.capture import capture
from foretell.errors import InputError, check_count
from foretell.forecasting.forecast import forecast
from foretell.forecasting.result import Forecast
from foretell.graph.rescale import extend
from foretell.hardware import Cluster
from foretell.limits import read_bytes
from foretell.sources.settings import texts_of
from foretell.units import Seconds, whole_number

_BATCHES: Final = 1000  # that are drawn
_FORECAST: Final = 6  # lengths, from the shortest batch to the longest
_MAX_BATCH: Final = 16_384  # that is drawn so often
_MULTIPLE: Final = 8  # that padding goes up to, as collators do for matrix units
_CAPTURED: Final = (128, 256)
_MAX_SEQUENCE_TOKENS: Final = 2**22  # tokens of a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long sequences are, and how many of each length there are."""

    tokens: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.counts):
            raise InputError(
                f"lengths need as many counts as lengths, at least one, got {len(self.tokens)} and {len(self.counts)}."
            )
        for number in (*self.tokens, *self.counts):
            check_count("a length or its count", number, InputError)
        if max(self.tokens) > _MAX_SEQUENCE_TOKENS:
            raise InputError(f"a sequence has at most {_MAX_SEQUENCE_TOKENS:,} tokens, got {max(self.tokens):,}.")

    @classmethod
    def read(cls, path: str | Path) -> Lengths:
        """A file with a length in each line, and after a comma how many there are of it."""
        try:
            rows = [
                line.split(",")
                for line in read_bytes(path, "bytes of a table of steps").decode().splitlines()
                if line.strip()
            ]
            pairs = [(int(row[0]), int(row[1]) if len(row) > 1 else 1) for row in rows]
        except (OSError, ValueError) as problem:
            raise InputError(
                f"'{path}' has no lengths: {problem}. Write a length in each line, like 512, or 512,30."
            ) from None
        return cls(tokens=tuple(length for length, _ in pairs), counts=tuple(count for _, count in pairs))

    def batches(self, batch: int, longest: int | None = None) -> list[int]:
        """Padded lengths of batches that are drawn, shortest first; sequences are cut at `longest`."""
        draw = random.Random(0)
        drawn = (max(draw.choices(self.tokens, self.counts, k=batch)) for _ in range(_BATCHES))
        return sorted(min(-(-n // _MULTIPLE) * _MULTIPLE, longest or _MAX_SEQUENCE_TOKENS) for n in drawn)

    @property
    def mean(self) -> float:
        return sum(n * c for n, c in zip(self.tokens, self.counts, strict=True)) / sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """Steps of many lengths: times over batches, how much of them is padding, and the forecast of the longest."""

    mean: Seconds
    quantiles: Mapping[str, Seconds]  # 5 %, 50 %, 95 %, and the longest
    padding: float  # part of the tokens
    longest: int
    worst: Forecast

    def to_dict(self) -> dict[str, Any]:
        times = {"mean": self.mean, **self.quantiles}
        return {
            "step_seconds": times,
            "padding": self.padding,
            "longest": self.longest,
            "forecast": self.worst.to_dict(),
        }


def varied(
    source: str, on: str | Cluster, lengths: Lengths, *, settings: Mapping[str, Any] | None = None, **terms: Any
) -> Varied:
    """Forecast a SOURCE that takes `batch` and `seq`, with sequences padded to the longest of their batch."""
    given = texts_of(settings)
    if "batch" not in given:
        raise InputError("lengths are padded batch by batch, so the batch must be said. Give --set batch=8.")
    batch = whole_number(given["batch"])
    if not batch or batch > _MAX_BATCH:
        raise InputError(
            f"lengths are padded batch by batch, so batch must be a whole number from 1 to {_MAX_BATCH:,}, "
            f"got {given['batch'][:50]!r}. Give --set batch=8."
        )
    padded = lengths.batches(batch, whole_number(given.get("seq", "")))
    graphs = [capture(source, {**given, "seq": n}) for n in _CAPTURED]
    points = sorted({padded[round(i * (len(padded) - 1) / (_FORECAST - 1))] for i in range(_FORECAST)})
    answers = [forecast(extend(*graphs, sizes=_CAPTURED, to=n), on, **terms) for n in points]
    times = [_between(points, [f.step_time.seconds for f in answers], n) for n in padded]
    ranked, mean = sorted(times), sum(times) / len(times)
    at = {f"{part:.0%}": ranked[round(part * (len(ranked) - 1))] for part in (0.05, 0.5, 0.95)}
    return Varied(
        mean=mean,
        quantiles={**at, "longest": ranked[-1]},
        padding=max(1 - lengths.mean / (sum(padded) / len(padded)), 0.0),
        longest=padded[-1],
        worst=_of_mean_steps(answers[-1], mean),
    )


def _of_mean_steps(worst: Forecast, mean: Seconds) -> Forecast:
    """The longest batch's forecast, whose job has steps of all lengths."""
    if (job := worst.job) is None:
        return worst
    saved = job.steps * (worst.step_time.seconds - mean)
    part = (job.seconds - saved) / job.seconds
    scaled = {
        name: getattr(job, name) * part
        for name in ("seconds", "dollars", "joules", "low", "high")
        if getattr(job, name, None)
    }
    return replace(worst, job=replace(job, **scaled))


def _between(points: Sequence[int], seconds: Sequence[Seconds], length: int) -> Seconds:
    place = bisect_left(points, length)
    if place == 0 or points[place] == length:
        return seconds[place]
    low, high = points[place - 1], points[place]
    return seconds[place - 1] + (seconds[place] - seconds[place - 1]) * (length - low) / (high - low)
