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
from foretell.distribution import Z90, LogNormal
from foretell.errors import InputError
from foretell.forecasting.forecast import step_error
from foretell.forecasting.uncertainty.jobs import FILE, Overhead, PartsError, PublishedJobs, Source
from foretell.learn.uncertainty.trainers import Trainers, Unit, fit_trainers, units_of
from foretell.trainers import Kind
from foretell.units import Seconds

__all__ = ["JobError", "LeftOutJob", "PartsError", "calibrate_jobs", "leave_sources_out", "save_jobs", "step_error"]

FLOORS: Final = tuple(np.geomspace(0.02, 4.0, 45).round(4).tolist())  # beyond the largest, all steps are as sure


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """One job: what was published, what was predicted before what its trainer adds, and how far its parts say it may be off."""

    source: str
    kind: Kind | None  # of its trainer; None: not known
    measured: Seconds
    predicted: Seconds
    parts: PartsError | None  # None: of one device, whose interval has other grounds
    experts: bool = False  # whose parts are less certain: what they are off by is not the trainer's

    @property
    def error(self) -> float:
        return math.log(self.measured / self.predicted)


class LeftOutJob(NamedTuple):
    """What jobs of other sources alone say of one."""

    seconds: Seconds
    step_time: LogNormal | None  # without other sources nothing is known, and of one device others say it


class _Centred(NamedTuple):
    """A job with what trainers of its kind add, as jobs of other sources have it."""

    source: str
    measured: Seconds
    predicted: Seconds
    parts: PartsError
    spread: float

    def counted(self, floor: float) -> float:
        """Its error beyond what trainers of its kind differ by, in errors of its parts."""
        error = math.log(self.measured / self.predicted)
        beyond = math.sqrt(max(error**2 - (Z90 * self.spread) ** 2, 0.0))
        return self.parts.beyond(floor).count(math.copysign(beyond, error))


def calibrate_jobs(jobs: Sequence[JobError]) -> PublishedJobs:
    """Of what no part of a step says there is as much as makes intervals narrowest: too little of it, and they are as wide as
    the one job that the parts explain worst needs; too much, and all are alike.

    Errors are those of a source that is new: what its trainers add is from the other sources.
    """
    centred = _centred(jobs)
    if not centred:
        raise InputError("intervals of several ranks need published jobs, got none.")
    trainers, unknown = fit_trainers(_units(jobs))
    best = min((_with_floor(centred, floor) for floor in FLOORS), key=lambda known: _width(centred, known))
    return replace(best, trainers=trainers, unknown=unknown)


def leave_sources_out(jobs: Sequence[JobError]) -> list[LeftOutJob]:
    """Each job from jobs of other sources alone; without any, its forecast as it is."""
    others = {source: [j for j in jobs if j.source != source] for source in {j.source for j in jobs}}
    known = {source: calibrate_jobs(rest) for source, rest in others.items() if any(j.parts for j in rest)}
    trainers = {source: fit_trainers(_units(rest)) for source, rest in others.items() if rest}
    return [_left_out(job, trainers.get(job.source), known.get(job.source)) for job in jobs]


def _left_out(job: JobError, trainers: Trainers | None, known: PublishedJobs | None) -> LeftOutJob:
    if trainers is None:
        return LeftOutJob(job.predicted, None)
    overhead = _of_kind(trainers, job.kind)
    seconds = job.predicted * (1 + overhead.fraction)
    return LeftOutJob(seconds, known.step_time(seconds, job.parts, overhead.spread) if known and job.parts else None)


def _of_kind(trainers: Trainers, kind: Kind | None) -> Overhead:
    by_kind, unknown = trainers
    return unknown if kind is None else by_kind[kind]


def _centred(jobs: Sequence[JobError]) -> list[_Centred]:
    """Jobs of several ranks, each with the trainers of other sources; those of the only source with its own."""
    sources, made = {job.source for job in jobs}, []
    for source in sorted(sources):
        rest = [job for job in jobs if job.source != source] or jobs
        trainers = fit_trainers(_units(rest))
        for job in jobs:
            if job.source == source and job.parts is not None:
                overhead = _of_kind(trainers, job.kind)
                predicted = job.predicted * (1 + overhead.fraction)
                made.append(_Centred(source, job.measured, predicted, job.parts, overhead.spread))
    return made


def _units(jobs: Iterable[JobError]) -> list[Unit]:
    """Jobs that say what trainers add."""
    return units_of((job.source, job.kind, job.error) for job in jobs if job.kind is not None and not job.experts)


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


def _with_floor(jobs: Iterable[_Centred], floor: float) -> PublishedJobs:
    counted = _by_source(jobs, lambda job: job.counted(floor))
    return PublishedJobs(floor=floor, sources=[Source(name=s, errors=e) for s, e in sorted(counted.items())])


def _width(jobs: Sequence[_Centred], known: PublishedJobs) -> float:
    """Of intervals, as a logarithm: their mean, every source counting as one."""

    def width(job: _Centred) -> float:
        step = known.step_time(1.0, job.parts, job.spread)
        return step.below + step.above

    return float(np.mean([np.mean(widths) for widths in _by_source(jobs, width).values()]))


def _by_source(jobs: Iterable[_Centred], value: Callable[[_Centred], float]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        values[job.source].append(value(job))
    return values
