"""Profiles fitted on steps whose factors we know."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from foretell.errors import InputError
from foretell.learn.adapt.factors import Step, fit_numbers, fit_profile, well_spread
from foretell.plans import Plan
from foretell.profile import Profile, Purpose
from foretell.units import Seconds

from ...parallel.models import graph

TRUTH = Profile(name="truth", device=1.6, host=0.7, communication=2.5, fixed_seconds=0.02)
# device, host and communication of steps that each show another part
PARTS = [
    (1.0, 0.1, 0.0),
    (2.0, 0.1, 0.0),
    (0.1, 1.0, 0.0),
    (0.2, 3.0, 0.0),
    (0.5, 0.1, 1.0),
    (0.2, 0.3, 2.0),
    (0.1, 0.05, 0.0),
]


def predicted(profile: Profile) -> list[Seconds]:
    """As a forecast does it: device beside host, communication behind."""
    return [
        max(device * profile.device, host * profile.host) + wire * profile.communication + profile.fixed_seconds
        for device, host, wire in PARTS
    ]


def test_known_factors_are_found() -> None:
    found = fit_numbers(predicted(TRUTH), predicted, name="found")
    for ours, truth in zip(predicted(found), predicted(TRUTH), strict=True):
        assert ours == pytest.approx(truth, rel=0.05)
    assert found.communication == pytest.approx(2.5, rel=0.2)
    assert found.device == pytest.approx(1.6, rel=0.1)
    assert found.card.rows == len(PARTS)


def test_one_wild_measurement_changes_little() -> None:
    measured = predicted(TRUTH)
    measured[1] *= 10
    found = fit_numbers(measured, predicted, name="found")
    assert predicted(found)[0] == pytest.approx(predicted(TRUTH)[0], rel=0.25)


def test_what_steps_do_not_show_stays() -> None:
    alone = [(1.0, 0.1, 0.0), (2.0, 0.1, 0.0), (4.0, 0.1, 0.0)]

    def busy(profile: Profile) -> list[Seconds]:
        return [max(d * profile.device, h * profile.host) + profile.fixed_seconds for d, h, _ in alone]

    found = fit_numbers([2.0, 4.0, 8.0], busy, name="found")
    assert found.host == pytest.approx(1.0, abs=0.02)
    assert found.communication == pytest.approx(1.0, abs=0.02)
    assert found.device == pytest.approx(2.0, rel=0.1)


def test_fixed_seconds_cost_no_trial() -> None:
    trials: list[Profile] = []

    def counted(profile: Profile) -> list[Seconds]:
        trials.append(profile)
        return predicted(profile)

    fit_numbers(predicted(TRUTH), counted, name="found")
    assert len(trials) <= 20
    assert len({(p.device, p.host, p.communication) for p in trials}) == len(trials)


def test_steps_are_asked_of_forecast() -> None:
    plans = [Plan(dp=2), Plan(pp=2, grad_accumulation=4), Plan(tp=2)]
    truth = Profile(name="truth", host=2.0, communication=1.5)
    steps = [Step(workload=graph("llama"), on="2xh100-sxm", plan=plan, seconds=1.0) for plan in plans]
    steps = [
        Step(workload=s.workload, on=s.on, plan=s.plan, seconds=s.predicted(truth)) for s in steps
    ]  # as if it had been measured so
    found = fit_profile(steps, name="lab", purpose=Purpose(device="h100-sxm"), sources=["made up"])
    for step in steps:
        assert step.predicted(found) == pytest.approx(step.seconds, rel=0.05)
    assert found.purpose.device == "h100-sxm"
    assert found.card.sources == ("made up",)


def test_some_of_many_steps() -> None:
    keys = [(f"dp={1 + i % 3}", float(i)) for i in range(100)]
    chosen = well_spread(keys, most=10)
    assert len(set(chosen)) == 10
    assert {keys[i][0] for i in chosen} == {"dp=1", "dp=2", "dp=3"}
    assert sorted(well_spread(keys[:5])) == [0, 1, 2, 3, 4]


def test_nothing_to_fit_on_is_an_error() -> None:
    with pytest.raises(InputError, match="there are none"):
        fit_numbers([], lambda profile: [], name="none")
