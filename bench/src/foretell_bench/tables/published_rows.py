"""Published jobs with their forecasts, as they are kept: what was found of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from foretell.errors import InputError
from foretell_bench.tables.series import Series

# Sources of which we have a part: some of their jobs may be looked at while Foretell is changed, by a hash of the job.
_IN_PART: Final = ("dgxc-benchmarking", "Megatron-Bridge")


def may_be_looked_at(source: str, job: str) -> bool:
    """While Foretell is changed: jobs of half of the sources, by a hash of their names; of those in part, half of the jobs."""
    named = job if source in _IN_PART else source
    return int(hashlib.sha256(named.encode()).hexdigest()[-1], 16) % 2 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How far a forecast is from a published job: what was predicted over what was published, less one."""

    source: str
    id: str = ""
    trainer: str | None = None  # None: not known
    regimes: tuple[str, ...] = ()  # groups that have a bar, by its plan and precision
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
    fits: bool | None = None  # the verdict on a job that ran
    why: str = ""  # nothing was forecast

    @property
    def looked_at(self) -> bool:
        return may_be_looked_at(self.source, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedErrors:
    """Every job with its forecast, and series of jobs that differ in one thing."""

    jobs: Sequence[Compared]
    series: Sequence[Series]


def save(found: PublishedErrors, path: Path) -> None:
    jobs_kept = ",\n".join(json.dumps(asdict(r)) for r in found.jobs)
    series_kept = ",\n".join(json.dumps(asdict(s)) for s in found.series)
    path.write_text(f'{{"jobs": [\n{jobs_kept}\n],\n"series": [\n{series_kept}\n]}}\n')


def read(path: Path) -> PublishedErrors:
    try:
        kept = json.loads(path.read_text())
        lines = [Series(**s | {"devices": tuple(s["devices"])}) for s in kept["series"]]
        return PublishedErrors(
            jobs=[Compared(**row | {"regimes": tuple(row.get("regimes", ()))}) for row in kept["jobs"]], series=lines
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} holds no published jobs ({error}). Make it: foretell bench published --save"
        ) from error
