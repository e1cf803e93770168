"""Where the ops of a rank are cut into segments: wherever something begins or ends beside them.

It follows from which ops take the device's time and not from how much, so that a step is cut once and timed often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.program import Marks, Role

Numbers = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
NO_MARKS: Final = Marks()
_LONGEST: Final = 24  # ops of a part: where communication begins or ends amid one, that one is run op by op
_OFTEN: Final = 0.125  # of the ops: a host that waits more often is followed op by op


class Events(NamedTuple):
    """What happens between two segments, in this order: collectives by their numbers."""

    follows: bool  # the device goes on where the host is: the op before takes no time, and was waited for
    ready: Sequence[int]  # their data is there
    issued: Sequence[int]
    awaited: Sequence[int]
    gap: int  # 1 where the gap before the next kernel passes while the device waits


class Row(NamedTuple):
    """What is said of a segment."""

    first: int  # op
    last: int  # past the last op
    begins: bool  # something happens before it
    ends: bool  # and after it
    waits: bool  # the host, for its last op


@dataclass(frozen=True, kw_only=True)
class Places:
    """What the device does in a range of ops, one after another: kernels, collectives that it waits for at once, and ops that
    do nothing but wait for one of these."""

    range: tuple[int, int]
    op: Numbers  # of each place, from the begin of the range
    kernels: Numbers  # ops that take the device's time
    kernel_places: Numbers
    others: Numbers  # places that are none of a kernel
    at_once: dict[int, tuple[int, int]]  # op → the collective that follows it, and the op that waits for that
    lanes: Set[str]  # of these collectives
    only_wait: Set[int]  # ops that wait for one of them and take the device no time
    collectives: Sequence[int]
    collective_places: Numbers
    gaps: Numbers  # 1 where a kernel waits for the collective, whose gap passes meanwhile

    # What its kernels took last (`segment_sums`): a step is timed often, with other hosts and networks.
    found: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def issued_by(self) -> Numbers:
        """How many ops the host has issued when it has issued that of a place."""
        return self.op + 1

    @cached_property
    def special(self) -> list[int]:
        """Ops that are followed by a collective that is waited for at once, or wait for one, in order."""
        return sorted({*self.at_once, *self.only_wait}) if self.at_once else []

    def between(self, first: int, last: int) -> tuple[int, int]:
        """The places of some ops."""
        begin, end = self.op.searchsorted((first - self.range[0], last - self.range[0])).tolist()
        return begin, end


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A range of ops in segments."""

    places: Places
    rows: Sequence[Row]
    events: Sequence[Events | None]  # before each segment; what follows the last one is left out
    summed: bool  # False: the host waits all the time, which leaves nothing to sum up
    idle: Set[int] = frozenset()  # ops that take the device no time, and wait for a collective all the same
    cuts: Sequence[int] = ()  # every so many ops beside communication, where a segment can be cut into parts

    @cached_property
    def first_op(self) -> Numbers:
        """As the rows say, from the begin of the range; so are those below."""
        return np.array([row.first for row in self.rows], dtype=np.intp) - self.places.range[0]

    @cached_property
    def last_op(self) -> Numbers:
        return np.array([row.last for row in self.rows], dtype=np.intp) - self.places.range[0]

    @cached_property
    def first_place(self) -> Numbers:
        return np.searchsorted(self.places.op, self.first_op)

    @cached_property
    def last_place(self) -> Numbers:
        return np.searchsorted(self.places.op, self.last_op)

    @cached_property
    def first_collective(self) -> Numbers:
        """Of those that are waited for at once."""
        return np.searchsorted(self.places.collective_places, self.first_place)

    @cached_property
    def last_collective(self) -> Numbers:
        return np.searchsorted(self.places.collective_places, self.last_place)

    @cached_property
    def place_rows(self) -> list[tuple[int, int]]:
        """The first place of each, and the one past its last."""
        return list(zip(self.first_place.tolist(), self.last_place.tolist(), strict=True))

    @cached_property
    def collective_rows(self) -> list[tuple[int, int]]:
        return list(zip(self.first_collective.tolist(), self.last_collective.tolist(), strict=True))

    @cached_property
    def parts(self) -> Segments:
        """Shorter ones, between which nothing happens."""
        cuts = sorted({*self.cuts, *(row.first for row in self.rows)})
        ends = [*cuts[1:], self.places.range[1]]
        waits = {row.last for row in self.rows if row.waits}
        rows = [Row(first, last, False, False, last in waits) for first, last in zip(cuts, ends, strict=True)]
        return Segments(places=self.places, rows=rows, events=[None] * len(rows), summed=self.summed, idle=self.idle)

    def parts_of(self, number: int) -> range:
        """Of a segment, by their numbers among all parts."""
        if not self.cuts:
            return range(0)
        row, firsts = self.rows[number], self._first_of_parts
        return range(bisect_left(firsts, row.first), bisect_left(firsts, row.last))

    @cached_property
    def _first_of_parts(self) -> list[int]:
        return [row.first for row in self.parts.rows]


def segments_of(role: Role, first: int, last: int, *, busy: Bools, waits: Bools, silent: bool, short: bool) -> Segments:
    """The ops from `first` up to `last`, of which some keep the device `busy` and the host `waits` for some.

    `silent`: collectives take no time, so they change nothing. `short`: communication slows down what is beside it.
    """
    marks = NO_MARKS if silent else role.marks
    summed = int(waits[first:last].sum()) <= _OFTEN * (last - first)
    at_once = _at_once(role, first, last, busy, waits) if summed and not silent else {}
    waited = {then for _, then in at_once.values()}
    begins = {at for at in (*marks.before, *marks.awaited) if at not in waited}
    ends = {at + 1 for at in (*marks.after, *marks.made_ready) if at not in at_once}
    idle = {at for at in marks.awaited if at < len(busy) and not busy[at]}
    ends |= {at + 1 for at in idle - waited}
    cuts = {first, *begins, *ends}
    if summed:
        cuts.update((np.flatnonzero(waits[first:last]) + first + 1).tolist())
    cuts_of_parts = []
    if short and summed and not silent:
        cuts_of_parts = _amid_communication(role, first, last, {number for number, _ in at_once.values()})
    firsts = sorted(at for at in cuts if first <= at < last)
    lasts = [*firsts[1:], last] if firsts else []
    return Segments(
        places=_places(role, (first, last), busy, at_once, sorted(idle & waited)),
        rows=[
            Row(at, until, at in begins, until in ends, bool(waits[until - 1]))
            for at, until in zip(firsts, lasts, strict=True)
        ],
        events=[_events(marks, at, at in begins, at > first and at in ends, idle) for at in firsts],
        summed=summed and bool(firsts),
        idle=idle,
        cuts=cuts_of_parts,
    )


def _events(marks: Marks, at: int, begins: bool, ends: bool, idle: Set[int]) -> Events | None:
    """Before an op: what the end of the op before it brings, and what its own begin does."""
    none: list[int] = []
    after, made_ready = (marks.after.get(at - 1, none), marks.made_ready.get(at - 1, none)) if ends else (none, none)
    before, awaited = (marks.before.get(at, none), marks.awaited.get(at, none)) if begins else (none, none)
    found = Events(
        follows=ends and at - 1 in idle,
        ready=[*made_ready, *after],
        issued=[*after, *before],
        awaited=awaited,
        gap=int(at not in idle),
    )
    return found if found.follows or found.ready or found.issued or found.awaited else None


def _at_once(role: Role, first: int, last: int, busy: Bools, waits: Bools) -> dict[int, tuple[int, int]]:
    """Collectives between whose begin and end the device does nothing: they are as good as its own work.

    None where others are issued early: these might be under way beside them unnoticed.
    """
    marks = role.marks
    if marks.before:
        return {}
    events = np.zeros(len(busy) + 1, dtype=np.intp)  # that something happens at an op, or the device is busy with it
    events[:-1] = busy | waits
    for kind in (marks.after, marks.awaited):
        events[[at for at in kind if 0 <= at < len(busy)]] += 1
    happened = np.cumsum(events)
    found = {}
    for number, c in enumerate(role.collectives):
        at, then = c.starts_after, c.waited_for_by
        if not (c.every_micro_step and c.issued_by is None and first <= at < then < last):
            continue
        alone = marks.after[at] == [number] and marks.awaited[then] == [number] and at not in marks.awaited
        if alone and not waits[at] and happened[then - 1] == happened[at]:
            found[at] = number, then
    return found


def _amid_communication(role: Role, first: int, last: int, at_once: set[int]) -> list[int]:
    """Every so many ops, wherever one of the other collectives may be under way."""
    under_way = np.zeros(len(role.graph.ops) + 2, dtype=np.intp)
    for number, c in enumerate(role.collectives):
        if number not in at_once:
            under_way[max(c.starts_after, 0)] += 1
            under_way[c.waited_for_by] -= 1
    regular = np.arange(first, last, _LONGEST)
    found: list[int] = regular[np.cumsum(under_way)[regular] > 0].tolist()
    return found


def _places(
    role: Role, where: tuple[int, int], busy: Bools, at_once: dict[int, tuple[int, int]], only_wait: list[int]
) -> Places:
    first, last = where
    kernels = np.flatnonzero(busy[first:last])
    collectives = np.array(sorted(at_once), dtype=np.intp) - first
    ops = np.concatenate((kernels, np.array(only_wait, dtype=np.intp) - first, collectives))
    order = np.argsort(ops, kind="stable")
    place = np.empty(len(ops), dtype=np.intp)
    place[order] = np.arange(len(ops))
    return Places(
        range=where,
        op=ops[order],
        kernels=kernels + first,
        kernel_places=place[: len(kernels)],
        others=place[len(kernels) :],
        at_once=at_once,
        lanes={role.collectives[number].lane for number, _ in at_once.values()},
        only_wait=set(only_wait),
        collectives=[at_once[at][0] for at in sorted(at_once)],
        collective_places=place[len(ops) - len(collectives) :],
        gaps=busy[[at_once[at][1] for at in sorted(at_once)]].astype(np.intp),
    )
