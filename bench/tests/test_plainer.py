"""Additive and FLOP-linear rivals: they keep to the protocol, and see precision and devices as ScaleDL does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from foretell_bench.methods.plainer import Additive, FlopLinear, Roofline

from foretell.hardware import Cluster
from foretell.methods.conformance import CHECKS, check, made_up, perceptron
from foretell.methods.protocol import STEP_TIME, Example, Query
from foretell.plans import Plan
from foretell.precision import Precision

RATES = {"fp32": 1.0, "tf32": 0.25}


def step(width: int, precision: str, devices: int = 1) -> Example:
    """Products alone take time, a quarter of it where they run in TF32; on two devices gradients add to it."""
    graph = replace(perceptron(width, layers=3, batch=64), precision=Precision.parse(precision))
    seconds = 1e-10 * width**2 * RATES[precision] + 1e-5 + 3e-11 * graph.bytes_of("parameter") * (devices - 1)
    query = Query(architecture=f"net-{width}", plan=Plan(dp=devices), cluster=Cluster.parse(f"{devices}xh200"), graph=graph,
                  batch=64.0 * devices)  # fmt: skip
    return Example(query=query, measured={STEP_TIME: seconds})


@pytest.mark.parametrize("rival", [Additive, FlopLinear, Roofline])
def test_they_keep_to_the_protocol(rival: type[Additive]) -> None:
    assert check(rival) == tuple(CHECKS)


@pytest.mark.parametrize("rival", [Additive, FlopLinear])
def test_a_precision_has_a_rate_of_its_own(rival: type[Additive]) -> None:
    known = [step(width, precision) for width in (512, 1024, 2048, 4096) for precision in RATES]
    unseen = [step(3072, precision) for precision in RATES]
    predicted = rival().fit(known).predict([e.query for e in unseen])
    for answer, e in zip(predicted, unseen, strict=True):
        assert answer.values[STEP_TIME] == pytest.approx(e.measured[STEP_TIME], rel=0.3)


def test_what_devices_exchange_has_a_rate_of_its_own() -> None:
    known = [step(width, "fp32", devices) for width in (512, 1024, 2048, 4096) for devices in (1, 2)]
    unseen = [step(3072, "fp32", devices) for devices in (1, 2)]
    predicted = Additive().fit(known).predict([e.query for e in unseen])
    for answer, e in zip(predicted, unseen, strict=True):
        assert answer.values[STEP_TIME] == pytest.approx(e.measured[STEP_TIME], rel=0.1)


def test_a_plan_that_is_not_modelled_has_a_reason() -> None:
    odd = replace(made_up()[0].query, plan=Plan(dp=1, offload="parameters"))
    [answer] = Additive().fit(made_up()).predict([odd])
    assert answer.values or answer.why
