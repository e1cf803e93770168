"""What a job takes with a candidate: its time, its cost, and the odds of keeping to a goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretell.cost.compile_time import compile_time
from foretell.forecasting.energy import idle_watts
from foretell.forecasting.job import USUAL_PREEMPTIONS, USUAL_SAVING, Job, JobLength, Pause, best_period
from foretell.hardware import Cluster, Term
from foretell.planner.candidates import Candidate
from foretell.planner.goal import Goal
from foretell.planner.outcome import Outcome
from foretell.planner.result import Choice, Range
from foretell.planner.steps import Variant
from foretell.units import Seconds

# What a job is taken to be where nothing is given (docs/guide/planning.md).
SAVED_EVERY: Final[Seconds] = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What is the same for every choice: the job, what it must keep to, and on which term each cluster is rented."""

    length: JobLength
    goal: Goal
    terms: Sequence[Term]  # by cluster

    def choice(self, cluster: Cluster, variant: Variant, c: Candidate, o: Outcome) -> Choice:
        """What the job takes with a candidate that fits."""
        term = self.terms[c.cluster]
        step, job = o.step, self._job(cluster, variant, o, term)
        assert job.low is not None
        assert job.high is not None
        duration = Range(median=job.seconds, low=job.low, high=job.high)
        cost = None if job.dollars is None else duration.times(job.dollars / job.seconds)
        return Choice(
            cluster=str(cluster),
            devices=cluster.devices,
            plan=str(c.plan),
            batch=c.batch,
            global_batch=o.samples,
            settings={**variant.settings, **({"batch": str(c.batch)} if variant.free else {})},
            step=step,
            time=duration,
            cost=cost,
            price=cluster.price_source if cost else None,
            term=term,
            precision=str(variant.graph.precision),
            compiled=variant.graph.is_compiled,
            goodput=_goodput(job, step),
            kwh=duration.times(job.joules / 3.6e6 / job.seconds),
            job=job,
            memory=o.total,
            capacity=o.capacity,
            headroom=o.headroom,
            fit_probability=o.fit_probability,
            deadline_probability=_odds(duration, self.goal.deadline),
            budget_probability=None if cost is None else _odds(cost, self.goal.budget),
            mfu=o.mfu,
            exposed_communication=o.exposed,
            bubble=o.bubble,
            calibrated=o.low is not None,
        )

    def _length(self, term: Term, compiling: Seconds) -> JobLength:
        """The job on a term: where several are compared, spot nodes alone are taken back. Each start compiles."""
        stops = self.length.interruptions
        if stops is not None:
            often = stops.per_node_hour
            if len(set(self.terms)) > 1:
                often = (often or USUAL_PREEMPTIONS) if term == "spot" else 0.0
            stops = replace(stops, per_node_hour=often, restart=stops.restart + compiling)
        return replace(self.length, startup=self.length.startup + compiling, interruptions=stops)

    def _job(self, cluster: Cluster, variant: Variant, o: Outcome, term: Term) -> Job:
        length, nodes = self._length(term, _compiling(cluster, variant)), len(cluster.nodes)
        if length.checkpoint is None and length.interruptions is not None:
            often = _saved_every(length.interruptions.rate(cluster.devices, nodes))
            often_steps = max(1, math.ceil(often / o.step.median))
            length = replace(length, checkpoint=Pause(every=often_steps, seconds=USUAL_SAVING))
        return length.cost(
            step=o.step.median,
            within=(o.step.low, o.step.high),
            devices=cluster.devices,
            nodes=nodes,
            samples=o.samples,
            tokens=o.tokens,
            dollars_per_hour=cluster.dollars_per_hour,
            watts=o.watts,
            idle_watts=idle_watts(cluster),
        )


def _compiling(cluster: Cluster, variant: Variant) -> Seconds:
    """Until a compiled step is there, on the slowest host."""
    if not variant.graph.is_compiled:
        return 0.0
    return max(compile_time(variant.graph, node.host.op_seconds).median for node in cluster.kinds)


def _odds(of: Range, limit: float | None) -> float | None:
    """The probability of staying below a limit."""
    return None if limit is None else round(of.distribution.probability_below(limit), 4)


def _saved_every(rate: float) -> Seconds:
    """The best period, and at least an hour's."""
    return min(SAVED_EVERY, best_period(USUAL_SAVING, rate) or SAVED_EVERY)


def _goodput(job: Job, step: Range) -> Range:
    """Steps that count, as a part of the job, with steps as short and as long as the interval has them."""
    ends = [job.goodput_low, job.goodput_high]
    ends += [
        min(job.steps * each / whole, 1.0) for each, whole in ((step.low, job.low), (step.high, job.high)) if whole
    ]
    return Range(median=job.goodput, low=min([job.goodput, *ends]), high=max([job.goodput, *ends]))
