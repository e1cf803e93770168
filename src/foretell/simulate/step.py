"""Durations → Timeline: one rank's step, and the steps that follow it.

The step ends when all streams are done. Repeated micro-steps are run three times and continued in proportion. A second
step follows the first as in training, its host running ahead: what it adds is the period.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby

from foretell.graph import Graph
from foretell.program import Role
from foretell.simulate.path import critical_path
from foretell.simulate.rank import Rank, Recording
from foretell.simulate.segment_sums import Durations, Floats
from foretell.simulate.timeline import LazySpans, Record, Timeline
from foretell.units import Seconds

__all__ = ["Durations", "Floats", "simulate"]


def simulate(role: Role, durations: Durations, *, draw: bool = True) -> Timeline:
    """One step of a rank; undrawn, its spans and its critical path are left out."""
    rank = Rank(role, durations)
    makespan = _run_step(rank, "segments" if draw else "nothing")
    path = critical_path(rank) if draw else None
    first = rank.clocks
    rank.forget_results()
    rank.waited_for_host = False
    period = _run_step(rank, "nothing") - makespan
    second = rank.clocks
    return Timeline(
        spans=LazySpans(role, durations, partial(_drawn, role, durations)) if draw else (),
        makespan=makespan,
        period=period,
        computing=second.computing - first.computing,
        communicating=min(second.communicating - first.communicating, period),
        waits_for_host=rank.waited_for_host,
        path=path,
    )


def _drawn(role: Role, durations: Durations) -> list[Record]:
    rank = Rank(role, durations)
    _run_step(rank, "ops")
    return rank.records


def _run_step(rank: Rank, record: Recording) -> Seconds:
    graph = rank.role.graph
    for times, first, last in graph.remember("repeated parts", lambda: _repeated(graph)):
        if times > 1:
            rank.run(first, last, reduces=False)
        if times > 2:
            before = rank.clocks
            rank.run(first, last, reduces=False)
            rank.repeat(before, times - 3)
        rank.run(first, last, record=record, reduces=True)
    rank.wait_for_the_last()
    return rank.end


def _repeated(graph: Graph) -> list[tuple[int, int, int]]:
    """Ops that are repeated as often: how often, the first, and the one after the last."""
    found, first = [], 0
    for times, ops in groupby(op.times for op in graph.ops):
        last = first + sum(1 for _ in ops)
        found.append((times, first, last))
        first = last
    return found
