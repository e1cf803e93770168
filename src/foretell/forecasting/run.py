"""A program on a cluster: every role priced on the node that is slowest for it, and timed together with the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretell.cost.collectives import compute_slowdown
from foretell.cost.communicators import communicator_bytes
from foretell.cost.model import CostModel
from foretell.cost.power import carried, power_in, use_of
from foretell.forecasting.communication import Collectives, Traffic
from foretell.forecasting.communication_copies import with_copies
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.experts import LANE, busiest, skewed
from foretell.forecasting.memory import of_ranks, rank_memory, with_persistent
from foretell.forecasting.result import Memory, RankMemory
from foretell.forecasting.retained_memory import streams_hold
from foretell.forecasting.step import RoleStep, role_step
from foretell.forecasting.step_features import step_features
from foretell.hardware import Cluster, Device, Node
from foretell.hardware import device as known_device
from foretell.profile import Profile, family_of, network_of
from foretell.program import Collective, Program, Role
from foretell.simulate.jitter import slowest_of
from foretell.simulate.memory import MemoryTrace
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations, Floats, simulate
from foretell.simulate.timeline import Timeline
from foretell.units import Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(RoleStep):
    """A role on one kind of node."""

    node: Node
    trace: MemoryTrace
    memory: Memory
    streams_hold: bool = False  # what collectives use is retained until the host sees that they are done
    software: str | None = None  # of which time; None: today's
    longer: float = 1.0  # what its ops take at the clock that power allows, over what they take for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What running a program on a cluster comes to."""

    slowest: Placed
    heaviest: Placed
    timeline: Timeline
    exposed: Seconds  # what communication adds to the step
    bubble: Seconds
    stragglers: Seconds  # what waiting for the slowest of equal ranks adds
    memory: Memory
    traffic: Traffic
    stages: tuple[Placed, ...]  # the slowest of each role
    hand_over: tuple[Seconds, ...] = ()  # from each chunk of a pipeline to the next

    def under(self, program: Program, *, host: float = 1.0, communication: float = 1.0) -> Seconds:
        """The step with a host and links as many times slower, simulated again; stragglers left out."""
        if host <= 1 and communication == 1 and not self.timeline.waits_for_host:
            return self.timeline.period
        if program.pipeline is None:
            durations = scaled_durations(self.slowest.durations, host, communication)
            return simulate(self.slowest.role, durations, draw=False).period
        scaled = {id(p.durations): scaled_durations(p.durations, host, communication) for p in self.stages}
        hand_over = [s * communication for s in self.hand_over]
        return simulate_pipeline(program, [scaled[id(p.durations)] for p in self.stages], hand_over, draw=False).period


def run(
    program: Program,
    cluster: Cluster,
    model: CostModel,
    conditions: Conditions,
    profile: Profile | None = None,
    *,
    goes_on: bool = False,
) -> Run:
    """`goes_on`: for hours, as a trainer's job does, so that boards lower their clocks where they reach their limit of power."""
    placed, collectives = place(program, cluster, model, conditions, profile, goes_on=goes_on)
    fullest = [max(options, key=lambda p: p.memory.total / p.memory.capacity) for options in placed]
    heaviest = max(fullest, key=lambda p: p.memory.total / p.memory.capacity)
    slowest = [max(options, key=lambda p: p.device_seconds + p.host_seconds) for options in placed]
    ranks = tuple(
        RankMemory(
            role=rank.role.name,
            count=rank.role.count,
            total=rank.memory.total,
            capacity=rank.memory.capacity,
            allocated=rank.memory.allocated,
        )
        for rank in fullest
    )
    hand_over = collectives.hand_over(program)
    if program.pipeline is None:
        timed = _time_ranks(program, placed[0], conditions.jitter)
    else:
        drawn = [p.role for p in slowest].index(heaviest.role)
        timed = _time_stages(program, slowest, hand_over, conditions.jitter, drawn)
    period = timed.timeline.period
    return Run(
        slowest=timed.slowest,
        heaviest=heaviest,
        timeline=timed.timeline,
        exposed=max(period - timed.silent.period, 0.0),
        bubble=timed.silent.waiting,
        stragglers=max(timed.uneven.period - period, 0.0),
        memory=of_ranks(heaviest.memory, ranks),
        traffic=collectives.traffic(program, [p.durations.collectives for p in slowest]),
        stages=tuple(slowest),
        hand_over=tuple(hand_over),
    )


def place(
    program: Program,
    cluster: Cluster,
    model: CostModel,
    conditions: Conditions,
    profile: Profile | None = None,
    *,
    goes_on: bool = False,
) -> tuple[list[list[Placed]], Collectives]:
    """Every role priced on each different node that it lies on, and the collectives of the cluster."""
    pricing = replace(_pricing(program, cluster, model, conditions, profile), goes_on=goes_on)
    profile, collectives = pricing.profile, pricing.collectives
    placed = _place(program, pricing)
    if profile.residuals is None:
        return placed, collectives
    slowest = max((p for options in placed for p in options), key=lambda p: p.device_seconds)
    factor = math.exp(profile.residuals.log_factor(step_features(program, slowest, Collectives(cluster), profile.host)))
    everything = {name: getattr(profile, name) * factor for name in ("device", "host", "communication")}
    bare = replace(profile, residuals=None, **everything)
    return place(program, cluster, model, conditions, bare, goes_on=goes_on)


def time_alike(
    program: Program, cluster: Cluster, model: CostModel, conditions: Conditions, profile: Profile | None = None
) -> RoleStep:
    """What the ranks of a program that all do the same take, on nodes that are alike; their memory is left aside."""
    if profile is not None and profile.residuals is not None:
        return place(program, cluster, model, conditions, profile)[0][0][0]
    return _pricing(program, cluster, model, conditions, profile).time(program.roles[0], cluster.nodes[0])


def _pricing(
    program: Program, cluster: Cluster, model: CostModel, conditions: Conditions, profile: Profile | None
) -> _Pricing:
    profile = (profile or Profile(name="none")).for_step(network_of(program.whole), program.ranks)
    collectives = Collectives(cluster, profile.communication, profile.links)
    return _Pricing(
        model=model,
        conditions=conditions,
        profile=profile,
        collectives=collectives,
        hides=None if program.pipeline is None else program.pipeline.hides,
        hand_over=() if program.pipeline is None else program.pipeline.hand_over,
        streams_hold=streams_hold(conditions, program.whole.facts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A step as it is, and what its parts are found from: the same step without communication, and with uneven ranks."""

    slowest: Placed
    timeline: Timeline
    silent: Timeline
    uneven: Timeline


def _time_ranks(program: Program, placed: Sequence[Placed], jitter: float) -> _Timed:
    """Ranks that all do the same work, on whichever nodes they are."""
    timelines = [simulate(p.role, p.durations) for p in placed]
    timeline = max(timelines, key=lambda t: (t.period, t.computing))  # behind one host's pace they may be alike
    slowest = placed[timelines.index(timeline)]
    others = {
        f"{p.role.name} on {p.node.device.name}": t for p, t in zip(placed, timelines, strict=True) if p is not slowest
    }
    silent = uneven = timeline
    if slowest.role.collectives:
        silent = simulate(slowest.role, _silent(slowest.durations), draw=False)
    if program.ranks > 1 and jitter:
        uneven = simulate(slowest.role, slower(slowest.durations, slowest_of(program.ranks, jitter)), draw=False)
    return _Timed(slowest=slowest, timeline=timeline.with_ranks(others), silent=silent, uneven=uneven)


def _time_stages(
    program: Program, stages: Sequence[Placed], hand_over: Sequence[Seconds], jitter: float, drawn: int
) -> _Timed:
    """The stages of a pipeline; equal stages share their durations, and so does what is made of them."""
    silent = {id(p.durations): _silent(p.durations) for p in stages}
    uneven = {id(p.durations): slower(p.durations, slowest_of(p.role.count, jitter)) for p in stages}
    return _Timed(
        slowest=max(stages, key=lambda p: p.device_seconds),
        timeline=simulate_pipeline(program, [p.durations for p in stages], hand_over, drawn),
        silent=simulate_pipeline(
            program, [silent[id(p.durations)] for p in stages], [0.0] * len(hand_over), draw=False
        ),
        uneven=simulate_pipeline(program, [uneven[id(p.durations)] for p in stages], hand_over, draw=False),
    )


def _silent(durations: Durations) -> Durations:
    return replace(durations, collectives=[0.0] * len(durations.collectives))


def scaled_durations(durations: Durations, host: float, communication: float) -> Durations:
    """Of a rank whose host and links are as many times slower."""
    return replace(
        durations,
        host=durations.host * host,
        collectives=[s * communication for s in durations.collectives],
    )


def slower(durations: Durations, times: float) -> Durations:
    """A rank that computes and issues as many times slower; its communication stays."""
    return replace(
        durations,
        device=durations.device * times,
        host=durations.host * times,
        gap=durations.gap * times,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricing:
    """What prices a role: the model for its ops, the cluster for its communication, the conditions and
    the profile for both."""

    model: CostModel
    conditions: Conditions
    profile: Profile
    collectives: Collectives
    hides: str | None  # the lane that passes of several micro-batches hide
    streams_hold: bool  # what collectives use is retained until the host sees that they are done
    hand_over: tuple[Collective, ...] = ()  # between the chunks of a pipeline
    goes_on: bool = False  # for hours, where boards lower their clocks to keep their limit of power

    def place(self, role: Role, node: Node) -> Placed:
        step = self.time(role, node)
        software = self.conditions.software
        taken = communicator_bytes(role, self.collectives.cluster, self.hand_over)
        trace, memory = rank_memory(
            role, node.device, communicators=taken, streams_hold=self.streams_hold, software=software
        )
        longer = self._longer(step, node.device) if self.goes_on else 1.0
        return Placed(
            role=role, node=node, priced=step.priced, trace=trace, memory=memory, longer=longer,
            durations=replace(step.durations, device=step.durations.device * longer),
            streams_hold=self.streams_hold, software=software,
        )  # fmt: skip

    def _longer(self, step: RoleStep, device: Device) -> float:
        """Than for a moment, at the clock that the board's power allows.

        Of boards of the measured one's generation: what others attain is at that clock already (`cost.generations`). What
        counts is what a board draws while ops run and while it waits for others' in between; bubbles are too long to make up.
        """
        power, own = power_in(self.model.folder), known_device(self.model.device) if self.model.device else None
        if power is None or own is None or device.compute_capability != own.compute_capability:
            return 1.0
        role = step.role
        waited = [
            seconds * role.runs(c)
            for c, seconds in zip(role.collectives, step.durations.collectives, strict=True)
            if c.waited_for_by <= c.starts_after + 1
        ]
        computing = step.device_seconds + sum(waited)
        if not computing:
            return 1.0
        return power.times_longer(carried(use_of(role.graph, device, busy=computing).over(computing), device))

    def time(self, role: Role, node: Node) -> RoleStep:
        alone = role_step(role, node.device, node.host, self.model, self.profile.operators, self.conditions.software)
        skew = busiest(role, self.conditions.expert_skew)
        d = alone.durations
        durations = replace(
            d,
            device=with_copies(
                role, skewed(role, scaled_device(role, d.device, self.profile), skew), self.model, node.device
            ),
            host=_issuing(role, d.host) * self.profile.host,
            collectives=[
                seconds * (skew if c.lane == LANE else 1.0)
                for c, seconds in zip(role.collectives, self.collectives.of_role(role), strict=True)
            ],
            gap=d.gap * self.profile.device,
            slowdown=self._slowdown(role, node),
        )
        return replace(alone, durations=durations)

    def _slowdown(self, role: Role, node: Node) -> float:
        """Of compute while a collective runs beside it."""
        if not role.collectives:
            return 1.0
        given = self.conditions.slowdown
        if given is not None:
            return given
        return compute_slowdown(role.collectives, self.collectives.cluster, node.device, self.hides)


def scaled_device(role: Role, seconds: Floats, profile: Profile) -> Floats:
    """What each op takes on the device under a profile."""
    if not profile.families and not profile.precisions:
        return seconds * profile.device
    precision = role.graph.precision.arithmetic
    calls = role.graph.calls
    factors: Floats = np.array(calls.each(lambda call: profile.device_factor(family_of(call.signature), precision)))
    return seconds * factors


def _issuing(role: Role, seconds: Floats) -> Floats:
    """What the host takes for every device it issues ops for."""
    if role.issues_for == 1:
        return seconds
    often: Floats = np.array([1.0 if op.phase == "optimizer" else role.issues_for for op in role.graph.ops])
    return seconds * often


def _place(program: Program, pricing: _Pricing) -> list[list[Placed]]:
    """Every role on each different node that it lies on; what is alike is priced once."""
    known: dict[object, Placed] = {}
    placed = []
    several = len(program.roles) > 1
    for role, nodes in _nodes_of(program, pricing.collectives.cluster):
        options = []
        likeness = _likeness(role) if several else ()
        for node in nodes:
            key = (id(node), likeness)
            if key not in known:
                known[key] = pricing.place(role, node)
            options.append(_alike(known[key], role, pricing.streams_hold))
        placed.append(options)
    return placed


def _nodes_of(program: Program, cluster: Cluster) -> list[tuple[Role, list[Node]]]:
    """The different nodes that each role lies on: stages take ranks one after another."""
    places: list[tuple[Role, list[Node]]] = []
    first = 0
    for role in program.roles:
        seen: dict[int, Node] = {}
        start = 0
        for node, times in cluster.runs:
            if start < first + role.count and start + node.count * times > first:
                seen[id(node)] = node
            start += node.count * times
        places.append((role, list(seen.values())))
        first += role.count
    return places


def _likeness(role: Role) -> tuple[object, ...]:
    """What makes two roles take the same time: stages in the middle of a pipeline are alike but for persistent bytes."""
    # An optimizer's op counts by its size: its signature has the parameters of its own stage.
    ops = tuple(
        [
            (op.target, sum([x.numel for x in op.signature.inputs]))
            if op.phase == "optimizer"
            else (id(op.signature), op.times)
            for op in role.graph.ops
        ]
    )
    collectives = tuple((c.kind, c.nbytes, c.starts_after) for c in role.collectives)
    allocated: dict[str, Bytes] = defaultdict(int)
    for storage in role.graph.storages:
        allocated[storage.role] += storage.nbytes
    return hash(ops), collectives, *sorted(allocated.items())


def _alike(like: Placed, role: Role, holds: bool) -> Placed:
    if like.role.persistent == role.persistent:
        return replace(like, role=role)
    trace, memory = with_persistent(
        role,
        like.node.device,
        like.role,
        like.trace,
        communicators=like.memory.communicator,
        streams_hold=holds,
        software=like.software,
    )
    return replace(like, role=role, trace=trace, memory=memory)
