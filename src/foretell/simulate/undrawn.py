"""A rank's clocks over segments of which nothing is recorded: as `Rank.run` moves them, with plain numbers at hand.

A question is simulated ten times, nine of them for nothing but how long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from foretell.simulate.segment_sums import Sums
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.simulate.rank import Event, Rank

ROUNDING: Final[Seconds] = 1e-13
_BEFORE_ALL: Final = (0.0, -1)
_NEVER: Final = (math.inf, math.inf)


def run_undrawn(rank: Rank, found: Sums, some: range, reduces: bool, watch: bool = False) -> None:
    """Some segments of a range, in order; `reduces`: this is the last micro-step, which reduces gradients; `watch` for a moment
    that each step comes to."""
    d, segments, collectives = rank.durations, found.segments, rank.role.collectives
    gap, slowdown, seconds, busy, network = d.gap, d.slowdown, d.collectives, rank.busy, rank.network
    finished, ready, lanes = rank.finished, rank.ready, segments.places.lanes
    (host, _), (device, _), waits = rank.host, rank.device, rank.waits
    computing, communicating, busy_until, debt = rank.computing, rank.communicating, rank.busy_until, rank.debt
    waits_before, met = waits, -1  # at the segment before, and at a moment that was met
    columns = segments.rows, segments.events, found.host, found.communicating, found.computing, found.lengths
    rows = zip(some, *(column[some.start : some.stop] for column in columns), strict=True)
    for at, (_, _, _, _, awaited), happens, issuing, inside, computes, length in rows:
        if watch and met != waits:
            if waits == waits_before and busy_until <= device and not debt:
                rank.waits, rank.host, rank.device = waits, (host, -1), (device, -1)
                rank.computing, rank.communicating, rank.busy_until, rank.debt = (
                    computing,
                    communicating,
                    busy_until,
                    0.0,
                )
                met = waits if rank.meet(at) else -1
            waits_before = waits
        if happens is not None:
            follows, made_ready, issued, results, gaps = happens
            if follows and host > device:
                device = host
                waits += 1
            for number in made_ready:
                ready[number] = device, -1
            for number in issued:
                collective = collectives[number]
                if not (reduces or collective.every_micro_step):
                    continue
                lane = collective.lane
                begin = max(network.get(lane, _BEFORE_ALL)[0], ready.get(number, _BEFORE_ALL)[0], host)
                end = begin + seconds[number]
                network[lane] = finished[number] = end, -1
                waits += begin == host
                if busy_until > begin:
                    begin = busy_until
                if end > begin:
                    communicating += end - begin
                    busy_until = end
                    if slowdown > 1:
                        if begin < device:
                            debt += (min(end, device) - begin) * (1 - 1 / slowdown)
                        if end > device:
                            if busy and busy[-1][1] == begin:
                                busy[-1] = busy[-1][0], end
                            else:
                                busy.append((max(begin, device), end))
            for number in results:
                if number in finished:
                    device = max(device, finished[number][0] - gaps * gap)
        soon = device + gap + ROUNDING  # no kernel begins before
        while busy and busy[0][1] <= soon:
            busy.popleft()
        begin, end = busy[0] if busy else _NEVER
        overlaps = begin <= device  # other communication is under way
        alone = computes, length
        if overlaps:
            computes, length = computes * slowdown, found.slowed[at]
        more = 0.0
        if debt and computes:
            more = debt * slowdown if overlaps else debt
            computes, length = computes + more, length + more
        until, late = device + length, False
        if host + issuing > device:
            by_host = host + found.lead(at, overlaps, more)
            if by_host > until:
                until, late = by_host, True
        leaps = True
        if overlaps:
            if inside and in_turn(network, lanes, soon):
                leaps = False
            elif until > end:
                clocks = host, device
                out = None if debt or late else found.way_out(at, clocks, busy, busy_until)
                if leaps := out is not None:
                    busy.popleft()
                    computes, until = alone[0] + out[0], device + alone[1] + out[0]
                    communicating += out[1]
        elif until > begin or (inside and busy_until > soon):
            leaps = False
        else:
            communicating += inside
        if leaps:
            if computes:
                debt = 0.0
                computing += computes
            waits += late
            device = until
            host += issuing
            if awaited and device > host:
                host = device
            continue
        rank.waits, rank.host, rank.device = waits, (host, -1), (device, -1)
        rank.computing, rank.communicating, rank.busy_until, rank.debt = computing, communicating, busy_until, debt
        parts = segments.parts_of(at)
        if len(parts) > 1:
            run_undrawn(rank, found.parts, parts, reduces)
        else:
            _op_by_op(rank, found, at)
        waits, (host, _), (device, _) = rank.waits, rank.host, rank.device
        computing, communicating, busy_until, debt = rank.computing, rank.communicating, rank.busy_until, rank.debt
    rank.waits, rank.host, rank.device = waits, (host, -1), (device, -1)
    rank.computing, rank.communicating, rank.busy_until, rank.debt = computing, communicating, busy_until, debt


def _op_by_op(rank: Rank, found: Sums, number: int) -> None:
    """A segment whose kernels are followed one by one, with the collectives that are waited for at once."""
    (first, last, _, _, waits), (begin, end) = found.segments.rows[number], found.segments.place_rows[number]
    places, work, d, busy = found.segments.places, found.work, rank.durations, rank.busy
    (host, host_record), (device, device_record), computing = rank.host, rank.device, rank.computing
    start = places.range[0]
    begun = host - work.issued.item(first - start)
    columns = (
        places.op[begin:end].tolist(),
        work.issued[places.issued_by[begin:end]].tolist(),
        work.took[begin:end].tolist(),
    )
    for op, until, length in zip(*columns, strict=True):
        host = begun + until
        if length > 0:
            device += d.gap
            if host > device or (host == device and host_record > device_record):
                rank.waits += host > device
                device, device_record = host, host_record
            if busy or rank.debt:
                length = rank.slowed(device, length)
            computing += length
            device += length
        elif (together := places.at_once.get(op + start)) is not None:
            rank.host, rank.device = (host, host_record), (device, device_record)
            rank.wait_at_once(op + start, together[1], draw=False)
            device, device_record = rank.device
        elif (host, host_record) > (device, device_record):  # it does nothing but wait
            rank.waits += host > device
            device, device_record = host, host_record
    host = begun + work.issued.item(last - start)
    rank.computing, rank.device = computing, (device, device_record)
    rank.host = max(rank.device, (host, host_record)) if waits else (host, host_record)


def in_turn(network: Mapping[str, Event], lanes: Iterable[str], soon: Seconds) -> bool:
    """Whether collectives of these lanes, waited for at once, have to wait for others."""
    return any(network[lane][0] > soon for lane in lanes if lane in network)
