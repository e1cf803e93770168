"""Profiles fitted on steps whose factors we know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell import Plan, Profile, forecast
from foretell.errors import InputError
from foretell.forecasting.forecast import profile_response
from foretell.learn.adapt.candidates import FORMS
from foretell.learn.adapt.choose import choose_steps
from foretell.learn.adapt.fit import _width, fit_profile, prepared
from foretell.learn.adapt.fitted import Fitted
from foretell.learn.adapt.form import Form, worlds
from foretell.learn.adapt.numbers import fit
from foretell.learn.adapt.smooth import OF_STEPS
from foretell.learn.adapt.steps import Prepared, Step, well_spread
from foretell.profile import FAMILIES, Links, Purpose, network_of

from ...parallel.models import graph

CLUSTERS = ("h200", "a100-40g-sxm", "t4", "l4", "v100-32g-sxm")
BUSY = Profile(name="busy", device=8.0, host=0.1)  # small models are host-bound, and this shows their ops


def steps_under(truth: Profile, noise: float = 0.0) -> list[Step]:
    """As if they had been measured on a machine that has these factors."""
    draw = np.random.default_rng(0)
    asked = [(graph(name), on) for name in ("cnn", "llama") for on in CLUSTERS]
    return [
        Step(
            workload=g, on=on, seconds=forecast(g, on, profile=truth).step_time.seconds * np.exp(noise * draw.normal())
        )
        for g, on in asked
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("on", "plan"),
    [("h200", None), ("4xh100-sxm", Plan(dp=2, pp=2, grad_accumulation=4)), ("2xh100-sxm", Plan(tp=2)), ("8xt4", None)],
)
@pytest.mark.parametrize(
    "profile",
    [
        Profile(name="none"),
        Profile(name="parts", device=2.0, host=0.7, communication=3.0, fixed_seconds=0.01),
        replace(BUSY, families={"matmul": 2.0, "elementwise": 0.5}, precisions={"fp32": 1.5}),
        Profile(name="networks", networks={network_of(graph("llama")): 3.0, "another": 9.0}),
        Profile(name="links", communication=20.0, links=Links(crowding=-1.0, neighbours=2.0, bandwidth=0.7)),
    ],
)
def test_a_response_is_what_forecast_says(on: str, plan: Plan | None, profile: Profile) -> None:
    said = forecast(graph("llama"), on, plan, profile=profile).step_time.seconds
    assert profile_response(graph("llama"), on, plan).seconds(profile) == pytest.approx(said, rel=0.02)


def test_known_factors_are_found() -> None:
    truth = Profile(name="truth", device=2.5, host=2.5)
    steps = steps_under(truth, noise=0.01)
    found = fit_profile(steps, name="found", purpose=Purpose(device="lab"), sources=["made up"])
    assert found.card.error_before is not None
    assert found.card.error_after is not None
    assert found.card.error_after < 0.1 < 0.5 < found.card.error_before
    assert found.purpose.device == "lab"
    assert found.card.sources == ("made up",)
    for step in steps:
        assert step.predicted(found) == pytest.approx(step.seconds, rel=0.1)


@pytest.mark.nightly
def test_one_wild_measurement_changes_little() -> None:
    steps = steps_under(Profile(name="truth", device=1.5, host=1.5))
    wild = [replace(steps[0], seconds=10 * steps[0].seconds), *steps[1:]]
    found = fit_profile(wild, name="found")
    errors = [abs(step.predicted(found) / step.seconds - 1) for step in steps[1:]]
    assert np.mean(errors) < 0.1


def test_a_machine_as_the_model_has_it_keeps_its_forecasts() -> None:
    found = fit_profile(steps_under(Profile(name="truth"), noise=0.02), name="found")
    assert found.card.form in ("nothing", "device")
    assert found.device == pytest.approx(1.0, abs=0.03)


def test_never_worse_than_no_profile_on_steps_left_out() -> None:
    """Steps that contradict each other teach nothing."""
    draw = np.random.default_rng(1)
    steps = [replace(s, seconds=s.seconds * np.exp(0.3 * draw.normal())) for s in steps_under(Profile(name="truth"))]
    card = fit_profile(steps, name="found").card
    assert card.error_before is not None
    assert card.error_after is not None
    assert card.error_after <= card.error_before


@pytest.mark.nightly
def test_an_interval_holds_most_steps_left_out() -> None:
    steps = steps_under(Profile(name="truth", host=2.0), noise=0.1)
    width = fit_profile(steps, name="found").intervals.width
    assert width is not None
    assert 0.05 < width < 0.5


def test_communication_is_fitted_from_steps_of_several_devices() -> None:
    truth = Profile(name="truth", communication=30.0)
    clusters = [f"1x{n}xt4@{link}" for n in (2, 4, 8) for link in ("pcie-3", "pcie-4")]
    steps = [Step(workload=graph("llama"), on=on, plan=f"dp={on[2]},zero=3", seconds=1.0) for on in clusters]
    steps = [replace(s, seconds=s.predicted(truth)) for s in steps]
    ready = prepared(steps)
    form = Form(levels=("device", "communication"))
    found = fit(form, [p.response for p in ready], np.array([p.seconds for p in ready])).profile("found")
    assert found.communication == pytest.approx(30, rel=0.3)
    assert found.device == pytest.approx(1, rel=0.3)


def test_links_are_fitted_from_steps_of_several_placements() -> None:
    """Devices that share a bus less than is usual, and nodes that are further apart."""
    truth = Profile(name="truth", host=0.1, communication=50.0, links=Links(crowding=-1.5, neighbours=4.0))
    steps = [
        Step(workload=graph("llama"), on=f"{nodes}x{n}xt4", plan=f"dp={nodes * n},zero=3", seconds=1.0)
        for nodes in (1, 2) for n in (2, 4, 8)
    ]  # fmt: skip
    ready = prepared([replace(s, seconds=s.predicted(truth)) for s in steps])
    form = Form(levels=("device", "host", "communication", "links"))
    found = fit(form, [p.response for p in ready], np.array([p.seconds for p in ready])).profile("found")
    assert found.links.crowding < -0.7
    assert found.links.neighbours > 2
    for p in ready:
        assert p.response.seconds(found) == pytest.approx(p.seconds, rel=0.1)


def test_so_many_ranks_have_factors_of_their_own(tmp_path: Path) -> None:
    """As three devices of which two share a bridge: nothing between two and four says it."""
    truth = Profile(name="truth", host=0.1, communication=30.0, communication_of_ranks={"3": 3.0})
    asked = [(name, n, link) for name in ("cnn", "llama") for n in (2, 3, 4) for link in ("pcie-3", "pcie-4")]
    steps = [
        Step(workload=graph(name), on=f"1x{n}xt4@{link}", plan=f"dp={n},zero=3", seconds=1.0) for name, n, link in asked
    ]
    ready = prepared([replace(s, seconds=s.predicted(truth)) for s in steps])
    responses = [p.response for p in ready]
    assert not worlds(responses[::2]), "two steps of each say too little"
    form = Form(levels=("device", "host", "communication", "ranks"))
    found = fit(form, responses, np.array([p.seconds for p in ready])).profile("found")
    factors = found.of_ranks("communication")
    assert factors[3] / factors[2] == pytest.approx(3.0, rel=0.25)
    loaded = Profile.load(found.save(tmp_path / "found.toml"))
    assert loaded == found
    for step, p in zip(steps, ready, strict=True):
        assert p.response.seconds(loaded) == pytest.approx(p.seconds, rel=0.1)
        assert step.predicted(loaded) == pytest.approx(p.response.seconds(loaded), rel=0.02)


@pytest.mark.nightly
def test_a_network_that_was_measured_has_a_factor_of_its_own() -> None:
    """As where nobody says how large the pictures of a job are: other jobs are as they were."""
    truth = Profile(name="truth", networks={network_of(graph("cnn")): 4.0})
    steps = steps_under(truth, noise=0.02)
    found = fit_profile([s for s in steps if s.on != "t4"], name="found")
    for step in steps:
        assert step.predicted(found) == pytest.approx(step.seconds, rel=0.15)
    assert found.card.error_measured is not None
    assert found.card.error_measured < 0.1


@pytest.mark.nightly
def test_a_network_may_have_seconds_that_no_batch_changes(tmp_path: Path) -> None:
    """As a job that waits for its data, whatever the batch; the other job does not."""
    cnn = network_of(graph("cnn"))
    usual = steps_under(Profile(name="usual"))
    waits = sorted(step.seconds for step in usual[: len(CLUSTERS)])[len(CLUSTERS) // 2]
    steps = steps_under(Profile(name="waiting", network_seconds={cnn: waits}, networks={cnn: 1.0}), noise=0.01)
    found = fit_profile(steps, name="found")
    kept = Profile.load(found.save(tmp_path / "found.toml"))
    assert kept.network_seconds == found.network_seconds
    assert 0.3 * waits < kept.network_seconds[cnn] < 1.5 * waits
    missed, before = (
        np.mean([abs(np.log(step.predicted(p) / step.seconds)) for step in steps]) for p in (kept, Profile(name="none"))
    )
    assert missed < 0.3 * before


def test_a_profile_of_another_cluster_is_what_one_starts_from(tmp_path: Path) -> None:
    """What is known of networks there needs no step times here."""
    slow = Profile(name="old", networks={network_of(graph("cnn")): 4.0, network_of(graph("llama")): 0.5})
    start = Profile.load(slow.save(tmp_path / "old.toml"))
    here = replace(slow, device=1.5, host=1.5)
    steps = steps_under(here)
    measured, asked = steps[: len(CLUSTERS)], steps[-1]  # of the one network, and of the other
    alone, started = fit_profile(measured, name="alone"), fit_profile(measured, name="found", start=start)
    assert started.card.start == "old"
    missed = [abs(np.log(asked.predicted(each) / asked.seconds)) for each in (alone, started)]
    assert missed[1] < 0.2 < missed[0]


def test_a_start_with_measured_links_is_refused() -> None:
    start = Profile(name="wires", links=Links(bandwidth=0.5))
    with pytest.raises(InputError, match="links of measured collectives"):
        fit_profile(steps_under(Profile(name="none"))[:4], name="found", start=start)


def test_a_profile_with_residuals_is_saved_and_loaded(tmp_path: Path) -> None:
    """Steps of small batches are slower than any factor says; the residual model knows."""
    steps = steps_under(BUSY)
    odd = [replace(s, seconds=s.seconds * (1.5 if "t4" in str(s.on) or "l4" in str(s.on) else 1.0)) for s in steps]
    found = fit_profile(odd, name="found")
    assert found.residuals is not None
    loaded = Profile.load(found.save(tmp_path / "found.toml"))
    assert loaded == found
    ready = prepared(odd)
    for step, each in zip(odd, ready, strict=True):
        assert step.predicted(loaded) == pytest.approx(each.response.seconds(found), rel=0.02)


class DeviceBound:
    """A step of nothing but ops, so many seconds of each family."""

    communication, precision, network, ranks = 0.0, "fp32", "any", 1

    def __init__(self, device: np.ndarray, features: dict[str, float] | None = None) -> None:
        self.device, self.features = device, features

    def knot(self, host: int, communication: int) -> float:
        return float(np.log(self.device.sum()))


def test_a_family_that_is_far_off_is_found_among_many_that_are_not() -> None:
    """Half of the steps have it, and all of those are far off: they are not wild."""
    draw = np.random.default_rng(0)
    shares = draw.dirichlet(np.full(len(FAMILIES), 0.3), 16)
    odd = FAMILIES.index("channels_last_grouped_convolution")
    shares[:8, odd] += 0.4
    factors = np.where(np.arange(len(FAMILIES)) == odd, 5.0, 1.0)
    measured = shares @ factors * np.exp(0.03 * draw.normal(size=16))
    steps: list[Any] = [DeviceBound(np.append(each, 0.0)) for each in shares]
    found = fit(Form(levels=("device", "kinds", "families")), steps, measured).profile("found")
    assert found.families["channels_last_grouped_convolution"] * found.device == pytest.approx(5.0, rel=0.15)
    assert found.device_factor("matmul", "fp32") == pytest.approx(1.0, rel=0.1)


def _scattered(draw: np.random.Generator, count: int) -> list[Prepared]:
    """Device-bound steps by whose forecasts nothing is wrong but scatter."""
    shares = draw.dirichlet(np.full(len(FAMILIES), 0.3), count)
    responses: list[Any] = [
        DeviceBound(np.append(each, 0.0), {name: unit * draw.normal() for name, unit in OF_STEPS.units.items()})
        for each in shares
    ]
    return [
        Prepared(seconds=float(np.exp(0.07 * draw.normal())), network=str(i), response=r)
        for i, r in enumerate(responses)
    ]


def test_five_steps_of_good_forecasts_change_them_little() -> None:
    """Each draw of five agrees on something by chance."""
    worse = []
    for seed in range(6):
        draw = np.random.default_rng(seed)
        worse.append(_worse(fit_profile(_scattered(draw, 5), name="found"), _scattered(draw, 40)))
    assert np.mean(worse) < 0.01
    assert max(worse) < 0.03


def _worse(found: Profile, others: Sequence[Prepared]) -> float:
    """By how much the mean error of others is larger than with no profile."""
    measured = np.array([p.seconds for p in others])
    factors = [found.device_factor(family, "fp32") for family in FAMILIES]
    said = np.array([float(p.response.device[:-1] @ factors) for p in others])
    if found.residuals is not None:
        said *= np.exp([found.residuals.log_factor(p.response.features) for p in others])
    return float(np.abs((said + found.fixed_seconds) / measured - 1).mean() - np.abs(1 / measured - 1).mean())


def test_very_different_jobs_in_one_profile_are_not_worse_than_none() -> None:
    """Half of them take up to twenty times as long as forecast, for reasons that no number of theirs says."""

    def jobs(draw: np.random.Generator, count: int) -> list[Prepared]:
        slow = np.where(draw.random(count) < 0.5, draw.uniform(0.5, 3.0, count), 0.0)
        every = zip(_scattered(draw, count), np.exp(slow).tolist(), strict=True)
        return [replace(job, seconds=job.seconds * times) for job, times in every]

    for seed in range(4):
        draw = np.random.default_rng(seed)
        found = fit_profile(jobs(draw, 60), name="found")
        assert found.card.error_before is not None
        assert found.card.error_after is not None
        assert found.card.error_after <= found.card.error_before
        assert _worse(found, jobs(draw, 60)) < 0.02


def test_a_trend_over_batches_goes_on_beyond_those_that_were_measured() -> None:
    """A job whose steps grow with the root of its batch, which no factor says."""
    draw = np.random.default_rng(0)

    def job(samples: float, step: int) -> Prepared:
        features = dict.fromkeys(OF_STEPS.units, 0.0) | {"samples": samples, "device": samples}
        response: Any = DeviceBound(np.eye(len(FAMILIES) + 1)[0] * np.exp(samples), features)
        seconds = float(np.exp(0.5 * samples + 0.02 * draw.normal()))
        return Prepared(seconds=seconds, network=str(step), response=response)

    found = fit_profile([job(samples, step) for step, samples in enumerate(np.linspace(0.0, 3.0, 16))], name="found")
    assert found.residuals is not None
    assert found.residuals.slopes
    further = job(4.5, 99)
    said = further.response.device[0] * found.device_factor(FAMILIES[0], "fp32")
    said = (said + found.fixed_seconds) * np.exp(found.residuals.log_factor(further.response.features))
    assert said == pytest.approx(further.seconds, rel=0.25)


def test_forms_are_put_together_as_their_mean() -> None:
    ready = prepared(steps_under(Profile(name="truth", device=2.0, host=2.0)))
    forms = [fit(form, [p.response for p in ready], np.array([p.seconds for p in ready])) for form in FORMS[:2]]
    half = Fitted.mean(forms, np.array([0.5, 0.5])).profile("half")
    assert half.device == pytest.approx(forms[1].profile("whole").device ** 0.5)


@pytest.mark.parametrize(("number", "least", "most"), [(2, 0.2, 0.45), (200, 0.2, 0.25)])
def test_an_interval_of_few_steps_is_wider(number: int, least: float, most: float) -> None:
    """Of errors that are 0.1 in the mean: 90 % of Laplace's lie within 0.23."""
    assert least < _width(np.full(number, 0.1)) < most


def test_memory_that_was_measured_is_fitted() -> None:
    steps = [
        replace(s, allocated=round(1.3 * forecast(s.workload, s.on).memory.allocated))
        for s in steps_under(Profile(name="truth"))[:5]
    ]
    memory = fit_profile(steps, name="found").memory
    assert memory.allocated == pytest.approx(1.3, rel=0.01)
    assert memory.reserved == 1.0, "nobody measured it"


def test_nothing_to_fit_on_is_an_error() -> None:
    with pytest.raises(InputError, match="there are none"):
        fit_profile([], name="none")


def test_chosen_steps_differ() -> None:
    steps = steps_under(BUSY)
    ready = prepared([*steps, *steps])  # everything twice
    chosen = choose_steps(ready, 4)
    assert len({ready[i].network for i in chosen}) == 2
    assert len({i % len(steps) for i in chosen}) == 4
    assert len(choose_steps(ready, 100)) == len(ready)
    assert choose_steps(ready, 3, costs=[1.0] * len(ready), budget=2.5) == chosen[:2]


def test_some_of_many_steps() -> None:
    keys = [(f"dp={1 + i % 3}", float(i)) for i in range(100)]
    chosen = well_spread(keys, most=10)
    assert len(set(chosen)) == 10
    assert {keys[i][0] for i in chosen} == {"dp=1", "dp=2", "dp=3"}
    assert sorted(well_spread(keys[:5])) == [0, 1, 2, 3, 4]
