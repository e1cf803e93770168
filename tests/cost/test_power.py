"""Power of a board: more while kernels run, more for what they use of it, never above its limit."""

from __future__ import annotations

import pytest

import foretell
from foretell.cost.power import Use, carried, shipped_power, use_of
from foretell.hardware import device
from foretell.methods.conformance import perceptron

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
