"""Which errors an interval is made of: the model's or the profile's, and what a forecast says of it."""

from __future__ import annotations

import math

import pytest

import foretell
from foretell.cost.model import ROOFLINE, load_model
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.result import Forecast
from foretell.forecasting.trainer import TrainerOverhead, same_trainer, trainer_overhead
from foretell.profile import Intervals, Profile, network_of
from tests.parallel.models import graph


def codes(answer: Forecast) -> set[str]:
    return {caveat.code for caveat in answer.caveats}


def test_a_profile_that_was_validated_has_the_last_word() -> None:
    own = Profile(name="own", device=1.2, fixed_seconds=0.01, intervals=Intervals(width=0.2))
    for model in (load_model(), load_model(ROOFLINE)):
        answer = foretell.forecast(graph("llama"), "2xh200", profile=own, model=model)
        time = answer.step_time
        assert (time.low, time.high) == pytest.approx((time.seconds * math.exp(-0.2), time.seconds * math.exp(0.2)))
        assert "calibrated-by-profile" in codes(answer)
        assert not codes(answer) & {"calibrated-by-jobs", "not-calibrated", "profile-not-calibrated"}


def test_the_interval_of_a_network_that_a_profile_was_fitted_on_is_said_to_be_the_profiles() -> None:
    """It was given, and called the model's, where a profile knew no other network."""
    step = graph("llama")
    own = Profile(name="own", networks={network_of(step): 1.1}, intervals=Intervals(measured=0.05))
    answer = foretell.forecast(step, "2xh200", profile=own)
    assert answer.step_time.high == pytest.approx(answer.step_time.seconds * math.exp(0.05))
    assert "calibrated-by-profile" in codes(answer)


def test_without_an_interval_of_its_own_a_profile_has_the_models() -> None:
    answer = foretell.forecast(graph("llama"), "2xh200", profile=Profile(name="own", device=1.2))
    assert answer.step_time.low is not None
    assert {"calibrated-by-jobs", "profile-not-calibrated"} <= codes(answer)


def test_every_part_lies_in_its_interval() -> None:
    for on, plan in (
        ("h200", "dp=1"),
        ("h200", "dp=1,zero=3,offload=parameters"),
        ("t4", "dp=1"),
        ("4xl40s", "dp=2,pp=2,grad_accumulation=4"),
    ):
        answer = foretell.forecast(graph("llama"), on, plan)
        for time in (answer.step_time, answer.device_time, answer.exposed_communication, answer.bubble, answer.trainer):
            assert time.low is not None
            assert time.high is not None
            assert time.low <= time.seconds <= time.high


def test_who_says_what_a_trainer_adds() -> None:
    model, usual = load_model(), Conditions()
    published = trainer_overhead(usual, model, training=True, profiled=False)
    assert published.source == "published jobs"
    assert published.factor == 1 + published.fraction > 1.1
    given = trainer_overhead(Conditions(trainer=0.0), model, training=True, profiled=False)
    assert given == TrainerOverhead(fraction=0.0, source="conditions")
    for no in ({"training": False}, {"profiled": True}, {"several": False}, {"own_loop": True}):
        assert trainer_overhead(usual, model, **{"training": True, "profiled": False, **no}) == TrainerOverhead()
    assert same_trainer(usual, model, training=True, profiled=False).trainer == published.fraction
    assert same_trainer(usual, model, training=False, profiled=False) is usual
    assert same_trainer(usual, model, training=True, profiled=False, own_loop=True) is usual
