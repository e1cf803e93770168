"""The critical path of a rank's step, from records of whole segments: the ops and collectives that its end depends on."""

from __future__ import annotations

import numpy as np

from foretell.simulate.rank import Rank
from foretell.simulate.segment_sums import Floats, Sums
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
            id(sums): np.zeros(len(sums.segments.op)) for sums in rank.ranges
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
        first, sums = record.first, self.rank.range_at(record.first)
        begin, end = sums.places(first)
        slowdown = self.slowdown[id(sums)]
        if record.stream == OUT:
            self._leave(record, sums, slowdown[begin:end], begin)
            return
        foremost = begin
        if record.stream == LATE:
            begin = sums.last_wait(first, record.slowdown > 1, record.more)
            self._issue(first, sums.segments.range[0] + int(sums.segments.op[begin]) + 1)
        if record.more and begin == foremost:
            self.device[sums.segments.range[0] + int(sums.segments.op[begin])] += record.more
        slowdown[begin:end] = record.slowdown

    def _issue(self, first: int, last: int) -> None:
        self.issued[first] += 1
        self.issued[last] -= 1

    def _leave(self, record: Record, sums: Sums, slowdown: Floats, begin: int) -> None:
        """Slower up to where the communication ended."""
        at, _, within = sums.slowed_until(record.first, record.more)
        slowdown[:] = 1.0
        slowdown[: at - begin] = record.slowdown
        if within:
            alone = self.rank.durations.device[sums.segments.range[0] + sums.segments.op.item(at)]
            slowdown[at - begin] += within * (1 - 1 / record.slowdown) / alone

    def _sum_up(self, sums: Sums) -> None:
        segments, slowdown, d = sums.segments, self.slowdown[id(sums)], self.rank.durations
        self.device[segments.kernels] += d.device[segments.kernels] * slowdown[segments.kernel_places]
        for number, on_path, gap in zip(
            segments.collectives, slowdown[segments.collective_places] > 0, d.gap * segments.gaps, strict=True
        ):
            if on_path and d.collectives[number] > gap:  # shorter ones pass in the gap between two kernels
                self.collectives[number] += d.collectives[number]
