"""Intervals of several ranks: errors of parts through the simulator, scaled by errors on published jobs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

import foretell
from foretell.cost.model import load_model
from foretell.distribution import interval
from foretell.errors import InputError, ModelError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import step_error
from foretell.forecasting.run import run
from foretell.forecasting.uncertainty.jobs import FILE, PartsError, PublishedJobs, Source, jobs_of
from foretell.hardware import Cluster
from foretell.learn.uncertainty.jobs import FLOORS, JobError, calibrate_jobs, leave_sources_out, save_jobs
from foretell.parallel import parallelize
from foretell.plans import Plan
from tests.parallel.models import graph

EVEN = PartsError(shorter=0.1, longer=0.1)


def jobs(source: str, *errors: float, of: PartsError = EVEN) -> list[JobError]:
    return [JobError(source=source, measured=math.exp(e), predicted=1.0, parts=of) for e in errors]


def test_a_slow_network_makes_a_step_less_sure_and_one_device_has_none() -> None:
    fast, slow = (
        step_error(graph("llama"), f"2x8xa100-80g-sxm@{link}", "dp=16,zero=3") for link in ("ib-400g", "eth-1g")
    )
    assert fast is not None
    assert slow is not None
    assert slow.longer > fast.longer > 0
    assert step_error(graph("llama"), "2xa100-80g-sxm", model="roofline") is None


def test_several_devices_have_an_interval_that_says_what_it_rests_on() -> None:
    for on in ("2xh200", "2x8xa100-80g-sxm"):
        f = foretell.forecast(graph("llama"), on=on)
        for time in (f.step_time, f.device_time, f.exposed_communication, f.stragglers):
            assert time.low is not None
            assert time.high is not None
            assert time.low <= time.seconds <= time.high
        [text] = [c.text for c in f.caveats if c.code == "calibrated-by-jobs"]
        assert "published jobs" in text
        assert not any(c.code in ("not-calibrated", "calibrated-elsewhere") for c in f.caveats)


def test_a_model_without_errors_on_jobs_gives_none(tmp_path: Path) -> None:
    model = dataclasses.replace(load_model(), folder=tmp_path)
    f = foretell.forecast(graph("llama"), on="2xh200", model=model)
    assert f.step_time.low is None
    assert any(c.code == "not-calibrated" for c in f.caveats)


@pytest.mark.parametrize("plan", ["dp=2,tp=2", "dp=2,pp=2,grad_accumulation=4"])
def test_a_run_simulated_again_takes_as_long_and_longer_on_a_slower_host_or_network(plan: str) -> None:
    cluster, model, asked = Cluster.parse("4xl40s"), load_model(), Plan.parse(plan)
    program = parallelize(graph("llama"), asked)
    ran = run(program, cluster, model, Conditions())
    assert ran.under(program) == pytest.approx(ran.timeline.period)
    for slower in ({"host": 3.0}, {"communication": 30.0}):
        assert ran.under(program, **slower) > ran.timeline.period


def test_every_source_counts_as_one() -> None:
    often = PublishedJobs(
        sources=[Source(name="a", errors=[0.0] * 100), Source(name="b", errors=[1.0, 1.0])], floor=0.1
    )
    low, high = often.quantiles()
    assert (low, high) == (0.0, 1.0)
    seconds, wide = 2.0, PartsError(shorter=0.3, longer=0.4)
    assert interval(often.step_time(seconds, wide)) == pytest.approx((2.0, 2.0 * math.exp(math.hypot(0.4, 0.1))))


def test_what_jobs_took_longer_in_the_middle_is_what_their_trainers_add() -> None:
    found = calibrate_jobs([*jobs("a", 0.1, 0.2, 0.4), *jobs("b", *[1.0] * 10), *jobs("c", 0.0)])
    assert found.trainer_overhead == pytest.approx(math.expm1(0.2), abs=1e-4)
    low, high = interval(found.step_time(1.0 + found.trainer_overhead, EVEN))
    assert low < 1.0 + found.trainer_overhead < high
    assert calibrate_jobs(jobs("a", -0.2)).trainer_overhead == 0.0  # none is faster than its steps


def test_a_trainer_adds_to_steps_of_several_ranks_and_a_profile_knows_its_own(tmp_path: Path) -> None:
    model = dataclasses.replace(load_model(), folder=tmp_path)
    save_jobs(calibrate_jobs(jobs("a", 0.1, 0.2, 0.3)), model)
    f, bare = (
        foretell.forecast(graph("llama"), on="2xh200", model=model, conditions=conditions)
        for conditions in (None, Conditions(trainer=0.0))
    )
    assert f.step_time.seconds == pytest.approx(bare.step_time.seconds * math.exp(0.2), rel=1e-3)
    assert f.trainer.seconds == pytest.approx(f.step_time.seconds - bare.step_time.seconds)
    assert bare.trainer.seconds == 0.0
    own = foretell.Profile(name="mine")
    for on, profile in (("h200", None), ("2xh200", own)):
        assert foretell.forecast(graph("llama"), on=on, model=model, profile=profile).trainer.seconds == 0.0


def test_a_source_that_is_left_out_says_nothing_of_its_own_jobs() -> None:
    calm, wild = jobs("calm", -0.05, 0.0, 0.05), jobs("wild", -0.8, 0.0, 0.8)
    found = [interval(each.step_time) for each in leave_sources_out([*calm, *wild]) if each.step_time]
    assert all(high / low > 3 for low, high in found[:3])
    assert all(high / low < 1.2 for low, high in found[3:])
    late = leave_sources_out([*calm, *jobs("late", 0.5)])
    assert [each.seconds for each in late] == pytest.approx([math.exp(0.5)] * 3 + [1.0], rel=1e-3)
    with pytest.raises(InputError, match="got none"):
        calibrate_jobs([])


def test_what_no_part_says_is_found_inside_the_range_that_is_searched() -> None:
    """It was 0.5 once, where the search ended."""
    shipped = jobs_of(load_model())
    assert shipped is not None
    assert FLOORS[0] < shipped.floor < FLOORS[-1]
    loose = PartsError(shorter=1.0, longer=1.0)  # of a job that is no farther off than the others
    found = calibrate_jobs([*jobs("a", -1.0, -0.5, 0.0, 0.5, 1.0), *jobs("b", 0.0, 0.1, of=loose)])
    assert found.floor > 0.5, "where parts say nothing, all jobs are as sure"


def test_errors_of_jobs_are_kept_with_a_model_and_strange_ones_refused(tmp_path: Path) -> None:
    model = dataclasses.replace(load_model(), folder=tmp_path)
    found = calibrate_jobs([*jobs("a", 0.1, -0.1), *jobs("b", 0.2)])
    assert PublishedJobs.load(save_jobs(found, model)).floor == found.floor
    for text in ('{"floor": 0.1, "sources": []}', '{"floor": -1, "sources": [{"name": "a", "errors": [1]}]}', "[]"):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ModelError, match=r"jobs\.json"):
            PublishedJobs.load(tmp_path / FILE)
