"""Replaying lifetimes: what is retained, at the peak and after, against hand arithmetic."""

from __future__ import annotations

import pytest

from foretell.graph import Graph, Op, Signature, Storage
from foretell.simulate.allocator import OutOfMemory
from foretell.simulate.memory import Retained, allocated_at_least, peak_op, replay
from foretell.units import MIB

NOTHING = Signature("aten.relu.default", (), ())


def step(*storages: Storage, phases: tuple[str, ...] = ("forward", "forward", "backward", "optimizer")) -> Graph:
    return Graph(
        name="g",
        ops=tuple(Op(NOTHING, phase, f"layer.{i}", (), ()) for i, phase in enumerate(phases)),
        tensors=(),
        storages=storages,
    )


PARAMETER = Storage(32 * MIB, "parameter", -1, 4)
MOMENT = Storage(64 * MIB, "optimizer", -1, 4)
KEPT = Storage(16 * MIB, "activation", 0, 2)
PASSING = Storage(24 * MIB, "temporary", 1, 1)
GRADIENT = Storage(32 * MIB, "gradient", 2, 3)


def test_the_peak_is_the_sum_of_what_lives_together() -> None:
    trace = replay(step(PARAMETER, MOMENT, KEPT, PASSING, GRADIENT))
    assert trace.allocated == (112 * MIB, 136 * MIB, 144 * MIB, 128 * MIB)
    assert (trace.peak_op, trace.peak_allocated) == (2, 144 * MIB)
    assert {role: nbytes for role, nbytes in trace.at_peak.items() if nbytes} == {
        "parameter": 32 * MIB, "optimizer": 64 * MIB, "activation": 16 * MIB, "gradient": 32 * MIB,
    }  # fmt: skip
    assert sum(trace.at_peak.values()) == trace.peak_allocated <= trace.peak_reserved


def test_workspace_counts_while_its_op_runs_and_library_workspace_for_good() -> None:
    graph = step(PARAMETER, KEPT)
    plain = replay(graph)
    assert replay(graph, temporaries=[0, 40 * MIB, 0, 0]).peak_allocated == plain.peak_allocated + 40 * MIB
    kept = replay(graph, kept_workspace=[(1, 32 * MIB)])
    assert kept.allocated == tuple(nbytes + 32 * MIB for nbytes in plain.allocated)


def test_host_memory_takes_none_of_the_device() -> None:
    assert replay(step(PARAMETER, Storage(MIB, "host", -1, 4))).peak_allocated == 32 * MIB


def test_what_is_held_beside_the_graph() -> None:
    assert replay(step(PARAMETER), persistent={"gradient": 20 * MIB}).peak_allocated == 52 * MIB


def test_a_device_that_is_too_small_says_so() -> None:
    graph = step(PARAMETER, MOMENT, KEPT, PASSING, GRADIENT)
    assert replay(graph, capacity=400 * MIB).peak_allocated == 144 * MIB
    with pytest.raises(OutOfMemory):
        replay(graph, capacity=140 * MIB)


def test_what_lives_together_is_a_bound_on_the_peak() -> None:
    graph = step(PARAMETER, MOMENT, KEPT, PASSING, GRADIENT, Storage(MIB, "host", -1, 4))
    assert [allocated_at_least(graph, op) // MIB for op in range(4)] == [112, 136, 144, 128]
    around = step(PARAMETER, Storage(8 * MIB, "activation", 3, 0))  # made late, used by the next step
    assert [allocated_at_least(around, op) // MIB for op in range(4)] == [40, 32, 32, 40]


def test_the_peak_is_found_without_an_allocator() -> None:
    graph = step(PARAMETER, MOMENT, KEPT, PASSING, GRADIENT)
    assert peak_op(graph, [0] * 4) == replay(graph).peak_op == 2
    inside = [64 * MIB, 0, 0, 0]
    assert peak_op(graph, inside) == replay(graph, temporaries=inside).peak_op == 0
    around = step(PARAMETER, KEPT, Storage(8 * MIB, "activation", 3, 0))
    assert peak_op(around, [0] * 4) == replay(around).peak_op == 0


def test_what_other_streams_hold_is_reserved_and_not_allocated() -> None:
    made = step(PARAMETER, KEPT, PASSING, Storage(24 * MIB, "gradient", 2, 3))  # which takes what passed at op 1
    plain, soon, late = (
        replay(made, retained=retained) for retained in ((), (Retained(24 * MIB, 1, 2),), (Retained(24 * MIB, 1, 3),))
    )
    assert late.allocated == soon.allocated == plain.allocated
    assert (soon.peak_reserved, late.peak_reserved) == (plain.peak_reserved, plain.peak_reserved + 24 * MIB)
