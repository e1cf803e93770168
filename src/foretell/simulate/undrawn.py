"""A rank's clocks over segments of which nothing is recorded: as `Rank.run` moves them, with plain numbers at hand.

A question is simulated ten times, nine of them for nothing but how long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from foretell.simulate.segment_sums import Pace, Sums
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.simulate.rank import Event, Rank

ROUNDING: Final[Seconds] = 1e-13
_BEFORE_ALL: Final = (0.0, -1)
_NEVER: Final = (math.inf, math.inf)


def run_undrawn(rank: Rank, found: Sums, reduces: bool) -> None:
    """All segments of a range; `reduces`: this is the last micro-step, which reduces gradients."""
    d, segments, collectives = rank.durations, found.segments, rank.role.collectives
    gap, slowdown, seconds, busy, network = d.gap, d.slowdown, d.collectives, rank.busy, rank.network
    finished, ready = rank.finished, rank.ready
    (host, host_record), (device, device_record) = rank.host, rank.device
    computing, communicating, busy_until, debt = rank.computing, rank.communicating, rank.busy_until, rank.debt
    waited = False
    sums = zip(segments.rows, segments.events, found.host, found.communicating, found.alone, found.slowed, strict=True)
    for (first, last, _, _, waits), happens, issuing, inside, alone, slowed in sums:
        if happens is not None:
            if happens.follows and (host, host_record) > (device, device_record):
                device, device_record, waited = host, host_record, True
            for number in happens.ready:
                ready[number] = device, device_record
            for number in happens.issued:
                collective = collectives[number]
                if not (reduces or collective.every_micro_step):
                    continue
                lane = collective.lane
                begin, record = max(network.get(lane, _BEFORE_ALL), ready.get(number, _BEFORE_ALL), (host, host_record))
                end = begin + seconds[number]
                network[lane] = finished[number] = end, record
                waited = waited or begin == host
                begin = max(begin, busy_until)
                if end > begin:
                    communicating += end - begin
                    busy_until = end
                    if slowdown > 1:
                        debt += max(min(end, device) - begin, 0.0) * (1 - 1 / slowdown)
                        if end > device:
                            if busy and busy[-1][1] == begin:
                                busy[-1] = busy[-1][0], end
                            else:
                                busy.append((max(begin, device), end))
            for number in happens.awaited:
                if number in finished:
                    done, record = finished[number]
                    done -= happens.gap * gap
                    if done > device or (done == device and record > device_record):
                        device, device_record = done, record
        soon = device + gap + ROUNDING  # no kernel begins before
        while busy and busy[0][1] <= soon:
            busy.popleft()
        begin, end = busy[0] if busy else _NEVER
        leaps, leaves = True, False
        if begin <= device:  # other communication is under way
            pace = with_debt(slowed, debt * slowdown) if debt else slowed
            by_device, by_host = device + pace[0], host + pace[1]
            if inside and in_turn(network, segments.lanes, soon):
                leaps = False
            elif by_device > end or by_host > end:
                leaps, leaves = False, not debt
        else:
            pace = with_debt(alone, debt) if debt else alone
            by_device, by_host = device + pace[0], host + pace[1]
            if by_device > begin or by_host > begin:
                leaps = False
            elif inside:
                if busy_until > soon:
                    leaps = False
                else:
                    communicating += inside
        if leaps:
            if pace[3]:
                debt = 0.0
                computing += pace[3]
            if by_host > by_device:
                device, device_record, waited = by_host, host_record, True
            else:
                device = by_device
            host += issuing
            if waits and (device, device_record) > (host, host_record):
                host, host_record = device, device_record
        else:
            rank.host, rank.device = (host, host_record), (device, device_record)
            rank.computing, rank.communicating, rank.busy_until, rank.debt = computing, communicating, busy_until, debt
            if not (leaves and rank.leap_out(found, first, last, waits, issuing, inside, alone, draw=False)):
                _op_by_op(rank, found, first, last, waits)
            (host, host_record), (device, device_record) = rank.host, rank.device
            computing, communicating, busy_until, debt = rank.computing, rank.communicating, rank.busy_until, rank.debt
    rank.waited_for_host = rank.waited_for_host or waited
    rank.host, rank.device = (host, host_record), (device, device_record)
    rank.computing, rank.communicating, rank.busy_until, rank.debt = computing, communicating, busy_until, debt
    if segments.ends[-1]:
        rank.end_op(segments.last[-1] - 1, draw=False, reduces=reduces)


def _op_by_op(rank: Rank, found: Sums, first: int, last: int, waits: bool) -> None:
    """A segment whose kernels are followed one by one, with the collectives that are waited for at once."""
    segments, d, busy = found.segments, rank.durations, rank.busy
    (host, host_record), (device, device_record), computing = rank.host, rank.device, rank.computing
    start, (begin, end) = segments.range[0], found.places(first)
    ops = segments.op[begin:end]
    begun = host - found.issued.item(first - start)
    columns = ops.tolist(), found.issued[ops + 1].tolist(), found.took[begin:end].tolist()
    for op, until, length in zip(*columns, strict=True):
        host = begun + until
        if length > 0:
            device += d.gap
            if host > device or (host == device and host_record > device_record):
                device, device_record = host, host_record
                rank.waited_for_host = True
            if busy or rank.debt:
                length = rank.slowed(device, length)
            computing += length
            device += length
        elif (together := segments.at_once.get(op + start)) is not None:
            rank.host, rank.device = (host, host_record), (device, device_record)
            rank.wait_at_once(op + start, together[1], draw=False)
            device, device_record = rank.device
        elif (host, host_record) > (device, device_record):  # it does nothing but wait
            device, device_record = host, host_record
            rank.waited_for_host = True
    host = begun + found.issued.item(last - start)
    rank.computing, rank.device = computing, (device, device_record)
    rank.host = max(rank.device, (host, host_record)) if waits else (host, host_record)


def with_debt(pace: Pace, debt: Seconds) -> Pace:
    """A segment's, with what communication cost compute that was already laid out."""
    own, behind, behind_first, computing = pace
    if not computing:
        return pace
    return own + debt, max(behind, behind_first + debt), behind_first + debt, computing + debt


def in_turn(network: Mapping[str, Event], lanes: Iterable[str], soon: Seconds) -> bool:
    """Whether collectives of these lanes, waited for at once, have to wait for others."""
    return any(network[lane][0] > soon for lane in lanes if lane in network)
