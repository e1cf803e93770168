"""Jobs that one source ran several of: whether forecasts rank its plans, and whether they keep up as one job grows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from foretell.plans import Plan
from foretell.units import Seconds
from foretell_bench.sources.published_steps import Job
from foretell_bench.tables.figures import rank_correlation

_FEWEST: Final = 3  # plans that have an order worth the name
_GROWS: Final = ("dp", "hybrid_shard", "grad_accumulation")  # of a plan, with the number of devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """`ranking`: Spearman's correlation of seconds per sample. `drift`: how the forecast over what was published changes from
    the fewest devices to the most, less one."""

    kind: str
    source: str
    devices: tuple[int, int]  # fewest and most
    jobs: int
    value: float


Timed = tuple[Job, Seconds, Seconds]  # a job, predicted, published


def series(timed: Sequence[Timed]) -> list[Series]:
    return [*_rankings(timed), *_drifts(timed)]


def _rankings(timed: Iterable[Timed]) -> list[Series]:
    """Of plans, micro-batches included, of one model on one number of devices."""
    found = []
    for same in _grouped(timed, lambda job: (job.source, _model(job), job.device, str(job.devices))):
        samples = [_samples(job) for job, _, _ in same]
        predicted = [p / n for (_, p, _), n in zip(same, samples, strict=True)]
        published = [m / n for (_, _, m), n in zip(same, samples, strict=True)]
        if len({job.ask.key for job, _, _ in same}) >= _FEWEST:
            found.append(_made("ranking", same, rank_correlation(predicted, published)))
    return found


def _drifts(timed: Sequence[Timed]) -> list[Series]:
    """Of one model and plan at several numbers of devices, with as much work for each of them or for all; sharding within
    groups of as many as there are is no sharding."""
    found: dict[frozenset[str], Series] = {}
    for wanted in sorted({job.ask.plan.hybrid_shard or 0 for job, _, _ in timed}):
        members = [t for t in timed if _shards_among(t[0].ask.plan, wanted)]
        for work in (_samples_of_a_rank, _samples):
            for same in _grouped(members, lambda job, work=work: (*_one_job(job), str(work(job)))):  # type: ignore[misc]
                ordered = sorted(same, key=lambda t: t[0].devices)
                first, last = ordered[0], ordered[-1]
                if first[0].devices < last[0].devices:
                    off = (last[1] / last[2]) / (first[1] / first[2]) - 1
                    found[frozenset(t[0].id for t in same)] = _made("drift", ordered, off)
    return list(found.values())


def _one_job(job: Job) -> tuple[str, ...]:
    return job.source, _model(job), str(job.ask.model.batch), job.device, _plan(job.ask.plan)


def _shards_among(plan: Plan, wanted: int) -> bool:
    return (plan.hybrid_shard or 0) == wanted or (not plan.hybrid_shard and plan.dp == wanted)


def _plan(plan: Plan) -> str:
    return json.dumps({name: value for name, value in asdict(plan).items() if name not in _GROWS})


def _model(job: Job) -> str:
    model = job.ask.model
    return json.dumps([model.source, model.settings, model.length])


def _samples_of_a_rank(job: Job) -> int:
    return job.ask.model.batch * (job.ask.plan.grad_accumulation or 1)


def _samples(job: Job) -> int:
    return _samples_of_a_rank(job) * job.ask.plan.dp


def _grouped(timed: Iterable[Timed], key: Callable[[Job], tuple[str, ...]]) -> list[list[Timed]]:
    groups: dict[tuple[str, ...], list[Timed]] = defaultdict(list)
    for each in timed:
        groups[key(each[0])].append(each)
    return [groups[name] for name in sorted(groups)]


def _made(kind: str, same: Sequence[Timed], value: float) -> Series:
    sizes = [job.devices for job, _, _ in same]
    return Series(kind=kind, source=same[0][0].source, devices=(min(sizes), max(sizes)), jobs=len(same), value=value)
