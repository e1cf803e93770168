"""Graphs that once were read and then broke what came after the reader, by the plan that did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import foretell
from foretell import Graph
from tests.fuzz.answers import check_forecast

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "plan",
    ["pp=2,grad_accumulation=4", "pp=2,tp=2,schedule=zero-bubble,grad_accumulation=4"],
    ids=["1f1b", "zero-bubble"],
)
def test_a_stage_without_a_backward_pass(plan: str) -> None:
    graph = Graph.load(HERE / "corpus" / "lying" / "stage-without-backward.graph")
    check_forecast(foretell.forecast(graph, "4xh200" if "tp" in plan else "2xh200", plan, model="roofline"))


@pytest.mark.parametrize("plan", ["dp=2,zero=3", "dp=2,zero=3,overlap=false", "dp=2,zero=2"])
def test_a_forward_pass_that_ends_after_the_backward_pass(plan: str) -> None:
    """Nothing is gathered ahead of a backward pass that does not follow."""
    graph = Graph.load(HERE / "bases" / "llama.graph")
    last = replace(graph.ops[-1], phase="forward", module="layers.0")
    check_forecast(foretell.forecast(replace(graph, ops=(*graph.ops[:-1], last)), "2xh200", plan, model="roofline"))
