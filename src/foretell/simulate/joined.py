"""Passes side by side: while one of them waits for its communication, the device works on another.

A pass is pieces of work between the collectives of one lane. The device takes the piece that can begin first; of two the
one whose pass has more ahead of it. Gradients of weights that nobody waits for fill what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from foretell.program import Role
from foretell.simulate.rank import Rank
from foretell.simulate.segment_sums import Durations
from foretell.units import Seconds

_LONG_AGO: Seconds = -1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Work on end; collectives by their number among those of its role."""

    work: Seconds
    weights: Seconds = 0.0  # work that may run at any time from here on
    awaits: tuple[int, ...] = ()  # before it begins
    sends: tuple[tuple[int, Seconds], ...] = ()  # when it is done, and how long each takes


@dataclass(frozen=True, slots=True)
class Stream:
    """One pass."""

    pieces: tuple[Piece, ...]

    def with_weights(self, seconds: Seconds) -> Stream:
        """With work of a later pass that each piece makes a part of possible."""
        whole = sum(piece.work for piece in self.pieces) or 1.0
        return Stream(tuple(replace(p, weights=p.weights + seconds * p.work / whole) for p in self.pieces))


def pieces_of(
    role: Role, durations: Durations, ops: tuple[int, int], lane: str | None, delayed: frozenset[int]
) -> Stream:
    """A range of ops, cut where collectives of the lane begin and where they are waited for."""
    begin, end = ops
    own = {
        number: c
        for number, c in enumerate(role.collectives)
        if c.lane == lane and c.kind == "all-to-all" and begin <= c.starts_after < end and durations.collectives[number]
    }
    places = {c.starts_after + 1 for c in own.values()} | {c.waited_for_by for c in own.values()}
    cuts = sorted({begin, end, *(at for at in places if begin < at < end)})
    later = sorted(at for at in delayed if begin <= at < end)
    pieces = []
    for (first, last), work in zip(pairwise(cuts), _lengths(role, durations, cuts, (set(own), later)), strict=True):
        filling = [durations.device[at] + durations.gap for at in later if first <= at < last and durations.device[at]]
        pieces.append(
            Piece(
                work=work,
                weights=float(sum(filling)),
                awaits=tuple(n for n, c in own.items() if c.waited_for_by == first),
                sends=tuple((n, durations.collectives[n]) for n, c in own.items() if c.starts_after + 1 == last),
            )
        )
    return Stream(tuple(pieces))


def _lengths(
    role: Role, durations: Durations, cuts: Sequence[int], hidden: tuple[set[int], Sequence[int]]
) -> Iterator[Seconds]:
    """What the device takes for each piece, without the lane's collectives and what is delayed, with the host ahead."""
    silent, later = hidden
    device = durations.device.copy()
    device[np.array(later, dtype=int)] = 0.0
    rank = Rank(
        role,
        replace(
            durations,
            device=device,
            collectives=[0.0 if n in silent else s for n, s in enumerate(durations.collectives)],
        ),
    )
    rank.host = (_LONG_AGO, -1)
    for first, last in pairwise(cuts):
        before = rank.device[0]
        rank.run(first, last, reduces=False)
        yield max(rank.device[0] - before, 0.0)


def side_by_side(streams: Sequence[Stream], slowdown: float) -> Seconds:
    """How long it takes until all passes are through, and all they sent has arrived."""
    run = _Run(streams, slowdown)
    while run.step():
        pass
    return run.end()


class _Run:
    """One device and one lane, and what is left of each pass."""

    def __init__(self, streams: Sequence[Stream], slowdown: float) -> None:
        self.left = [list(stream.pieces) for stream in streams]
        self.slowdown = slowdown
        self.now: Seconds = 0.0
        self.lane: Seconds = 0.0
        self.weights: Seconds = 0.0  # that can run now
        self.arrived: dict[tuple[int, int], Seconds] = {}
        self.busy: list[tuple[Seconds, Seconds]] = []  # the lane, in order
        self.ahead = [sum(p.work + sum(s for _, s in p.sends) for p in stream.pieces) for stream in streams]

    def step(self) -> bool:
        """One piece more; False: none is left."""
        ready = [
            (max((self.arrived.get((number, c), 0.0) for c in left[0].awaits), default=0.0), number)
            for number, left in enumerate(self.left)
            if left
        ]
        if not ready:
            return False
        begin, number = min(ready, key=lambda found: (max(found[0], self.now), -self.ahead[found[1]]))
        self._fill(begin)
        piece = self.left[number].pop(0)
        self.now = self._after(max(begin, self.now), piece.work)
        self.weights += piece.weights
        self.ahead[number] -= piece.work
        for collective, seconds in piece.sends:
            start = max(self.lane, self.now)
            self.lane = self.arrived[number, collective] = start + seconds
            self.busy.append((start, self.lane))
            self.ahead[number] -= seconds
        return True

    def end(self) -> Seconds:
        return max(self._after(self.now, self.weights), self.lane)

    def _fill(self, until: Seconds) -> None:
        """Gradients of weights run where nothing else can."""
        if until <= self.now or not self.weights:
            return
        done = self._after(self.now, self.weights)
        if done <= until:
            self.now, self.weights = done, 0.0
            return
        shared = sum(max(min(end, until) - max(start, self.now), 0.0) for start, end in self.busy)
        self.weights -= until - self.now - shared + shared / self.slowdown
        self.now = until

    def _after(self, begin: Seconds, work: Seconds) -> Seconds:
        """When work is done that loses some of the device while the lane is busy."""
        now, left = begin, work
        for start, end in self.busy:
            if end <= now:
                continue
            alone = max(start - now, 0.0)
            if left <= alone:
                break
            left, now = left - alone, now + alone
            if left * self.slowdown <= end - now:
                return now + left * self.slowdown
            left, now = left - (end - now) / self.slowdown, end
        return now + left
