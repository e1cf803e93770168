"""Published jobs with their forecasts → how wide intervals of several ranks must be."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from foretell.cost.folder import CHECKSUMS, seal
from foretell.cost.model import CostModel, load_model
from foretell.distribution import LogNormal, interval
from foretell.errors import InputError
from foretell.forecasting.forecast import step_error
from foretell.forecasting.uncertainty.jobs import FILE, PartsError, PublishedJobs, Source
from foretell.units import Seconds

__all__ = ["JobError", "LeftOutJob", "PartsError", "calibrate_jobs", "leave_sources_out", "save_jobs", "step_error"]

FLOORS: Final = tuple(np.geomspace(0.02, 4.0, 45).round(4).tolist())  # beyond the largest, all steps are as sure


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """One job of several ranks: what was published, what was predicted before what trainers add, and how far its parts say it
    may be off."""

    source: str
    measured: Seconds
    predicted: Seconds
    parts: PartsError

    @property
    def error(self) -> float:
        return math.log(self.measured / self.predicted)


class LeftOutJob(NamedTuple):
    """What jobs of other sources alone say of one."""

    seconds: Seconds
    step_time: LogNormal | None  # without other sources nothing is known


def calibrate_jobs(jobs: Sequence[JobError]) -> PublishedJobs:
    """Of what no part of a step says there is as much as makes intervals narrowest: too little of it, and they are as wide as
    the one job that the parts explain worst needs; too much, and all are alike."""
    if not jobs:
        raise InputError("intervals of several ranks need published jobs, got none.")
    overhead = _trainer_overhead(jobs)
    centred = [replace(job, predicted=job.predicted * (1 + overhead)) for job in jobs]
    best = min((_with_floor(centred, floor) for floor in FLOORS), key=lambda known: _width(centred, known))
    return replace(best, trainer_overhead=overhead)


def _trainer_overhead(jobs: Sequence[JobError]) -> float:
    """What jobs took beyond their forecast, as a part of it: the middle source's middle job."""
    middle = float(np.median([np.median(errors) for errors in _by_source(jobs, lambda job: job.error).values()]))
    return round(max(math.expm1(middle), 0.0), 4)


def leave_sources_out(jobs: Sequence[JobError]) -> list[LeftOutJob]:
    """Each job from jobs of other sources alone; without any, its forecast as it is."""
    others = {source: [j for j in jobs if j.source != source] for source in {j.source for j in jobs}}
    known = {source: calibrate_jobs(rest) for source, rest in others.items() if rest}
    return [_left_out(job, known.get(job.source)) for job in jobs]


def _left_out(job: JobError, known: PublishedJobs | None) -> LeftOutJob:
    if known is None:
        return LeftOutJob(job.predicted, None)
    seconds = job.predicted * (1 + known.trainer_overhead)
    return LeftOutJob(seconds, known.step_time(seconds, job.parts))


def save_jobs(known: PublishedJobs, model: str | CostModel) -> Path:
    """Into the folder of a model; one that is sealed stays so."""
    folder = (load_model(model) if isinstance(model, str) else model).folder
    if folder is None:
        raise InputError(f"the model {model!r} has no folder to keep errors of jobs in. Name a fitted one.")
    path = folder / FILE
    rounded = [replace(s, errors=[round(e, 3) for e in s.errors]) for s in known.sources]
    path.write_text(json.dumps(asdict(replace(known, sources=rounded))) + "\n")
    if (folder / CHECKSUMS).is_file():
        seal(folder)
    return path


def _with_floor(jobs: Iterable[JobError], floor: float) -> PublishedJobs:
    counted = _by_source(jobs, lambda job: job.parts.beyond(floor).count(job.error))
    return PublishedJobs(floor=floor, sources=[Source(name=s, errors=e) for s, e in sorted(counted.items())])


def _width(jobs: Sequence[JobError], known: PublishedJobs) -> float:
    """Of intervals, as a logarithm: their mean, every source counting as one."""

    def width(job: JobError) -> float:
        low, high = interval(known.step_time(job.predicted, job.parts))
        return math.log(high / low)

    return float(np.mean([np.mean(widths) for widths in _by_source(jobs, width).values()]))


def _by_source(jobs: Iterable[JobError], value: Callable[[JobError], float]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        values[job.source].append(value(job))
    return values
