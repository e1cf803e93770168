"""The critical path of a rank's step, from records of whole segments: the ops and collectives that its end depends on."""

from __future__ import annotations

import numpy as np

from foretell.simulate.rank import Rank
from foretell.simulate.segment_sums import Floats, Sums, Work
from foretell.simulate.timeline import DEVICE, HOST, LATE, NETWORK, OUT, OnPath, Record


def critical_path(rank: Rank) -> OnPath:
    """Of what the rank has recorded so far."""
    return _Walk(rank).path()


class _Walk:
    """From the last end backwards, each record to the one that let it begin."""

    def __init__(self, rank: Rank) -> None:
        self.rank, d = rank, rank.durations
        self.issued = np.zeros(len(d.host) + 1)  # how often each op's issuing is on it, less that of the op before
        self.device = np.zeros(len(d.device))
        self.collectives = np.zeros(len(d.collectives))
        self.slowdown = {
            id(sums): np.zeros(len(sums.segments.places.op)) for sums in rank.ranges
        }  # of what is on it, by its place

    def path(self) -> OnPath:
        at = max((self.rank.host, self.rank.device, *self.rank.network.values()), key=lambda event: event[0])[1]
        while at >= 0:
            record = self.rank.records[at]
            self._put(record)
            at = record.after
        for sums in self.rank.ranges:
            self._sum_up(sums)
        host = self.issued.cumsum()[:-1] * self.rank.durations.host
        return OnPath(host=host, device=self.device, collectives=self.collectives)

    def _put(self, record: Record) -> None:
        first, last, d = record.first, record.last, self.rank.durations
        if record.stream == NETWORK:
            self.collectives[first] += d.collectives[first]
        elif record.stream == HOST:
            self._issue(first, last)
        elif record.stream == DEVICE:
            self.device[first] += d.device[first] * record.slowdown + record.more
        else:
            self._put_segment(record)

    def _put_segment(self, record: Record) -> None:
        sums = self.rank.range_at(record.first)
        work, places = sums.work, sums.segments.places
        begin, end = places.between(record.first, record.last)
        slowdown = self.slowdown[id(sums)]
        if record.stream == OUT:
            self._leave(record, work, slowdown[begin:end], (begin, end))
            return
        foremost = begin
        if record.stream == LATE:
            begin = work.last_wait((begin, end), record.slowdown > 1, record.more)
            self._issue(record.first, places.range[0] + int(places.op[begin]) + 1)
        if record.more and begin == foremost:
            self.device[places.range[0] + int(places.op[begin])] += record.more
        slowdown[begin:end] = record.slowdown

    def _issue(self, first: int, last: int) -> None:
        self.issued[first] += 1
        self.issued[last] -= 1

    def _leave(self, record: Record, work: Work, slowdown: Floats, where: tuple[int, int]) -> None:
        """Slower up to where the communication ended."""
        at, _, within = work.slowed_until(where, record.more)
        begin = where[0]
        slowdown[:] = 1.0
        slowdown[: at - begin] = record.slowdown
        if within:
            slowdown[at - begin] += within * (1 - 1 / record.slowdown) / work.took.item(at)

    def _sum_up(self, sums: Sums) -> None:
        places, slowdown, d = sums.segments.places, self.slowdown[id(sums)], self.rank.durations
        self.device[places.kernels] += d.device[places.kernels] * slowdown[places.kernel_places]
        for number, on_path, gap in zip(
            places.collectives, slowdown[places.collective_places] > 0, d.gap * places.gaps, strict=True
        ):
            if on_path and d.collectives[number] > gap:  # shorter ones pass in the gap between two kernels
                self.collectives[number] += d.collectives[number]
