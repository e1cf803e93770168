"""The one way from graph, device and model to step seconds is the forecast's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell import Profile, forecast
from foretell.cost.model import load_model
from foretell.forecasting.step import SLOWER, one_device_step
from foretell.graph import Graph
from foretell.hardware import device
from foretell.methods.conformance import perceptron

H200 = device("h200")


@pytest.fixture(scope="module", params=[(256, 8), (8192, 4096)], ids=["host-bound", "device-bound"])
def graph(request: pytest.FixtureRequest) -> Graph:
    width, batch = request.param
    return perceptron(width, layers=4, batch=batch)


def test_a_step_on_one_device_is_what_a_forecast_says(graph: Graph) -> None:
    step, found = one_device_step(graph, H200, load_model()), forecast(graph, "h200")
    assert step.step_seconds == pytest.approx(found.step_time.seconds, rel=1e-9)
    assert step.device_seconds == pytest.approx(found.device_time.seconds, rel=1e-9)
    assert step.host_seconds == pytest.approx(found.host_time.seconds, rel=1e-9)
    assert sum(step.families.values()) == pytest.approx(step.device_seconds)


def test_a_slower_device_makes_no_step_shorter(graph: Graph) -> None:
    step = one_device_step(graph, H200, load_model())
    curve = step.curve()
    assert [factor for factor, _ in curve] == list(SLOWER)
    times = [seconds for _, seconds in curve]
    assert times == pytest.approx(sorted(times), rel=1e-12)
    assert dict(curve)[1.0] == step.step_seconds
    assert dict(step.curve(step_seconds=7.0))[1.0] == 7.0, "what is known is not simulated again"


def test_what_no_model_knows_is_a_share_that_no_profile_changes() -> None:
    graph = perceptron(2048, layers=2, batch=64)
    odd = replace(graph.ops[1].signature, target="aten.linalg_qr.default")
    strange = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], signature=odd), *graph.ops[2:]))
    step = one_device_step(strange, H200, load_model())
    assert 0 < step.unknown < 1
    widths = []
    for factor in (1.0, 2.0):
        found = forecast(strange, "h200", profile=Profile(name="slower", device=factor)).device_time
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high / found.low)
    assert widths[0] == pytest.approx(widths[1])
