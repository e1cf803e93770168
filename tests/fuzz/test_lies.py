"""Graphs that once were read and then broke what came after the reader, by the plan that did."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell import Graph
from tests.fuzz.answers import check_forecast


@pytest.mark.parametrize(
    "plan",
    ["pp=2,grad_accumulation=4", "pp=2,tp=2,schedule=zero-bubble,grad_accumulation=4"],
    ids=["1f1b", "zero-bubble"],
)
def test_a_stage_without_a_backward_pass(plan: str) -> None:
    graph = Graph.load(Path(__file__).parent / "corpus" / "lying" / "stage-without-backward.graph")
    check_forecast(foretell.forecast(graph, "4xh200" if "tp" in plan else "2xh200", plan, model="roofline"))
