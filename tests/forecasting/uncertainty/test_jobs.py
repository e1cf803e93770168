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
from foretell.trainers import KINDS, Kind
from tests.parallel.models import graph

EVEN = PartsError(shorter=0.1, longer=0.1)


def jobs(source: str, *errors: float, kind: Kind | None = "loop", of: PartsError | None = EVEN) -> list[JobError]:
    return [JobError(source=source, kind=kind, measured=math.exp(e), predicted=1.0, parts=of) for e in errors]


def sharded(on: str = "2xh200", **more: object) -> foretell.Forecast:
    return foretell.forecast(graph("llama"), on=on, plan="dp=2,zero=3", **more)


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


def test_what_trainers_of_a_kind_add_is_what_their_jobs_took_longer() -> None:
    tuned = [jobs(name, *[e] * 5, kind="tuned") for name, e in (("a", 0.0), ("b", 0.02), ("c", -0.02))]
    slow = [jobs(name, *[e] * 5, kind="engine") for name, e in (("d", 0.28), ("e", 0.3), ("f", 0.32))]
    found = calibrate_jobs([job for each in (*tuned, *slow) for job in each])
    assert found.overhead("tuned").fraction < 0.03
    assert found.overhead("engine").added == pytest.approx(0.3, abs=0.03)
    unknown = found.overhead(None)
    assert unknown.added == pytest.approx(0.15, abs=0.03)
    assert unknown.spread > 2 * found.overhead("tuned").spread, "which of the kinds it is, nobody knows"
    assert found.overhead("plain").spread > found.overhead("tuned").spread, "no job says it"
    assert calibrate_jobs(jobs("a", -0.2)).overhead("loop").fraction == 0.0  # none is faster than its steps


def test_a_source_counts_as_one_unit_however_many_jobs_it_has() -> None:
    often = calibrate_jobs([*jobs("a", *[0.3] * 50), *jobs("b", *[0.1] * 5), *jobs("c", *[0.1] * 5)])
    assert often.overhead("loop").added < 0.2


def test_errors_are_those_of_a_source_that_is_new() -> None:
    """Jobs of two documents, each far from the other: either is predicted from the other one."""
    found = calibrate_jobs([*jobs("a", *[0.0] * 5), *jobs("b", *[0.3] * 5)])
    alike = calibrate_jobs([*jobs("a", *[0.15] * 5), *jobs("b", *[0.15] * 5)])
    assert found.overhead("loop").spread > 2 * alike.overhead("loop").spread
    wide, narrow = (known.step_time(1.0, EVEN, known.overhead("loop").spread) for known in (found, alike))
    assert wide.above > 0.3 > narrow.above


def test_a_trainer_adds_to_plans_that_shard_and_a_profile_knows_its_own(tmp_path: Path) -> None:
    model = dataclasses.replace(load_model(), folder=tmp_path)
    save_jobs(calibrate_jobs([*jobs("a", 0.1, 0.2, 0.3), *jobs("b", 0.2)]), model)
    f, bare = (sharded(model=model, conditions=conditions) for conditions in (None, Conditions(trainer=0.0)))
    assert f.step_time.seconds > bare.step_time.seconds * 1.1
    assert f.trainer.seconds == pytest.approx(f.step_time.seconds - bare.step_time.seconds)
    assert bare.trainer.seconds == 0.0
    assert sharded(model=model, profile=foretell.Profile(name="mine")).trainer.seconds == 0.0


@pytest.mark.parametrize("trainer", [None, "unknown", "plain", 0.1])
def test_a_trainer_adds_the_same_part_on_one_device_and_on_several(trainer: str | float | None) -> None:
    """One device was forecast bare and several with 17 % on top."""
    one, several = (
        foretell.forecast(graph("llama"), on=on, conditions=Conditions(trainer=trainer)) for on in ("h200", "8xl4")
    )
    parts = [f.trainer.seconds / (f.step_time.seconds - f.trainer.seconds) for f in (one, several)]
    assert parts[0] == pytest.approx(parts[1])
    assert bool(parts[0]) is (trainer is not None)


def test_recipes_say_something_of_whoever_runs_megatron_and_not_the_other_way() -> None:
    recipes = [jobs(name, *[0.0] * 5, kind="recipe") for name in ("a", "b")]
    others = [jobs(name, *[0.2] * 5, kind="tuned") for name in ("c", "d")]
    found = calibrate_jobs([job for each in (*recipes, *others) for job in each])
    assert found.overhead("recipe").fraction < 0.06 < found.overhead("tuned").fraction < 0.18


def test_recipes_add_less_than_who_runs_them_and_one_that_is_not_known_is_least_sure() -> None:
    shipped = jobs_of(load_model())
    assert shipped is not None
    recipe, unknown = shipped.overhead("recipe"), shipped.overhead(None)
    assert recipe.fraction < shipped.overhead("tuned").fraction < shipped.overhead("engine").fraction
    assert all(unknown.spread > shipped.overhead(kind).spread for kind in KINDS)
    named, other = (sharded(conditions=Conditions(trainer=name)) for name in ("NeMo", "unknown"))
    assert named.step_time.seconds < other.step_time.seconds
    assert "nemo" in next(c.text for c in named.caveats if c.code == "trainer-added") or not named.trainer.seconds
    wide = [f.step_time.high / f.step_time.low for f in (named, other) if f.step_time.high and f.step_time.low]
    assert wide[0] < wide[1]
    given = sharded(conditions=Conditions(trainer=0.1)).step_time
    assert given.low is not None
    assert given.low < 0.95 * given.seconds, "a number is no surer than the surest trainer"


def test_a_name_that_no_trainer_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="Did you mean 'megatron'"):
        Conditions(trainer="megatorn")


def test_a_source_that_is_left_out_says_nothing_of_its_own_jobs() -> None:
    calm, wild = jobs("calm", -0.05, 0.0, 0.05), jobs("wild", -0.8, 0.0, 0.8)
    found = [interval(each.step_time) for each in leave_sources_out([*calm, *wild]) if each.step_time]
    assert all(high / low > 3 for low, high in found[:3])
    late = leave_sources_out([*calm, *jobs("late", 0.5)])
    assert [each.seconds for each in late[:3]] == pytest.approx([math.exp(0.5)] * 3, rel=0.02)
    assert late[3].seconds == pytest.approx(1.0, abs=0.02)
    with pytest.raises(InputError, match="got none"):
        calibrate_jobs([])


def test_jobs_of_one_device_say_what_their_trainer_adds_and_have_no_parts() -> None:
    single = jobs("a", *[0.2] * 5, kind="plain", of=None)
    left_out = leave_sources_out([*single, *jobs("b", *[0.1] * 5, kind="plain")])
    assert left_out[0].step_time is None
    assert left_out[-1].seconds == pytest.approx(math.exp(0.2), rel=0.02)


def test_what_no_part_says_is_found_inside_the_range_that_is_searched() -> None:
    """It was 0.5 once, where the search ended."""
    shipped = jobs_of(load_model())
    assert shipped is not None
    assert (
        FLOORS[0] <= shipped.floor <= FLOORS[-1]
    )  # the least: trainers differ by all of it; the most: all are as sure
    loose = PartsError(shorter=1.0, longer=1.0)  # of a job that is no farther off than the others
    found = calibrate_jobs([*jobs("a", -1.0, -0.5, 0.0, 0.5, 1.0), *jobs("b", 0.0, 0.1, of=loose)])
    assert found.floor > 0.5, "where parts say nothing, all jobs are as sure"


def test_errors_of_jobs_are_kept_with_a_model_and_strange_ones_refused(tmp_path: Path) -> None:
    model = dataclasses.replace(load_model(), folder=tmp_path)
    found = calibrate_jobs([*jobs("a", 0.1, -0.1), *jobs("b", 0.2)])
    assert PublishedJobs.load(save_jobs(found, model)).trainers == found.trainers
    for text in ('{"floor": 0.1, "sources": []}', '{"floor": -1, "sources": [{"name": "a", "errors": [1]}]}', "[]"):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ModelError, match=r"trainers\.json"):
            PublishedJobs.load(tmp_path / FILE)


def test_files_with_one_number_for_all_trainers_are_read() -> None:
    for name in ("trainer_overhead", "lost"):  # as models up to h200-2026.11.2 and h200-2026.11 have it
        old = PublishedJobs.parse({"floor": 0.1, "sources": [{"name": "a", "errors": [1]}], name: 0.17})
        assert [old.overhead(kind).fraction for kind in (*KINDS, None)] == pytest.approx([0.17] * (len(KINDS) + 1))
