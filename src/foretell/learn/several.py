"""Published jobs beside their forecasts → how wide intervals of several ranks must be."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from foretell.cost.files import CHECKSUMS, seal
from foretell.cost.model import CostModel, load_model
from foretell.errors import InputError
from foretell.forecasting.calibration import Range
from foretell.forecasting.forecast import spread
from foretell.forecasting.several import FILE, PublishedJobs, Source, Spread
from foretell.units import Seconds

__all__ = ["HeldOut", "JobError", "Spread", "calibrate_jobs", "held_out", "save_jobs", "spread"]

_FLOORS: Final = tuple(np.geomspace(0.02, 0.5, 24).round(4).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """One job of several ranks: what was published, what was predicted before what trainers add, and how far its parts say it
    may be off."""

    source: str
    measured: Seconds
    predicted: Seconds
    spread: Spread

    @property
    def error(self) -> float:
        return math.log(self.measured / self.predicted)


class HeldOut(NamedTuple):
    """What jobs of other sources alone say of one."""

    seconds: Seconds
    range: Range


def calibrate_jobs(jobs: Sequence[JobError]) -> PublishedJobs:
    """Of what no part of a step says there is as much as makes intervals narrowest: too little of it, and they are as wide as
    the one job that the parts explain worst needs; too much, and all are alike."""
    if not jobs:
        raise InputError("intervals of several ranks need published jobs, got none.")
    lost = _lost(jobs)
    centred = [replace(job, predicted=job.predicted * (1 + lost)) for job in jobs]
    best = min((_with_floor(centred, floor) for floor in _FLOORS), key=lambda found: _width(centred, found))
    return replace(best, lost=lost)


def _lost(jobs: Sequence[JobError]) -> float:
    """What jobs took beyond their forecast, as a part of it: the middle source's middle job."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        by_source[job.source].append(job.error)
    middle = float(np.median([np.median(errors) for errors in by_source.values()]))
    return round(max(math.expm1(middle), 0.0), 4)


def held_out(jobs: Sequence[JobError]) -> list[HeldOut]:
    """Of each job, from jobs of other sources alone; without any, its forecast as it is."""
    others = {source: [j for j in jobs if j.source != source] for source in {j.source for j in jobs}}
    found = {source: calibrate_jobs(rest) for source, rest in others.items() if rest}
    return [_held_out(job, found.get(job.source)) for job in jobs]


def _held_out(job: JobError, known: PublishedJobs | None) -> HeldOut:
    if known is None:
        return HeldOut(job.predicted, (0.0, math.inf))
    seconds = job.predicted * (1 + known.lost)
    return HeldOut(seconds, known.range(seconds, job.spread))


def save_jobs(found: PublishedJobs, model: str | CostModel) -> Path:
    """Into the folder of a model; one that is sealed stays so."""
    folder = (load_model(model) if isinstance(model, str) else model).folder
    if folder is None:
        raise InputError(f"the model {model!r} has no folder to keep errors of jobs in. Name a fitted one.")
    path = folder / FILE
    rounded = [replace(s, errors=[round(e, 3) for e in s.errors]) for s in found.sources]
    path.write_text(json.dumps(asdict(replace(found, sources=rounded))) + "\n")
    if (folder / CHECKSUMS).is_file():
        seal(folder)
    return path


def _with_floor(jobs: Iterable[JobError], floor: float) -> PublishedJobs:
    by_source: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        by_source[job.source].append(job.spread.beyond(floor).count(job.error))
    return PublishedJobs(floor=floor, sources=[Source(name=s, errors=e) for s, e in sorted(by_source.items())])


def _width(jobs: Sequence[JobError], found: PublishedJobs) -> float:
    """Of intervals, as a logarithm: their mean, every source counting as one."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        low, high = found.range(job.predicted, job.spread)
        by_source[job.source].append(math.log(high / low))
    return float(np.mean([np.mean(each) for each in by_source.values()]))
