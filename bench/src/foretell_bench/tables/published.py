"""`foretell bench published`: jobs that others published against `foretell.forecast` as shipped, with nothing fitted.

What trainers add, and intervals of several ranks, are those that jobs of other sources give. Other public files whose trainer
is known are sources too, a few rows each: they say what trainers add, and are no rows of the tables.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Final

from foretell.distribution import interval
from foretell.learn.uncertainty.jobs import JobError, PartsError, calibrate_jobs, leave_sources_out, save_jobs
from foretell.store.importers import public_file
from foretell.trainers import TRAINERS
from foretell.units import Seconds
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources import fsdp_mpt, llm_h100_sweep
from foretell_bench.sources.published_steps import Job, jobs
from foretell_bench.sources.question import Ask, evenly
from foretell_bench.tables.published_figures import figures
from foretell_bench.tables.published_rows import Compared, PublishedErrors, may_be_looked_at, read, save
from foretell_bench.tables.series import series

__all__ = ["Compared", "PublishedErrors", "figures", "read", "run", "save"]

_MORE: Final = ((fsdp_mpt, "composer"), (llm_h100_sweep, "nanotron"))  # steps that wait for the host say nothing of one
_ROWS: Final = 8  # of each of them


def run(
    data: Path,
    say: Say = quiet,
    *,
    workers: int = 1,
    answers: Path | None = None,
    calibrate: str | None = None,
    only_open: bool = False,
) -> PublishedErrors:
    """Every job of the folder's file; those that no question could be made of say why.

    `calibrate` names a model: its trainers and intervals of several ranks are made anew from these jobs, and saved.
    `only_open`: jobs alone that may be looked at while Foretell is changed.
    """
    taken = jobs(data)
    chosen = [job for job in taken.items if not only_open or may_be_looked_at(job.source, job.id)]
    more = _more(data)
    with Asker(workers, answers, say) as asker:
        found = asker([(ask, None) for ask in (*(job.ask for job in chosen), *(ask for _, ask, _ in more))])
    pairs = list(zip(chosen, found, strict=False))
    rows = [_compared(job, answer) for job, answer in pairs]
    numbers = [n for n, (job, answer) in enumerate(pairs) if job.seconds and not answer.why]
    errors = [_error(pairs[n][0].source, pairs[n][0].ask, pairs[n][0].seconds, pairs[n][1]) for n in numbers]
    others = zip(more, found[len(chosen) :], strict=True)
    errors += [_error(source, ask, seconds, a) for (source, ask, seconds), a in others if not a.why]
    predicted: dict[int, Seconds] = {}
    for n, error, left_out in zip(numbers, errors, leave_sources_out(errors), strict=False):
        predicted[n] = left_out.seconds
        within = interval(left_out.step_time) if left_out.step_time else None
        rows[n] = _left_out(rows[n], pairs[n][1], error, left_out.seconds, within)
    if calibrate is not None:
        save_jobs(calibrate_jobs(errors), calibrate)
    refused = [_refused(why) for why, count in taken.left_out.items() for _ in range(count)]
    timed = [(pairs[n][0], predicted[n], errors[i].measured) for i, n in enumerate(numbers)]
    return PublishedErrors(jobs=[*rows, *refused], series=series(timed))


def _more(data: Path) -> list[tuple[str, Ask, Seconds]]:
    """Rows of other public files, with who ran them."""
    made: list[tuple[str, Ask, Seconds]] = []
    for module, trainer in _MORE:
        if public_file(data, module.SOURCE):
            timed = [q for q in module.questions(data).items if q.seconds and q.tested and q.readable and not q.crashed]
            for each in evenly(timed, _ROWS, by=lambda q: (q.domain, q.part)):
                made.append((module.SOURCE, replace(each.ask, trainer=trainer, parts=True), each.seconds or math.nan))
    return made


def _error(source: str, ask: Ask, measured: Seconds | None, answer: Answer) -> JobError:
    """How far a forecast is off, before what its trainer adds; of one device it has no parts to compare."""
    parts = None
    if ask.cluster.devices > 1 and answer.shorter is not None and answer.longer is not None:
        parts = PartsError(shorter=answer.shorter, longer=answer.longer)
    return JobError(
        source=source, kind=TRAINERS.get(ask.trainer or ""), measured=measured or math.nan,
        predicted=answer.seconds - answer.trainer, parts=parts, experts=ask.plan.ep > 1,
    )  # fmt: skip


def _left_out(
    row: Compared, answer: Answer, error: JobError, seconds: Seconds, within: tuple[Seconds, Seconds] | None
) -> Compared:
    """With what jobs of other sources say of its trainer; on one device the interval is the forecast's, moved with it."""
    row = replace(row, error=seconds / error.measured - 1)
    if within is not None:
        low, high = within
        return replace(row, left_out_inside=low <= error.measured <= high, left_out_width=high / low)
    if error.parts is None and answer.low is not None and answer.high is not None:
        moved = error.measured * answer.seconds / seconds
        return replace(row, inside=answer.low <= moved <= answer.high)
    return row


def _compared(job: Job, answer: Answer) -> Compared:
    row = Compared(
        source=job.source, id=job.id, trainer=job.trainer, regimes=_regimes(job), network=job.network, regime=job.regime,
        device=job.device, architecture=job.architecture, devices=job.devices, why=answer.why,
    )  # fmt: skip
    if answer.why:
        return row
    sizes = {"allocated": max(answer.allocated, default=0), "reserved": answer.reserved, "smi": answer.total}
    predicted = sizes[job.memory_kind] if job.memory_kind else None
    inside = width = None
    if job.seconds and answer.low is not None and answer.high is not None:
        inside, width = answer.low <= job.seconds <= answer.high, answer.high / answer.low
    return replace(
        row, inside=inside, width=width, fit_probability=answer.fit_probability, fits=answer.fits,
        error=answer.seconds / job.seconds - 1 if job.seconds else None,
        memory_error=predicted / job.memory - 1 if predicted and job.memory else None,
    )  # fmt: skip


def _regimes(job: Job) -> tuple[str, ...]:
    """Groups that have a bar; a job may be in several. Those in fp8 are a group of their own."""
    plan, dense = job.ask.plan, job.network.startswith("dense")
    if "fp8" in job.labels:
        return ("fp8",)
    belongs = {
        "mixtures of experts": job.network == "mixture of experts",
        "dense": dense,
        "4-D and interleaved": dense and (plan.schedule == "interleaved" or min(plan.tp, plan.pp) > 1),
        "tensor parallel": dense and plan.tp > 1 and plan.pp == 1,
        "FSDP": dense and plan.zero == 3,
        "context parallel": dense and plan.cp > 1,
        "convolutional and BERT": job.network in ("convolutional", "BERT"),
        "Blackwell": job.architecture == "Blackwell",
    }
    return tuple(name for name, holds in belongs.items() if holds)


def _refused(why: str) -> Compared:
    return Compared(source="", network="", regime="", device="", architecture="", devices=0, why=why)
