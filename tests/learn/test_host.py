"""What a host pays for its ops, from measured steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretell.cost.host import HostCosts, usual_costs
from foretell.graph import Graph
from foretell.hardware import device, host
from foretell.learn.dataset import Measured, OpTable
from foretell.learn.host import fit_host
from foretell.measure.record import StepRow
from foretell.methods.conformance import perceptron

TRACER = 1.4  # how much longer launches take with a tracer in the process
GRAPHS = [perceptron(8 * width, layers=layers, batch=4) for width in range(1, 11) for layers in range(1, 13)]
H200 = device("h200")
UNIT = host(H200.host).op_seconds


def truth(graph: Graph) -> float:
    return usual_costs().step_weight(graph) * UNIT


def traced(number: int, graph: Graph) -> StepRow:
    seconds = TRACER * truth(graph)
    return StepRow(
        point=str(number), kind="step", source=f"net/{number}", settings="{}", graph=graph.content_hash,
        step_seconds=seconds, host_seconds=seconds, device_seconds=0.1 * seconds,
    )  # fmt: skip


def plain(row: StepRow) -> StepRow:
    seconds = (row.step_seconds or 0.0) / TRACER
    return replace(row, graph=None, step_seconds=seconds, issue_seconds=seconds, host_seconds=None, device_seconds=None)


def fitted(rows: list[StepRow]) -> HostCosts:
    graphs = {graph.content_hash: graph for graph in GRAPHS}
    return fit_host(Measured(device=H200, steps=rows, graphs=graphs, ops=OpTable.alone([], [], np.zeros(0))))


def ratio(costs: HostCosts) -> float:
    return float(np.median([costs.step_weight(graph) * UNIT / truth(graph) for graph in GRAPHS]))


def test_steps_timed_where_nothing_was_traced_say_what_the_host_takes() -> None:
    rows = [traced(number, graph) for number, graph in enumerate(GRAPHS)]
    assert ratio(fitted(rows)) == pytest.approx(TRACER, rel=0.05)
    assert ratio(fitted([*rows, *map(plain, rows)])) == pytest.approx(1.0, rel=0.05)


def test_a_busy_device_hides_the_host_unless_issuing_ended_well_before() -> None:
    rows = [replace(traced(n, graph), device_seconds=TRACER * truth(graph)) for n, graph in enumerate(GRAPHS)]
    quick = [replace(plain(row), step_seconds=row.step_seconds) for row in rows]
    assert ratio(fitted([*rows, *quick])) == pytest.approx(1.0, rel=0.05)
    late = [replace(row, issue_seconds=row.step_seconds) for row in quick]
    assert ratio(fitted([*rows, *late])) == pytest.approx(TRACER, rel=0.05)  # nothing was learned from them
