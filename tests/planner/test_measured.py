"""Runs seeded by forecasts: few of them, and never worse than the forecast's own choice."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.planner.candidates import Candidate
from foretell.planner.command import Command
from foretell.planner.expected_gain import Option, try_plans
from foretell.plans import Plan

GB = 10**9
JOB = foretell.JobLength.usual(samples=1e6)


def options() -> list[Option]:
    plans = [(Plan(dp=8 // tp, tp=tp, zero=zero), batch) for tp in (1, 2, 4) for zero in (0, 1) for batch in (1, 2, 4)]
    return [
        Option(
            candidate=Candidate(0, 0, b, p), seconds=(1.0 + 0.1 * p.tp + 0.02 * p.zero) / b**0.1 * p.dp * b,
            needed=(20 * b + 10 * (1 - p.zero)) * GB // p.tp, fit_probability=0.99 if b < 4 else 0.5,
        )
        for p, b in plans
    ]  # fmt: skip


def test_the_first_run_is_the_best_forecast_that_surely_fits() -> None:
    everything = options()
    sure = [o for o in everything if o.fit_probability > 0.9]
    [(first, _), *_] = try_plans(everything, lambda p, b: 1.0 * p.dp * b, most=1)
    assert first == min(sure, key=lambda o: o.rate)


def test_an_error_that_plans_share_is_learned_from_few_runs() -> None:
    """Everything with tp=1 is twice as slow as forecast."""
    everything = options()
    by_plan = {(o.candidate.plan, o.candidate.batch): o for o in everything}

    def run(plan: Plan, batch: int) -> float:
        return by_plan[plan, batch].seconds * (2.0 if plan.tp == 1 else 1.0)

    tried = try_plans(everything, run, most=10)
    best = min(run(o.candidate.plan, o.candidate.batch) / o.candidate.work for o in everything)
    assert min(s / o.candidate.work for o, s in tried if s is not None) <= 1.03 * best
    assert len(tried) <= 6


def test_a_run_that_fails_turns_the_search_to_plans_that_need_less() -> None:
    everything = options()
    limit = 25 * GB
    tried = try_plans(everything, lambda p, b: None if _needed(everything, p, b) > limit else 1.0 * p.dp * b, most=8)
    failed = [o.needed for o, s in tried if s is None]
    assert len(failed) <= 3
    assert any(s is not None for _, s in tried)


def _needed(everything: list[Option], plan: Plan, batch: int) -> int:
    return next(o.needed for o in everything if (o.candidate.plan, o.candidate.batch) == (plan, batch))


def test_the_answer_has_the_runs_and_the_best_of_them() -> None:
    small = f"{Path(__file__).parent / 'small.py'}:llama"
    among = [
        ("dp=2,grad_accumulation=1", 2),
        ("dp=1,tp=2,grad_accumulation=1", 2),
        ("dp=2,zero=1,grad_accumulation=1", 2),
    ]
    slow = foretell.Plan(dp=2, grad_accumulation=1)
    result = foretell.plan(
        small, "2xh100-sxm", space=foretell.Space(among=among), job=JOB, model="roofline",
        search=foretell.Search(measure=lambda plan, batch: 1.0 if plan == slow else 0.5 * plan.dp),
    )  # fmt: skip
    assert result.recommended is not None
    assert result.runs
    assert min(r.seconds or 9.0 for r in result.runs) == 0.5
    assert result.recommended.step.median in (0.5, 1.0)
    assert "plans that were run" in result.reason
    nothing = foretell.plan(
        small, "2xh100-sxm", space=foretell.Space(among=among), job=JOB, model="roofline",
        search=foretell.Search(measure=lambda plan, batch: None),
    )  # fmt: skip
    assert nothing.recommended is None
    assert "None of 3 plans ran" in nothing.reason


def test_odds_and_intervals_follow_the_run_and_not_the_forecast() -> None:
    asked = {
        "on": "2xh100-sxm", "space": foretell.Space(among=[("dp=2,grad_accumulation=1", 2)]), "job": JOB,
        "model": "roofline", "goal": foretell.Goal(deadline=1e5),
    }  # fmt: skip
    small = f"{Path(__file__).parent / 'small.py'}:llama"
    forecast = foretell.plan(small, **asked).recommended  # type: ignore[arg-type]
    runs = foretell.Search(measure=lambda plan, batch: 0.5)
    ran = foretell.plan(small, **asked, search=runs).recommended  # type: ignore[arg-type]
    assert forecast is not None
    assert ran is not None
    assert forecast.deadline_probability == pytest.approx(1.0)
    assert ran.deadline_probability == pytest.approx(0.0, abs=1e-3)  # 250,000 steps of half a second
    assert ran.fit_probability == 1.0
    assert 1.0 < ran.time.high / ran.time.low < 1.15 < forecast.time.high / forecast.time.low


def test_plans_to_choose_from_need_their_cluster() -> None:
    small = f"{Path(__file__).parent / 'small.py'}:llama"
    with pytest.raises(foretell.InputError, match="on is not given"):
        foretell.plan(small, space=foretell.Space(among=[("dp=2", 2)]), job=JOB, model="roofline")


def test_a_command_is_told_the_plan_and_says_the_seconds() -> None:
    run = Command("sh -c 'echo training; test {tp} -lt 4 && echo 0.$FORETELL_BATCH'")
    assert run(Plan(dp=2, tp=2), 25) == 0.25
    assert run(Plan(tp=4), 25) is None
    with pytest.raises(foretell.InputError, match="'depth' is not known"):
        Command("train.py {depth}")
    with pytest.raises(foretell.InputError, match="must be the seconds of a step"):
        Command("echo done")(Plan(), 1)
    with pytest.raises(foretell.InputError, match="cannot be run"):
        Command("no-such-program-here")(Plan(), 1)
