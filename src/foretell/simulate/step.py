"""Durations → Timeline: one rank's step, and the steps that follow it.

The step ends when all streams are done. Repeated micro-steps are run three times and continued in proportion. A second
step follows the first as in training, its host running ahead: what it adds is the period.
"""

from __future__ import annotations

from collections.abc import Iterator

from foretell.program import Role
from foretell.simulate.rank import Durations, Rank
from foretell.simulate.timeline import Timeline
from foretell.units import Seconds

__all__ = ["Durations", "simulate"]


def simulate(role: Role, durations: Durations, *, draw: bool = True) -> Timeline:
    """One step of a rank; undrawn, its spans are left out."""
    rank = Rank(role, durations)
    segments = list(_segments(role))
    makespan = _run_step(rank, segments, draw=draw)
    first = rank.clocks
    rank.forget_results()
    period = _run_step(rank, segments, draw=False) - makespan
    second = rank.clocks
    return Timeline(
        spans=tuple(rank.spans), makespan=makespan, period=period, computing=second.computing - first.computing,
        talking=min(second.talking - first.talking, period),
    )  # fmt: skip


def _run_step(rank: Rank, segments: list[tuple[int, int, int]], *, draw: bool) -> Seconds:
    for first, last, times in segments:
        if times > 1:
            rank.run(first, last, draw=False, reduces=False)
        if times > 2:
            before = rank.clocks
            rank.run(first, last, draw=False, reduces=False)
            rank.go_on(before, times - 3)
        rank.run(first, last, draw=draw, reduces=True)
    rank.wait_for_the_last()
    return rank.end


def _segments(role: Role) -> Iterator[tuple[int, int, int]]:
    """(first, past the last, times) of each run of ops that repeat together."""
    ops = role.graph.ops
    first = 0
    for position in range(1, len(ops) + 1):
        if position == len(ops) or ops[position].times != ops[first].times:
            if first < position:
                yield first, position, ops[first].times
            first = position
