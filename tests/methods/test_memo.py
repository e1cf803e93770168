"""Graphs are read once, and not kept alive for it."""

from __future__ import annotations

import gc

from foretell.graph import Graph
from foretell.methods import memo as module
from foretell.methods.conformance import perceptron
from foretell.methods.memo import anew, once

calls: list[tuple[int, str]] = []


@once
def width(graph: Graph, unit: str = "") -> str:
    calls.append((len(graph.ops), unit))
    return f"{graph.samples}{unit}"


def test_a_graph_is_read_once_for_each_question() -> None:
    calls.clear()
    graph, other = (perceptron(64, layers=2, batch=batch) for batch in (4, 8))
    assert [width(graph), width(graph), width(graph, "x"), width(other)] == ["4", "4", "4x", "8"]
    assert len(calls) == 3
    with anew():
        assert width(graph) == "4"
        assert len(calls) == 4
    assert width(graph) == "4"
    assert len(calls) == 4


def test_a_graph_that_is_gone_is_forgotten() -> None:
    gc.collect()
    before = len(module._known)
    graph = perceptron(64, layers=2, batch=4)
    width(graph)
    assert len(module._known) == before + 1
    del graph
    gc.collect()
    assert len(module._known) == before
