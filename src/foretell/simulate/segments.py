"""Where the ops of a rank are cut into segments: wherever something begins or ends beside them.

It follows from which ops take the device's time and not from how much, so that a step is cut once and timed often.
"""

from __future__ import annotations

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
_LONGEST: Final = 24  # ops beside communication: where it begins or ends amid a segment, that one is run op by op
_OFTEN: Final = 0.125  # of the ops: a host that waits more often is followed op by op


class Events(NamedTuple):
    """What happens between two segments, in this order: collectives by their numbers."""

    follows: bool  # the device goes on where the host is: the op before takes no time, and was waited for
    ready: Sequence[int]  # their data is there
    issued: Sequence[int]
    awaited: Sequence[int]
    gap: int  # 1 where the gap before the next kernel passes while the device waits


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A range of ops in segments, and what the device does in it: kernels, collectives that it waits for at once, and ops
    that do nothing but wait for one of these. Each of these has its place in one row."""

    range: tuple[int, int]
    # Of each segment: its first op and the one past its last, whether something happens before and after it, and whether
    # the host waits for its last op.
    first: Sequence[int]
    last: Sequence[int]
    begins: Sequence[bool]
    ends: Sequence[bool]
    waits: Sequence[bool]
    events: Sequence[Events | None]  # before each segment; what follows the last one is left out
    summed: bool  # False: the host waits all the time, which leaves nothing to sum up
    at_once: dict[int, tuple[int, int]]  # op → the collective that follows it, and the op that waits for that
    lanes: Set[str]  # of these collectives
    only_wait: Set[int]  # ops that wait for one of them and take the device no time
    first_op: Numbers  # as `first` and `last`, from the begin of the range
    last_op: Numbers
    first_place: Numbers
    last_place: Numbers
    first_collective: Numbers  # of those that are waited for at once
    last_collective: Numbers
    op: Numbers  # of each place, from the begin of the range
    kernels: Numbers  # ops that take the device's time
    kernel_places: Numbers
    collectives: Sequence[int]
    collective_places: Numbers
    gaps: Numbers  # 1 where a kernel waits for the collective, whose gap passes meanwhile

    # What its kernels took last, alone and slowed (`segment_sums`): a step is timed often, with other hosts and networks.
    kernels_took: dict[bool, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def rows(self) -> list[tuple[int, int, bool, bool, bool]]:
        """What is said of each segment, together: a step is timed often."""
        return list(zip(self.first, self.last, self.begins, self.ends, self.waits, strict=True))

    @cached_property
    def special(self) -> list[int]:
        """Ops that are followed by a collective that is waited for at once, or wait for one, in order."""
        return sorted({*self.at_once, *self.only_wait}) if self.at_once else []


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
    if short and not silent:
        cuts.update(_amid_communication(role, first, last, {number for number, _ in at_once.values()}))
    firsts = sorted(at for at in cuts if first <= at < last)
    lasts = [*firsts[1:], last] if firsts else []
    return _with_places(
        role, (first, last), firsts, lasts, begins, ends, busy, waits, summed, at_once, sorted(idle & waited),
        [_events(marks, at, at in begins, at > first and at in ends, idle) for at in firsts],
    )  # fmt: skip


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


def _with_places(
    role: Role,
    where: tuple[int, int],
    firsts: list[int],
    lasts: list[int],
    begins: set[int],
    ends: set[int],
    busy: Bools,
    waits: Bools,
    summed: bool,
    at_once: dict[int, tuple[int, int]],
    only_wait: list[int],
    events: list[Events | None],
) -> Segments:
    first, last = where
    kernels = np.flatnonzero(busy[first:last])
    collectives = np.array(sorted(at_once), dtype=np.intp) - first
    ops = np.concatenate((kernels, np.array(only_wait, dtype=np.intp) - first, collectives))
    order = np.argsort(ops, kind="stable")
    place = np.empty(len(ops), dtype=np.intp)
    place[order] = np.arange(len(ops))
    row, first_op, last_op = ops[order], np.array(firsts, dtype=np.intp) - first, np.array(lasts, dtype=np.intp) - first
    return Segments(
        range=where,
        first=firsts,
        last=lasts,
        begins=[at in begins for at in firsts],
        ends=[at in ends for at in lasts],
        waits=[bool(waits[at - 1]) for at in lasts],
        events=events,
        summed=summed and bool(firsts),
        at_once=at_once,
        lanes={role.collectives[number].lane for number, _ in at_once.values()},
        only_wait=set(only_wait),
        first_op=first_op,
        last_op=last_op,
        first_place=np.searchsorted(row, first_op),
        last_place=np.searchsorted(row, last_op),
        first_collective=np.searchsorted(collectives, first_op),
        last_collective=np.searchsorted(collectives, last_op),
        op=row,
        kernels=kernels + first,
        kernel_places=place[: len(kernels)],
        collectives=[at_once[at][0] for at in sorted(at_once)],
        collective_places=place[len(ops) - len(collectives) :],
        gaps=busy[[at_once[at][1] for at in sorted(at_once)]].astype(np.intp),
    )
