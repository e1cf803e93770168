"""How wide intervals are on boards from Turing on: as published steps allow, and with a reason where they are wider."""

from __future__ import annotations

import pytest

import foretell
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
