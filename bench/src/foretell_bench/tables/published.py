"""`foretell bench published`: jobs that others published against `foretell.forecast` as shipped, with nothing fitted."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.distribution import interval
from foretell.errors import InputError
from foretell.learn.uncertainty.jobs import (
    JobError,
    PartsError,
    calibrate_jobs,
    leave_sources_out,
    save_jobs,
    step_error,
)
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import Say, graph_of, quiet
from foretell_bench.sources.published_steps import Job, jobs
from foretell_bench.tables.figures import Figure
from foretell_bench.tables.series import Series, series

_SURE: Final = 0.1  # probability to fit below which a job that ran was called impossible
_DRIFT: Final = 0.07
_COVERED: Final = 0.85
_WIDTH: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How far a forecast is from a published job: what was predicted over what was published, less one."""

    source: str
    network: str
    regime: str
    device: str
    architecture: str
    devices: int
    # Of seconds per step, what trainers add from jobs of other sources; None where they were not published or forecast.
    error: float | None = None
    inside: bool | None = None  # the interval; None where the forecast has none
    width: float | None = None  # of the interval: its high over its low
    left_out_inside: bool | None = None  # the interval from jobs of other sources; None for one device
    left_out_width: float | None = None
    memory_error: float | None = None
    fit_probability: float | None = None
    why: str = ""  # nothing was forecast

    @property
    def looked_at(self) -> bool:
        """Whether its source may be looked at while Foretell is changed: half of them, by a hash."""
        return int(hashlib.sha256(self.source.encode()).hexdigest()[-1], 16) % 2 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedErrors:
    """Every job with its forecast, and series of jobs that differ in one thing."""

    jobs: Sequence[Compared]
    series: Sequence[Series]


def run(
    data: Path, say: Say = quiet, *, workers: int = 1, answers: Path | None = None, calibrate: str | None = None
) -> PublishedErrors:
    """Every job of the folder's file; those that no question could be made of say why.

    `calibrate` names a model: its intervals of several ranks are made anew from these jobs, and saved.
    """
    taken = jobs(data)
    with Asker(workers, answers, say) as asker:
        found = asker([(job.ask, None) for job in taken.items])
    rows = [_compared(job, answer) for job, answer in zip(taken.items, found, strict=True)]
    timed = [
        (number, job, answer.seconds - answer.trainer, job.seconds)
        for number, (job, answer) in enumerate(zip(taken.items, found, strict=True))
        if job.seconds and not answer.why
    ]
    predicted = {number: seconds for number, _, seconds, _ in timed}
    several = [(number, error) for number, error in _errors_of_several(timed, say)]
    for (number, error), (seconds, known) in zip(several, leave_sources_out([e for _, e in several]), strict=True):
        predicted[number] = seconds
        low, high = interval(known) if known else (0.0, math.inf)
        rows[number] = replace(
            rows[number], error=seconds / error.measured - 1, left_out_inside=low <= error.measured <= high,
            left_out_width=high / low if low else None,
        )  # fmt: skip
    if calibrate is not None:
        save_jobs(calibrate_jobs([error for _, error in several]), calibrate)
    left_out = [_left_out(why) for why, count in taken.left_out.items() for _ in range(count)]
    return PublishedErrors(jobs=[*rows, *left_out], series=series([(job, predicted[n], m) for n, job, _, m in timed]))


def _errors_of_several(timed: Iterable[tuple[int, Job, float, float]], say: Say) -> Iterable[tuple[int, JobError]]:
    """Of jobs on several devices, those of one model together, whose graph is then made once."""
    several = sorted((t for t in timed if t[1].devices > 1), key=lambda t: t[1].ask.key)
    for done, (number, job, predicted, measured) in enumerate(several, start=1):
        parts: PartsError | None = step_error(graph_of(job.ask.model), job.ask.cluster, job.ask.plan)
        say(f"how far parts may be off: {done} of {len(several)}")
        if parts is not None:
            yield number, JobError(source=job.source, measured=measured, predicted=predicted, parts=parts)


def _compared(job: Job, answer: Answer) -> Compared:
    row = Compared(
        source=job.source, network=job.network, regime=job.regime, device=job.device, architecture=job.architecture,
        devices=job.devices, why=answer.why,
    )  # fmt: skip
    if answer.why:
        return row
    sizes = {"allocated": max(answer.allocated, default=0), "reserved": answer.reserved, "smi": answer.total}
    predicted = sizes[job.memory_kind] if job.memory_kind else None
    inside = width = None
    if job.seconds and answer.low is not None and answer.high is not None:
        inside, width = answer.low <= job.seconds <= answer.high, answer.high / answer.low
    return replace(
        row, inside=inside, width=width, fit_probability=answer.fit_probability,
        error=answer.seconds / job.seconds - 1 if job.seconds else None,
        memory_error=predicted / job.memory - 1 if predicted and job.memory else None,
    )  # fmt: skip


def _left_out(why: str) -> Compared:
    return Compared(source="", network="", regime="", device="", architecture="", devices=0, why=why)


def figures(found: PublishedErrors) -> list[Figure]:
    """What has a bar, then by kind of network, regime, source and device; refusals are counted in the notes."""
    rows = found.jobs
    named = rows if not rows else [r for r in rows if r.source]
    made = [
        *_of("all jobs", rows, memory_bars=(0.07, 0.15)),
        *_barred(named),
        *_intervals(named),
        *_series(found.series),
    ]
    for name, looked_at in (("sources looked at", True), ("sources kept apart", False)):
        made += _of(name, [r for r in named if r.looked_at is looked_at], briefly=True)
    groups: Sequence[tuple[str, Callable[[Compared], str]]] = (
        ("network", lambda r: r.network), ("regime", lambda r: r.regime), ("source", lambda r: r.source),
        ("device", lambda r: r.device),
    )  # fmt: skip
    for kind, key in groups:
        for name in sorted({key(r) for r in named}):
            made += _of(f"{kind}: {name}", [r for r in named if key(r) == name], briefly=True)
    return made


def _barred(rows: Sequence[Compared]) -> list[Figure]:
    """Classes of jobs with a bar of their own."""
    classes: Sequence[tuple[str, Callable[[Compared], bool], float, float | None]] = (
        ("dense on Ampere and Hopper", lambda r: r.network.startswith("dense") and r.architecture in ("Ampere", "Hopper"), 0.07, 0.12),
        ("mixtures of experts", lambda r: r.network == "mixture of experts", 0.15, None),
        ("Blackwell", lambda r: r.architecture == "Blackwell", 0.15, None),
        ("convolutional and BERT", lambda r: r.network in ("convolutional", "BERT"), 0.12, None),
    )  # fmt: skip
    made = []
    for name, belongs, median, mean in classes:
        errors = _errors(r.error for r in rows if belongs(r))
        made.append(replace(_figure(name, "step time, median error", np.median, errors), bar=median))
        if mean is not None:
            made.append(replace(_figure(name, "step time, mean error", np.mean, errors), bar=mean))
    return made


def _intervals(rows: Sequence[Compared]) -> list[Figure]:
    parts: Sequence[tuple[str, Sequence[bool | None], Sequence[float | None]]] = (
        ("one device", [r.inside for r in rows if r.devices == 1], [r.width for r in rows if r.devices == 1]),
        ("several devices, the source left out", [r.left_out_inside for r in rows], [r.left_out_width for r in rows]),
    )
    made = []
    for name, inside, widths in parts:
        hits, wide = [i for i in inside if i is not None], [w for w in widths if w is not None]
        covered = Figure(
            source=f"90% intervals, {name}", measure="jobs inside", value=float(np.mean(hits)) if hits else None,
            bar=_COVERED, at_least=True, rows=len(hits),
        )  # fmt: skip
        width = float(np.median(wide)) if wide else None
        made += [
            covered,
            Figure(source=covered.source, measure="high over low, median", value=width, bar=_WIDTH, rows=len(wide)),
        ]
    return made


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


def _of(
    name: str,
    rows: Sequence[Compared],
    *,
    briefly: bool = False,
    memory_bars: tuple[float | None, float | None] = (None, None),
) -> list[Figure]:
    times, memory = _errors(r.error for r in rows), _errors(r.memory_error for r in rows)
    refused = Counter(r.why.split(":")[0] if r.source else r.why for r in rows if r.why)
    note = "; ".join(f"{count} {why}" for why, count in refused.most_common())
    leaning = float(np.median(times)) if len(times) else None
    made = [
        _figure(name, "step time, median error", np.median, times, note),
        _figure(name, "step time, mean error", np.mean, times),
    ]
    if len(memory):
        made.append(replace(_figure(name, "memory, median error", np.median, memory), bar=memory_bars[0]))
    if briefly:
        return [figure for figure in made if figure.rows or figure.note]
    ran = [r for r in rows if r.fit_probability is not None]
    sure = sum((r.fit_probability or 0.0) < _SURE for r in ran)
    return [
        *made,
        replace(_figure(name, "memory, mean error", np.mean, memory), bar=memory_bars[1]),
        Figure(
            source=name, measure="step time, predicted over published less one, median", value=leaning, rows=len(times)
        ),
        Figure(source=name, measure="ran, but called impossible", value=sure / max(len(ran), 1), rows=len(ran)),
    ]


def _figure(
    source: str, measure: str, statistic: Callable[[np.ndarray], Any], errors: np.ndarray, note: str = ""
) -> Figure:
    value = float(statistic(np.abs(errors))) if len(errors) else None
    return Figure(source=source, measure=measure, value=value, rows=len(errors), note=note)


def _errors(values: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None and math.isfinite(value)], dtype=float)


def save(found: PublishedErrors, path: Path) -> None:
    jobs_kept = ",\n".join(json.dumps(asdict(r)) for r in found.jobs)
    series_kept = ",\n".join(json.dumps(asdict(s)) for s in found.series)
    path.write_text(f'{{"jobs": [\n{jobs_kept}\n],\n"series": [\n{series_kept}\n]}}\n')


def read(path: Path) -> PublishedErrors:
    try:
        kept = json.loads(path.read_text())
        lines = [Series(**s | {"devices": tuple(s["devices"])}) for s in kept["series"]]
        return PublishedErrors(jobs=[Compared(**row) for row in kept["jobs"]], series=lines)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} holds no published jobs ({error}). Make it: foretell bench published --save"
        ) from error
