"""Durations → Timeline: one rank's step, and the steps that follow it.

The step ends when all streams are done. Repeated micro-steps are run three times and continued in proportion. A second
step follows the first as in training, its host running ahead: what it adds is the period. It is followed up to a moment from
which on the first did not wait for its host, and nothing but the device was at work: one is a period after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from foretell.graph import Graph
from foretell.program import Role
from foretell.simulate.path import critical_path
from foretell.simulate.rank import Moment, Rank, Recording
from foretell.simulate.segment_sums import Durations, Floats
from foretell.simulate.timeline import LazySpans, Record, Timeline
from foretell.units import Seconds

__all__ = ["Durations", "Floats", "simulate"]


_REMEMBERED: Final = 256  # steps of a role, which are a few numbers each


class _Run(NamedTuple):
    """Ops of a step that are run on end."""

    first: int
    last: int
    is_last: bool  # of those that repeat: it is drawn, and reduces gradients
    more: int = 0  # that are as this one


def simulate(role: Role, durations: Durations, *, draw: bool = True) -> Timeline:
    """One step of a rank; undrawn, its spans and its critical path are left out.

    Undrawn ones are remembered: most of those that say how sure a step is are the same under other conditions.
    """
    if draw:
        return _simulate(role, durations, draw=True)
    known: dict[bytes, Timeline] = role.found.setdefault("simulated", {})
    digest = durations.digest
    if (found := known.get(digest)) is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        found = known[digest] = _simulate(role, durations, draw=False)
    return found


def _simulate(role: Role, durations: Durations, *, draw: bool) -> Timeline:
    rank, runs = Rank(role, durations), role.graph.remember("runs", lambda: _runs(role.graph))
    makespan = _run_step(rank, runs, "segments" if draw else "nothing")
    path = critical_path(rank) if draw else None
    first, met, waits = rank.clocks, rank.met, rank.waits
    rank.forget_results()
    if met is not None and _comes_again(rank, runs[0], met):
        since, period = met.clocks, rank.device[0] - met.clocks.device
    else:
        begun = 0 if met is None else met.segment
        since, period = first, _run_step(rank, runs, "nothing", begun) - makespan
    now = rank.clocks
    return Timeline(
        spans=LazySpans(role, durations, partial(_drawn, role, durations, runs)) if draw else (),
        makespan=makespan,
        period=period,
        computing=now.computing - since.computing,
        communicating=min(now.communicating - since.communicating, period),
        waits_for_host=rank.waits > waits,
        path=path,
    )


def _drawn(role: Role, durations: Durations, runs: Sequence[_Run]) -> list[Record]:
    rank = Rank(role, durations)
    _run_step(rank, runs, "ops")
    return rank.records


def _run_step(rank: Rank, runs: Sequence[_Run], record: Recording, begun: int = 0) -> Seconds:
    """Until all streams are done; so many segments may have been run before."""
    for number, run in enumerate(runs):
        before = rank.clocks
        recorded: Recording = record if run.is_last else "nothing"
        since = 0 if number else begun
        rank.run(run.first, run.last, reduces=run.is_last, record=recorded, since=since, watch=not number)
        rank.repeat(before, run.more)
    rank.wait_for_the_last()
    return rank.end


def _comes_again(rank: Rank, run: _Run, met: Moment) -> bool:
    """Let a further step begin: does it come to the same moment? Then it goes on as the one before."""
    rank.run(run.first, run.last, reduces=run.is_last, until=met.segment)
    return rank.is_undisturbed and rank.device[0] - rank.host[0] >= met.clocks.device - met.clocks.host


def _runs(graph: Graph) -> list[_Run]:
    """Ops that are repeated as often are run three times, and continued in proportion."""
    found, first = [], 0
    for times, ops in groupby(op.times for op in graph.ops):
        last = first + sum(1 for _ in ops)
        found += [_Run(first, last, False)] * (times > 1)
        found += [_Run(first, last, False, times - 3)] * (times > 2)
        found.append(_Run(first, last, True))
        first = last
    return found
