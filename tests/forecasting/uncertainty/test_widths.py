"""How wide intervals are on boards from Turing on: as published steps allow, and with a reason where they are wider."""

from __future__ import annotations

import pytest
import torch

import foretell
from foretell.capture import capture
from foretell.forecasting.uncertainty import WIDE_INTERVAL, WIDEST
from foretell.graph.graph import Graph
from tests.laws.steps import captured

pytestmark = pytest.mark.slow  # steps are captured
BOARDS = "t4 rtx-2080-ti a10 a100-80g-sxm rtx-3090 rtx-a6000 l40s rtx-4090 h100-sxm b200 rtx-5090".split()


@pytest.fixture(scope="module", params=["words", "convolutions", "depthwise"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return captured(request.param, "amp-fp16", 64)


@pytest.mark.parametrize("board", BOARDS)
def test_an_interval_is_twice_as_wide_or_says_why(graph: Graph, board: str) -> None:
    for on in (board, f"4x{board}"):
        found = foretell.forecast(graph, on=on)
        assert found.step_time.low
        assert found.step_time.high
        wide = found.step_time.high / found.step_time.low
        assert (wide > WIDEST) == any(caveat.code == WIDE_INTERVAL for caveat in found.caveats)
        assert wide < 4


def test_convolutions_on_boards_before_turing_name_their_software() -> None:
    graph = captured("convolutions", "fp32", 64)
    for board, named in (("p100-pcie", True), ("v100-32g-sxm", True), ("t4", False)):
        codes = [caveat.code for caveat in foretell.forecast(graph, on=board).caveats]
        assert ("older-software" in codes) == named
    words = foretell.forecast(captured("words", "fp32", 64), on="p100-pcie")
    assert "older-software" not in [caveat.code for caveat in words.caveats]


def test_a_host_that_nobody_measured_is_no_surer_than_the_one_that_was() -> None:
    """A step without gradients that waits for its host was 3.2 times wide on an H200, and 2.7 on every other board."""
    waits = foretell.Workload(
        name="waits",
        model=lambda: torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8))),
        batch=lambda: {"x": torch.randn(2, 8)},
        loss=lambda model, batch: model(batch["x"]),
        optimizer=None,
    )
    step = capture(waits)
    own, other = (interval(foretell.forecast(step, on)) for on in ("h200", "b200"))
    assert other[1] / other[0] >= own[1] / own[0]


def interval(found: foretell.Forecast) -> tuple[float, float]:
    assert found.step_time.low is not None
    assert found.step_time.high is not None
    return found.step_time.low, found.step_time.high
