"""Runs of plans, where they are allowed: those of the recommended cluster, and the best of them as the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from foretell.distribution import Z90
from foretell.forecasting.memory import probability_of_fitting
from foretell.planner.candidates import Candidate
from foretell.planner.choices import JobTerms
from foretell.planner.evaluate import PlanEvaluator
from foretell.planner.expected_gain import NOISE, Option, try_plans
from foretell.planner.result import Choice, MeasuredRun, PlanResult
from foretell.planner.search import Search
from foretell.planner.verdict import describe
from foretell.units import Seconds


def measured(
    result: PlanResult,
    evaluator: PlanEvaluator,
    candidates: Sequence[Candidate],
    terms: JobTerms,
    search: Search,
) -> PlanResult:
    """Try plans of the recommended cluster, and recommend the best that ran."""
    start, run = result.recommended or result.nearest, search.measure
    if start is None or run is None:
        return result
    places = zip(map(str, evaluator.clusters), terms.terms, strict=True)
    number = next(i for i, place in enumerate(places) if place == (start.cluster, start.term))
    options = _options(evaluator, [c for c in candidates if c.cluster == number])
    names = [(str(option.candidate.plan), option.candidate.batch) for option in options]
    tried = try_plans(
        options, run, most=search.runs, confidence=terms.goal.confidence, gain=search.gain,
        first=names.index((start.plan, start.batch)) if (start.plan, start.batch) in names else None,
        sharpen=lambda option: _simulated(evaluator, option),
    )  # fmt: skip
    runs = tuple(
        MeasuredRun(plan=str(o.candidate.plan), batch=o.candidate.batch, forecast=o.seconds, seconds=seconds)
        for o, seconds in tried
    )
    ran = [(o, seconds) for o, seconds in tried if seconds is not None]
    if not ran:
        reason = f"None of {len(tried)} plans ran on {start.cluster}."
        return replace(result, runs=runs, recommended=None, reason=reason)
    best, seconds = min(ran, key=lambda entry: entry[1] / entry[0].candidate.work)
    choice = _as_run(evaluator, best.candidate, seconds, terms)
    reason = f"{describe(choice)} is the best of {len(tried)} plans that were run on {start.cluster}."
    return replace(result, runs=runs, recommended=choice, reason=reason)


def _options(evaluator: PlanEvaluator, candidates: Sequence[Candidate]) -> list[Option]:
    """Plans of a cluster that may fit, with their bounds for forecasts."""
    options = []
    for c in candidates:
        replica, cluster = evaluator.rough(c), evaluator.clusters[c.cluster]
        if replica.why:
            continue
        device = cluster.nodes[0].device
        needed = evaluator.memory(c, replica) + device.context_bytes
        fits = probability_of_fitting(needed, device.usable_bytes, cluster.devices)
        seconds = evaluator.bound(c, replica)
        options.append(Option(candidate=c, seconds=seconds, needed=needed, fit_probability=fits))
    return options


def _simulated(evaluator: PlanEvaluator, option: Option) -> Option:
    """The option as it is simulated; one that cannot be is never run."""
    o = evaluator.simulate(option.candidate)
    return replace(option, seconds=o.seconds, needed=o.total, fit_probability=o.fit_probability)


def _as_run(evaluator: PlanEvaluator, c: Candidate, seconds: Seconds, terms: JobTerms) -> Choice:
    """What the job takes with a step that was measured: it fits, and is as sure as measured steps are."""
    o, near = evaluator.simulate(c), math.exp(Z90 * NOISE)
    ran = replace(
        o, seconds=seconds, low=seconds / near, high=seconds * near, fits=True, fit_probability=1.0,
        mfu=None if o.mfu is None else o.mfu * o.seconds / seconds,
    )  # fmt: skip
    return terms.choice(evaluator.clusters[c.cluster], evaluator.steps.variants[c.variant], c, ran)
