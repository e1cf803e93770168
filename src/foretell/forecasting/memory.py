"""Memory of a rank: its step replayed through the allocator, communicator buffers, and the probability that it fits."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Final

from foretell.cost.accuracy import shipped_accuracy
from foretell.cost.older_software import copied_bytes
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.distribution import LogNormal
from foretell.forecasting.result import Breakdown, Memory, RankMemory
from foretell.forecasting.retained_memory import retained_memory
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.profile import MemoryFactors
from foretell.program import Role
from foretell.simulate.allocator import OutOfMemory
from foretell.simulate.memory import MemoryTrace, Retained, allocated_at_least, peak_op, replay
from foretell.software import Software
from foretell.units import Bytes

_OF_WORKSPACE: Final = 0.5  # of a library's workspace: which algorithm it picks for a strange shape is a guess
_JUST_NOT: Final = 0.4999  # what is rounded stays on its side of a half
_BREAKDOWN: Final = {
    "parameters": "parameter",
    "gradients": "gradient",
    "optimizer": "optimizer",
    "activations": "activation",
    "inputs": "input",
    "temporaries": "temporary",
    "workspace": "workspace",
}


def rank_memory(
    role: Role, device: Device, *, communicators: Bytes = 0, streams_hold: bool = False, software: str | None = None
) -> tuple[MemoryTrace, Memory]:
    """A role's memory on a device; where it does not fit, as it would be on a device without limit.

    `communicators`: what its groups of ranks take (`cost.communicators`). `streams_hold`: what collectives use is not free again
    before the host sees that they are done. `software`: of which time.
    """
    capacity = device.usable_bytes - device.context_bytes - communicators
    retained = retained_memory(role) if streams_hold else ()
    key = ("memory", device, capacity, retained, software, *role.persistent.items())
    trace, runs = role.graph.remember(key, lambda: _replay(role, device, capacity, retained, software))
    return trace, _memory(role, device, trace, communicators, runs)


def _replay(
    role: Role, device: Device, capacity: Bytes, retained: Sequence[Retained], software: str | None
) -> tuple[MemoryTrace, bool]:
    """The step's memory, and whether it runs on a device of that capacity."""
    temporaries, kept = tuple(temporary_bytes(role.graph, device)), tuple(kept_workspaces(role.graph, device))
    if software is not None:
        copied = copied_bytes(role.graph, Software.parse(software))
        temporaries = tuple(map(operator.add, temporaries, copied))
    step = partial(
        replay,
        role.graph,
        temporaries=temporaries,
        kept_workspace=kept,
        persistent=role.persistent,
        retained=retained,
    )
    # Of a device without limit: below the limit none is felt, and many devices take the same workspaces.
    free = role.graph.remember(("replay", temporaries, kept, retained, *role.persistent.items()), step)
    if free.peak_reserved <= capacity:
        return free, True
    if allocated_at_least(role.graph, free.peak_op) > capacity:
        return free, False
    try:
        return step(capacity=capacity), True
    except OutOfMemory:
        return free, False


def transient_at_peak(graph: Graph, device: Device) -> Bytes:
    """What a step takes at its peak that is gone thereafter, at least: temporaries and workspace; none if it updates then."""
    inside = temporary_bytes(graph, device)
    peak = peak_op(graph, inside)
    if peak < 0 or graph.ops[peak].phase == "optimizer":
        return 0
    kept = sum(nbytes for _, nbytes in kept_workspaces(graph, device))
    return kept + inside[peak] + allocated_at_least(graph, peak, "temporary")


def with_persistent(
    role: Role,
    device: Device,
    like: Role,
    trace: MemoryTrace,
    *,
    communicators: Bytes = 0,
    streams_hold: bool = False,
    software: str | None = None,
) -> tuple[MemoryTrace, Memory]:
    """Memory of a role that differs from `like`, whose trace is known, in its persistent bytes alone."""
    purposes = {**like.persistent, **role.persistent}
    more = {what: role.persistent.get(what, 0) - like.persistent.get(what, 0) for what in purposes}
    extra = sum(more.values())
    trace = replace(
        trace,
        allocated=tuple(nbytes + extra for nbytes in trace.allocated),
        peak_allocated=trace.peak_allocated + extra,
        peak_reserved=trace.peak_reserved + extra,
        at_peak={**trace.at_peak, **{what: trace.at_peak.get(what, 0) + n for what, n in more.items()}},
    )
    if trace.peak_reserved + device.context_bytes + communicators > device.usable_bytes:
        # Only a replay shows whether the cache can give way.
        return rank_memory(role, device, communicators=communicators, streams_hold=streams_hold, software=software)
    return trace, _memory(role, device, trace, communicators, runs=True)


def adjusted(memory: Memory, factors: MemoryFactors) -> Memory:
    """Under a profile; the cache gives way where what is allocated still fits."""
    if factors == MemoryFactors():
        return memory
    parts = {f.name: round(getattr(memory.breakdown, f.name) * factors.allocated) for f in fields(Breakdown)}
    allocated = sum(parts.values())
    reserved = max(round(memory.reserved * factors.reserved), allocated)
    total = reserved + memory.context + memory.communicator
    ranks = tuple(
        replace(r, allocated=round(r.allocated * factors.allocated), total=round(r.total * total / memory.total))
        for r in memory.ranks
    )
    breakdown = Breakdown(**parts)
    return _judged(
        replace(memory, allocated=allocated, reserved=reserved, total=total, breakdown=breakdown, ranks=ranks),
        runs=True,
    )


def of_ranks(memory: Memory, ranks: tuple[RankMemory, ...]) -> Memory:
    """The heaviest rank's memory as one of these: it is as uncertain as that of several, also where its stage has one rank."""
    return _judged(replace(memory, ranks=ranks), runs=memory.fits)


def _judged(memory: Memory, *, runs: bool) -> Memory:
    """Whether it fits, and how probably: both from the bytes without which it would not run.

    The cache gives way when memory is short, so those are what is allocated; unless one device alone `runs` out of memory
    in its replay for want of large enough pieces. Of several ranks the pieces are not known so well: trainers let
    segments grow, and streams keep blocks from each other.
    """
    outside, count = memory.context + memory.communicator, sum(r.count for r in memory.ranks)
    needed = memory.allocated + outside if runs or count > 1 else memory.total
    odds = probability_of_fitting(needed, memory.capacity, count, memory.breakdown.workspace)
    if needed > memory.capacity:
        return replace(memory, fits=False, fit_probability=odds)
    total = min(memory.total, memory.capacity)
    ranks = tuple(replace(r, total=min(r.total, r.capacity)) for r in memory.ranks)
    return replace(memory, reserved=total - outside, total=total, fits=True, fit_probability=odds, ranks=ranks)


def _memory(role: Role, device: Device, trace: MemoryTrace, communicators: Bytes, runs: bool) -> Memory:
    total = trace.peak_reserved + device.context_bytes + communicators
    memory = Memory(
        allocated=trace.peak_allocated,
        reserved=trace.peak_reserved,
        context=device.context_bytes,
        communicator=communicators,
        total=total,
        capacity=device.usable_bytes,
        fits=runs,
        fit_probability=float(runs),
        breakdown=Breakdown(**{name: trace.at_peak.get(purpose, 0) for name, purpose in _BREAKDOWN.items()}),
        peak_module=role.graph.ops[trace.peak_op].module if trace.peak_op >= 0 else "",
        ranks=(
            RankMemory(
                role=role.name,
                count=role.count,
                total=total,
                capacity=device.usable_bytes,
                allocated=trace.peak_allocated,
            ),
        ),
    )
    return _judged(memory, runs=runs)


def share_that_fits(probability: float, ranks: int) -> float:
    """The share of a device's memory that a rank of so many may be forecast to need, to fit with this probability."""
    known = shipped_accuracy()
    sigma = known.memory_sigma if ranks == 1 else known.memory_sigma_several
    return LogNormal.from_sigma(1.0, sigma).quantile(1.0 - probability)


def probability_of_fitting(needed: Bytes, capacity: Bytes, ranks: int, workspace: Bytes = 0) -> float:
    """That a rank of so many needs no more than there is."""
    known = shipped_accuracy()
    sigma = math.hypot(
        known.memory_sigma if ranks == 1 else known.memory_sigma_several, _OF_WORKSPACE * workspace / needed
    )
    odds = round(LogNormal.from_sigma(needed, sigma).probability_below(capacity), 4)
    return odds if needed <= capacity else min(odds, _JUST_NOT)
