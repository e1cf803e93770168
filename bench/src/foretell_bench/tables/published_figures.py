"""Figures of published jobs: groups with a bar, intervals, series, and parts by network, regime, source, trainer and device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from foretell_bench.tables.figures import Figure
from foretell_bench.tables.published_rows import Compared, PublishedErrors
from foretell_bench.tables.series import Series

_DRIFT: Final = 0.07


_MEMORY: Final = (0.06, 0.10)  # bars of memory, in the median and in the mean
_IMPOSSIBLE: Final = 0.02  # of jobs that ran, called impossible
_COVERED: Final = (0.85, 0.95)
_WIDTH: Final = 2.5
_ENOUGH: Final = 10  # jobs of a group whose interval has a bar
_BARS: Final = {
    "dense": 0.05, "mixtures of experts": 0.12, "fp8": 0.12, "4-D and interleaved": 0.05, "tensor parallel": 0.05,
    "FSDP": 0.08, "context parallel": 0.10, "convolutional and BERT": 0.12, "Blackwell": 0.15,
}  # fmt: skip


def figures(found: PublishedErrors) -> list[Figure]:
    """What has a bar, then by kind of network, regime, source, trainer and device; refusals are counted in the notes."""
    rows = found.jobs
    named = rows if not rows else [r for r in rows if r.source]
    made = [*_of("all jobs", rows), *_regimes(named), *_one_and_several(named), *_series(found.series)]
    for name, looked_at in (("jobs looked at", True), ("jobs kept apart", False)):
        made += _of(name, [r for r in named if r.looked_at is looked_at], briefly=True)
    groups: Sequence[tuple[str, Callable[[Compared], str]]] = (
        ("network", lambda r: r.network), ("regime", lambda r: r.regime), ("source", lambda r: r.source),
        ("trainer", lambda r: r.trainer or "unknown"), ("device", lambda r: r.device),
    )  # fmt: skip
    for kind, key in groups:
        for name in sorted({key(r) for r in named}):
            made += _of(f"{kind}: {name}", [r for r in named if key(r) == name], briefly=True)
    return made


def _regimes(rows: Sequence[Compared]) -> list[Figure]:
    """Groups of jobs with a bar of their own, and how many of each lie inside their intervals."""
    made = []
    for name, bar in _BARS.items():
        group = [r for r in rows if name in r.regimes]
        errors = _errors(r.error for r in group)
        made.append(replace(_figure(name, "step time, median error", np.median, errors), bar=bar))
        if sum(r.left_out_inside is not None for r in group) >= _ENOUGH:
            made += _inside(name, [r.left_out_inside for r in group], [r.left_out_width for r in group])
    return made


def _one_and_several(rows: Sequence[Compared]) -> list[Figure]:
    one = [r for r in rows if r.devices == 1]
    several = "90% intervals, several devices, the source left out"
    return [
        *_inside("90% intervals, one device", [r.inside for r in one], [r.width for r in one]),
        *_inside(several, [r.left_out_inside for r in rows], [r.left_out_width for r in rows]),
    ]


def _inside(name: str, inside: Sequence[bool | None], widths: Sequence[float | None]) -> list[Figure]:
    hits, wide = [i for i in inside if i is not None], [w for w in widths if w is not None]
    share = float(np.mean(hits)) if hits else None
    low, high = _COVERED
    note = f"more than {high:.0%}: wider than they need be" if share is not None and share > high else ""
    width = float(np.median(wide)) if wide else None
    return [
        Figure(source=name, measure="jobs inside", value=share, bar=low, at_least=True, rows=len(hits), note=note),
        Figure(source=name, measure="high over low, median", value=width, bar=_WIDTH, rows=len(wide)),
    ]


def _series(found: Sequence[Series]) -> list[Figure]:
    ranked = [s for s in found if s.kind == "ranking"]
    drifts = [abs(s.value) for s in found if s.kind == "drift"]
    jobs_ranked = sum(s.jobs for s in ranked)
    rank = sum(s.value * s.jobs for s in ranked) / jobs_ranked if ranked else None
    within = sum(d <= _DRIFT for d in drifts)
    return [
        Figure(
            source="plans of one source", measure="rank correlation, by jobs", value=rank, bar=0.9, at_least=True,
            rows=jobs_ranked, note=f"{len(ranked)} networks and numbers of devices",
        ),
        Figure(
            source="one job as it grows", measure="change of the error, median", bar=_DRIFT, rows=len(drifts),
            value=float(np.median(drifts)) if drifts else None, note=f"{within} of {len(drifts)} within {_DRIFT:.0%}",
        ),
    ]  # fmt: skip


def _of(name: str, rows: Sequence[Compared], *, briefly: bool = False) -> list[Figure]:
    times, memory = _errors(r.error for r in rows), _errors(r.memory_error for r in rows)
    refused = Counter(r.why.split(":")[0] if r.source else r.why for r in rows if r.why)
    note = "; ".join(f"{count} {why}" for why, count in refused.most_common())
    leaning = float(np.median(times)) if len(times) else None
    made = [
        _figure(name, "step time, median error", np.median, times, note),
        _figure(name, "step time, mean error", np.mean, times),
    ]
    if len(memory):
        made.append(_figure(name, "memory, median error", np.median, memory))
    if briefly:
        return [figure for figure in made if figure.rows or figure.note]
    ran = [r for r in rows if r.fits is not None]
    share = sum(not r.fits for r in ran) / max(len(ran), 1)
    return [
        *(replace(figure, bar=_MEMORY[0]) if figure.measure.startswith("memory") else figure for figure in made),
        replace(_figure(name, "memory, mean error", np.mean, memory), bar=_MEMORY[1]),
        Figure(
            source=name, measure="step time, predicted over published less one, median", value=leaning, rows=len(times)
        ),
        Figure(source=name, measure="ran, but called impossible", value=share, bar=_IMPOSSIBLE, rows=len(ran)),
    ]


def _figure(
    source: str, measure: str, statistic: Callable[[np.ndarray], Any], errors: np.ndarray, note: str = ""
) -> Figure:
    value = float(statistic(np.abs(errors))) if len(errors) else None
    return Figure(source=source, measure=measure, value=value, rows=len(errors), note=note)


def _errors(values: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None and math.isfinite(value)], dtype=float)
