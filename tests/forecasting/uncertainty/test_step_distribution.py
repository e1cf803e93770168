"""Which errors an interval is made of: the model's or the profile's, and what a forecast says of it."""

from __future__ import annotations

import math

import pytest

import foretell
from foretell.cost.model import ROOFLINE, load_model
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.result import Forecast
from foretell.forecasting.trainer import TrainerOverhead, same_trainer, trainer_of, trainer_overhead
from foretell.graph.facts import StepFacts
from foretell.plans import Plan, PlanTemplate
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
    model, usual, facts, sharded = load_model(), Conditions(), StepFacts(), Plan(dp=8, zero=3)
    published = trainer_overhead(usual, model, facts, sharded, training=True, profiled=False)
    assert (published.source, published.trainer) == ("published jobs", "unknown")
    assert published.factor == 1 + published.fraction > 1.02
    given = trainer_overhead(Conditions(trainer=0.0), model, facts, sharded, training=True, profiled=False)
    assert given == TrainerOverhead(fraction=0.0, source="conditions")
    script = StepFacts(plan=PlanTemplate(source="train.py", by="script"))
    for no, of in (({"training": False}, facts), ({"profiled": True}, facts), ({}, script)):
        assert (
            trainer_overhead(usual, model, of, sharded, **{"training": True, "profiled": False, **no})
            == TrainerOverhead()
        )
    assert same_trainer(usual, facts, sharded, profiled=False).trainer == "unknown"
    assert same_trainer(usual, facts, sharded, profiled=True) is usual
    assert same_trainer(usual, script, sharded, profiled=False) is usual


def test_a_trainer_is_known_by_the_user_its_file_its_kernels_or_its_engine() -> None:
    megatron, engine = StepFacts(trainer="megatron"), Plan(dp=8, zero=3, sharding="deepspeed")
    assert trainer_of(Conditions(trainer="NeMo"), megatron, engine) == "nemo"
    assert trainer_of(Conditions(), megatron, engine) == "megatron"
    assert trainer_of(Conditions(), StepFacts(), engine) == "deepspeed"
    assert trainer_of(Conditions(), StepFacts(), Plan(dp=8, tp=2)) == "unknown"
    assert trainer_of(Conditions(), StepFacts(), None) == "unknown", "plans of all kinds are compared"
    assert trainer_of(Conditions(), StepFacts(), Plan(dp=8)) is None, "a loop around DDP is what was captured"
