"""Memory of a rank: its step replayed through the allocator, communicator buffers, and the probability that it fits."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from typing import Final

from foretell.cost.accuracy import shipped_accuracy
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.distribution import LogNormal
from foretell.forecasting.result import Breakdown, Memory, RankMemory
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.profile import MemoryFactors
from foretell.program import Role
from foretell.simulate.allocator import OutOfMemory
from foretell.simulate.memory import MemoryTrace, allocated_at_least, peak_op, replay
from foretell.units import MIB, Bytes

_OF_WORKSPACE: Final = 0.5  # of a library's workspace: which algorithm it picks for a strange shape is a guess
_NCCL_BUFFERS: Final[Bytes] = 200 * MIB  # an estimate of what NCCL allocates for the channels of a communicator
_BREAKDOWN: Final = {
    "parameters": "parameter",
    "gradients": "gradient",
    "optimizer": "optimizer",
    "activations": "activation",
    "inputs": "input",
    "temporaries": "temporary",
    "workspace": "workspace",
}


def rank_memory(role: Role, device: Device) -> tuple[MemoryTrace, Memory]:
    """A role's memory on a device; where it does not fit, as it would be on a device without limit."""
    capacity = device.usable_bytes - device.context_bytes - _communicator(role)
    key = ("memory", device, capacity, *role.persistent.items())
    trace, fits = role.graph.remember(key, lambda: _replay(role, device, capacity))
    return trace, _memory(role, device, trace, fits)


def _replay(role: Role, device: Device, capacity: Bytes) -> tuple[MemoryTrace, bool]:
    """The step's memory, and whether it fits."""
    step = partial(
        replay,
        role.graph,
        temporaries=temporary_bytes(role.graph, device),
        kept_workspace=kept_workspaces(role.graph, device),
        persistent=role.persistent,
    )
    free = step()  # of a device without limit: below the limit none is felt
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


def with_persistent(role: Role, device: Device, like: Role, trace: MemoryTrace) -> tuple[MemoryTrace, Memory]:
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
    memory = _memory(role, device, trace, fits=True)
    if memory.total > memory.capacity:
        return rank_memory(role, device)  # only a replay shows whether the cache can give way
    return trace, memory


def adjusted(memory: Memory, factors: MemoryFactors) -> Memory:
    """Under a profile; the cache gives way where what is allocated still fits."""
    if factors == MemoryFactors():
        return memory
    parts = {f.name: round(getattr(memory.breakdown, f.name) * factors.allocated) for f in fields(Breakdown)}
    allocated, outside = sum(parts.values()), memory.context + memory.communicator
    reserved = max(round(memory.reserved * factors.reserved), allocated)
    fits = allocated + outside <= memory.capacity
    total = min(reserved + outside, memory.capacity) if fits else reserved + outside
    ranks = [
        replace(r, allocated=round(r.allocated * factors.allocated), total=round(r.total * total / memory.total))
        for r in memory.ranks
    ]
    return replace(
        memory, allocated=allocated, reserved=total - outside, total=total, fits=fits, breakdown=Breakdown(**parts),
        fit_probability=probability_of_fitting(
            allocated + outside, memory.capacity, sum(r.count for r in ranks), parts["workspace"]
        ),
        ranks=tuple(ranks),
    )  # fmt: skip


def of_ranks(memory: Memory, ranks: tuple[RankMemory, ...]) -> Memory:
    """The heaviest rank's memory as one of these: it is as uncertain as that of several, also where its stage has one rank."""
    needed = memory.allocated + memory.context + memory.communicator
    odds = probability_of_fitting(needed, memory.capacity, sum(r.count for r in ranks), memory.breakdown.workspace)
    return replace(memory, ranks=ranks, fit_probability=odds)


def _communicator(role: Role) -> Bytes:
    """Each group of ranks that a rank communicates in has a communicator of its own."""
    groups = {(c.group.size, c.group.stride) for c in role.collectives if c.group.size > 1}
    return _NCCL_BUFFERS * max(len(groups), int(role.count > 1))


def _memory(role: Role, device: Device, trace: MemoryTrace, fits: bool) -> Memory:
    outside = device.context_bytes + _communicator(role)
    total = trace.peak_reserved + outside
    return Memory(
        allocated=trace.peak_allocated,
        reserved=trace.peak_reserved,
        context=device.context_bytes,
        communicator=_communicator(role),
        total=total,
        capacity=device.usable_bytes,
        fits=fits,
        # The cache gives way when memory is short, so it is not counted.
        fit_probability=probability_of_fitting(
            trace.peak_allocated + outside, device.usable_bytes, role.count, trace.at_peak.get("workspace", 0)
        ),
        breakdown=Breakdown(**{name: trace.at_peak.get(purpose, 0) for name, purpose in _BREAKDOWN.items()}),
        peak_module=role.graph.ops[trace.peak_op].module if trace.peak_op >= 0 else "",
        ranks=(RankMemory(role=role.name, count=role.count, total=total, allocated=trace.peak_allocated),),
    )


def probability_of_fitting(needed: Bytes, capacity: Bytes, ranks: int, workspace: Bytes = 0) -> float:
    """That a rank of so many needs no more than there is."""
    known = shipped_accuracy()
    sigma = math.hypot(
        known.memory_sigma if ranks == 1 else known.memory_sigma_several, _OF_WORKSPACE * workspace / needed
    )
    return round(LogNormal.from_sigma(needed, sigma).probability_below(capacity), 4)
