"""Power of a board: more while kernels run, more for what they use of it, never above its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.cost.folder import SHIPPED
from foretell.cost.power import Use, carried, power_in, shipped_power, use_of
from foretell.hardware import device
from foretell.methods.conformance import perceptron

WITH_LIMIT = "h200-2026.11.10"
NOTHING = Use(busy=0.0, units={}, memory=0.0)


def test_a_board_draws_more_the_more_of_it_is_used() -> None:
    power = shipped_power()
    idle = power.share(NOTHING)
    busy = power.share(Use(busy=1.0, units={}, memory=0.0))
    copying = power.share(Use(busy=1.0, units={}, memory=0.4))
    multiplying = power.share(Use(busy=1.0, units={"bf16": 0.4}, memory=0.0))
    assert 0.1 < idle < busy < min(copying, multiplying)
    assert max(copying, multiplying) < 1.0
    assert power.share(Use(busy=1.0, units={"bf16": 0.9}, memory=0.9)) == power.most < 1.0


def test_use_is_counted_at_the_rate_of_the_unit_that_runs_it() -> None:
    h200, graph = device("h200"), perceptron(512, layers=3, batch=64)
    use = use_of(graph, h200, busy=1e-3)
    assert use.units["fp32"] > 0
    assert use.units["bf16"] == 0
    assert use.over(2e-3, times=2).memory == use.memory * 1e3
    assert use.over(2e-3, times=2).busy == 0.5


def test_a_language_model_in_training_draws_near_the_limit() -> None:
    """Steps of a Llama of 1 B drew 675 W of the 700 of an H200."""
    job = foretell.forecast(
        "hf/llama-3.2-1b", on="h100-sxm", settings={"precision": "bf16", "batch": 4, "seq": 2048, "layers": 4}
    )
    assert job.energy is not None
    assert 560 < job.energy.watts < 700
    small = foretell.forecast(perceptron(64, layers=3, batch=4), on="h100-sxm")
    assert small.energy is not None
    assert small.energy.watts < 350


def test_a_byte_costs_the_same_energy_on_every_board() -> None:
    """Memory took the same part of every board's limit, so 32 public runs on V100 and A40 were 13 % off, and are 7 %."""
    use = Use(busy=1.0, units={}, memory=0.5)
    h200, a40 = device("h200"), device("a40")
    assert carried(use, h200) == use
    joules = [carried(use, d).memory * d.power_watts / (0.5 * d.bandwidth) for d in (h200, a40)]
    assert joules[0] == pytest.approx(joules[1])
    assert shipped_power().share(carried(use, a40)) < shipped_power().share(use)


def test_what_would_draw_more_than_the_limit_takes_longer() -> None:
    """An H200 runs products at 784 TFLOP/s for a moment and at 670 for seconds, where they were forecast as for a moment."""
    power = power_in(SHIPPED / WITH_LIMIT)
    assert power is not None
    product = Use(busy=1.0, units={"bf16": 0.79}, memory=0.06)
    light = Use(busy=1.0, units={"bf16": 0.2}, memory=0.1)
    assert power.times_longer(light) == 1.0
    assert 1.08 < power.times_longer(product) < 1.2
    assert power.share(product) == power.most < power.wanted(product)
    assert replace(power, follows=0.0).times_longer(product) == 1.0, "as in models of before"


def test_a_trainers_job_goes_on_and_a_bare_step_does_not() -> None:
    settings = {"precision": "bf16", "batch": 2, "seq": 4096, "layers": 4}
    bare, run = (
        foretell.forecast(
            "hf/llama-3-8b",
            on="h100-sxm",
            settings=settings,
            conditions=foretell.Conditions(trainer=who),
            model=WITH_LIMIT,
        )
        for who in (None, "torchtitan")
    )
    assert run.device_time.seconds > 1.02 * bare.device_time.seconds
    assert "power-limit" in {c.code for c in run.caveats}
    assert "power-limit" not in {c.code for c in bare.caveats}
    others = [
        foretell.forecast(
            "hf/llama-3-8b",
            on="a100-80g-sxm",
            settings=settings,
            conditions=foretell.Conditions(trainer=who),
            model=WITH_LIMIT,
        )
        for who in (None, "torchtitan")
    ]
    assert others[0].device_time.seconds == others[1].device_time.seconds, "what it attains is at its clock already"
