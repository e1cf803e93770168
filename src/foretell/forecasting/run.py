"""A program on a cluster: every role priced on the node that is slowest for it, timed together, its memory replayed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from foretell.cost.collectives import collective_seconds, compute_slowdown, link_bytes, sent_bytes
from foretell.cost.model import CostModel
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.experts import LANE, busiest, skewed
from foretell.forecasting.result import Breakdown, Memory, RankMemory
from foretell.forecasting.step import RoleStep, role_step
from foretell.hardware import Cluster, Device, Node
from foretell.profile import Profile
from foretell.program import Collective, Group, Program, Role
from foretell.simulate.allocator import OutOfMemory
from foretell.simulate.jitter import slowest_of
from foretell.simulate.memory import MemoryTrace, replay
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations, simulate
from foretell.simulate.timeline import Timeline
from foretell.units import MIB, Bytes, Seconds

_MEMORY_ERROR = 0.03  # one standard deviation of predicted over measured totals, see docs/accuracy/memory.md
_NCCL_BUFFERS: Bytes = 200 * MIB  # an estimate of what NCCL takes for its channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(RoleStep):
    """A role on one kind of node."""

    node: Node
    trace: MemoryTrace
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What running a program on a cluster comes to."""

    slowest: Placed
    heaviest: Placed
    timeline: Timeline
    exposed: Seconds  # what communication adds to the step
    bubble: Seconds
    memory: Memory
    stragglers: Seconds  # what waiting for the slowest of equal ranks adds
    sent: Bytes  # by the rank that sends most
    links: Mapping[str, Bytes]  # and over which links
    fastest_link: float  # bytes per second, at its peak


def run(
    program: Program, cluster: Cluster, model: CostModel, conditions: Conditions, profile: Profile | None = None
) -> Run:
    known: dict[object, Placed] = {}
    prices = _Prices(cluster, model, conditions, profile or Profile(name="none"))
    placed = [_on_nodes(role, nodes, prices, known) for role, nodes in _places(program, cluster)]
    heaviest = max((p for options in placed for p in options), key=lambda p: p.memory.total / p.memory.capacity)
    slowest = [max(options, key=lambda p: p.device_seconds + p.host_seconds) for options in placed]
    talks = _Talks(program, prices.collectives, slowest)
    jitter = conditions.jitter
    if program.pipeline is None:
        timelines = [simulate(p.role, p.durations) for p in placed[0]]
        timeline = max(timelines, key=lambda t: t.period)
        pace = placed[0][timelines.index(timeline)]
        free = simulate(pace.role, _free(pace.durations), draw=False) if pace.role.collectives else timeline
        others = {
            f"{p.role.name} on {p.node.device.name}": t
            for p, t in zip(placed[0], timelines, strict=True)
            if p is not pace
        }
        timeline = timeline.beside(others)
        late = timeline
        if program.ranks > 1 and jitter:
            late = simulate(pace.role, _late(pace, slowest_of(program.ranks, jitter)), draw=False)
    else:
        at = [p.role for p in slowest].index(heaviest.role)
        timeline = simulate_pipeline(program, [p.durations for p in slowest], talks.hand_over, at)
        nothing = [0.0] * len(talks.hand_over)
        freed = {id(p.durations): _free(p.durations) for p in slowest}
        free = simulate_pipeline(program, [freed[id(p.durations)] for p in slowest], nothing)
        pace = max(slowest, key=lambda p: p.device_seconds)
        delayed = {id(p.durations): _late(p, slowest_of(p.role.count, jitter)) for p in slowest}
        late = simulate_pipeline(program, [delayed[id(p.durations)] for p in slowest], talks.hand_over)
    ranks = tuple(
        RankMemory(role=options[0].role.name, count=options[0].role.count, total=max(p.memory.total for p in options))
        for options in placed
    )
    return Run(
        slowest=pace, heaviest=heaviest, timeline=timeline, exposed=max(timeline.period - free.period, 0.0),
        bubble=free.waiting, stragglers=max(late.period - timeline.period, 0.0),
        memory=replace(heaviest.memory, ranks=ranks), sent=talks.sent, links=talks.links, fastest_link=talks.fastest,
    )  # fmt: skip


class _Prices:
    """What prices a role: the model for its ops, the cluster for what it says, the conditions for both."""

    def __init__(self, cluster: Cluster, model: CostModel, conditions: Conditions, profile: Profile) -> None:
        self.model, self.conditions, self.profile = model, conditions, profile
        self.collectives = _Collectives(cluster, profile.communication)

    def slowdown(self, role: Role, device: Device) -> float:
        given = self.conditions.slowdown
        return compute_slowdown(role.collectives, self.collectives.cluster, device) if given is None else given


class _Collectives:
    """Seconds of collectives on a cluster; a step repeats a few of them many times."""

    def __init__(self, cluster: Cluster, factor: float) -> None:
        self.cluster, self.factor = cluster, factor
        self._known: dict[tuple[str, Bytes, Group], Seconds] = {}

    def __call__(self, collective: Collective) -> Seconds:
        key = (collective.kind, collective.nbytes, collective.group)
        if key not in self._known:
            self._known[key] = collective_seconds(collective, self.cluster) * self.factor
        return self._known[key] * collective.turns


class _Talks:
    """What the rank that talks most sends, and for how long."""

    def __init__(self, program: Program, seconds_of: _Collectives, placed: Sequence[Placed]) -> None:
        pipeline = program.pipeline
        self.hand_over = [seconds_of(c) for c in pipeline.hand_over] if pipeline else []
        self.sent, self.fastest = 0, 0.0
        self.links: dict[str, Bytes] = {}
        for stage, p in enumerate(placed):
            said = [(c, s, p.role.runs(c)) for c, s in zip(p.role.collectives, p.durations.collectives, strict=True)]
            if pipeline:
                stages, times = len(placed), pipeline.micro_batches
                for boundary, (c, s) in enumerate(zip(pipeline.hand_over, self.hand_over, strict=True)):
                    ways = (boundary % stages == stage) + ((boundary + 1) % stages == stage)  # forward on, and back
                    said.append((c, s, ways * times))
            sent = sum(sent_bytes(c) * times for c, _, times in said)
            if sent > self.sent:
                self.sent, self.links = sent, _by_link(said, seconds_of.cluster)
            self.fastest = max([self.fastest, *(sent_bytes(c) / s for c, s, times in said if s > 0 and times)])


def _by_link(said: Sequence[tuple[Collective, Seconds, int]], cluster: Cluster) -> dict[str, Bytes]:
    links: dict[str, Bytes] = defaultdict(int)
    known: dict[tuple[str, Bytes, Group], dict[str, Bytes]] = {}
    for c, _, times in said:
        key = (c.kind, c.nbytes, c.group)
        if key not in known:
            known[key] = link_bytes(c, cluster)
        for name, nbytes in known[key].items():
            links[name] += nbytes * times
    return dict(links)


def _free(durations: Durations) -> Durations:
    return replace(durations, collectives=[0.0] * len(durations.collectives))


def _late(placed: Placed, times: float) -> Durations:
    """A rank that is as many times slower, what it says to others apart."""
    d = placed.durations
    return replace(d, device=[s * times for s in d.device], host=[s * times for s in d.host], gap=d.gap * times)


def _places(program: Program, cluster: Cluster) -> list[tuple[Role, list[Node]]]:
    """The different nodes that each role lies on: stages take ranks one after another."""
    places: list[tuple[Role, list[Node]]] = []
    first = 0
    for role in program.roles:
        seen: dict[int, Node] = {}
        start = 0
        for node in cluster.nodes:
            if start < first + role.count and start + node.count > first:
                seen[id(node)] = node
            start += node.count
        places.append((role, list(seen.values())))
        first += role.count
    return places


def _on_nodes(role: Role, nodes: Sequence[Node], prices: _Prices, known: dict[object, Placed]) -> list[Placed]:
    placed = []
    for node in nodes:
        key = (id(node), *_likeness(role))  # stages in the middle of a pipeline are alike, what waits there apart
        if key not in known:
            known[key] = _on_node(role, node, prices)
        like = known[key]
        waiting = {what: n - like.role.persistent.get(what, 0) for what, n in role.persistent.items()}
        placed.append(replace(like, role=role, memory=_with(like, role, waiting)) if any(waiting.values()) else
                      replace(like, role=role))  # fmt: skip
    return placed


def _with(like: Placed, role: Role, more: Mapping[str, Bytes]) -> Memory:
    """The memory of a role that differs from another in what it holds all along."""
    device, extra = like.node.device, sum(more.values())
    trace = replace(
        like.trace, peak_allocated=like.trace.peak_allocated + extra, peak_reserved=like.trace.peak_reserved + extra,
        at_peak={**like.trace.at_peak, **{w: like.trace.at_peak.get(w, 0) + n for w, n in more.items()}},
    )  # fmt: skip
    total = trace.peak_reserved + device.context_bytes + _communicator(role)
    if total > device.usable_bytes:
        trace, fits = _replay(role, device)  # whether the cache can give way is seen only so
        return _memory(role, device, trace, fits)
    return _memory(role, device, trace, True)


def _likeness(role: Role) -> tuple[object, ...]:
    ops = tuple(
        (op.target, sum(x.numel for x in op.signature.inputs))
        if op.phase == "optimizer"
        else (id(op.signature), op.times)
        for op in role.graph.ops
    )
    said = tuple((c.kind, c.nbytes, c.starts_after) for c in role.collectives)
    held: dict[str, Bytes] = defaultdict(int)
    for s in role.graph.storages:
        held[s.role] += s.nbytes
    return hash(ops), said, *sorted(held.items())


def _on_node(role: Role, node: Node, by: _Prices) -> Placed:
    alone = role_step(role, node.device, node.host, by.model)
    skew = busiest(role, by.conditions.expert_skew)
    d = alone.durations
    durations = replace(
        d,
        device=skewed(role, [s * by.profile.device for s in d.device], skew),
        host=[s * by.profile.host for s in _issuing(role, d.host)],
        collectives=[by.collectives(c) * (skew if c.lane == LANE else 1.0) for c in role.collectives],
        gap=d.gap * by.profile.device,
        slowdown=by.slowdown(role, node.device) if role.collectives else 1.0,
    )
    trace, fits = _replay(role, node.device)
    memory = _memory(role, node.device, trace, fits)
    return Placed(role=role, node=node, priced=alone.priced, durations=durations, trace=trace, memory=memory)


def _issuing(role: Role, seconds: Sequence[Seconds]) -> Sequence[Seconds]:
    if role.issues_for == 1:
        return seconds
    return [
        s if op.phase == "optimizer" else s * role.issues_for for s, op in zip(seconds, role.graph.ops, strict=True)
    ]


def _replay(role: Role, device: Device) -> tuple[MemoryTrace, bool]:
    """The step's memory on a device; when it does not fit, as it would be on one without limit."""
    temporaries = temporary_bytes(role.graph, device)
    kept = kept_workspaces(role.graph, device)
    capacity = device.usable_bytes - device.context_bytes - _communicator(role)
    try:
        return replay(
            role.graph, temporaries=temporaries, kept_workspace=kept, persistent=role.persistent, capacity=capacity
        ), True
    except OutOfMemory:
        return replay(role.graph, temporaries=temporaries, kept_workspace=kept, persistent=role.persistent), False


def _communicator(role: Role) -> Bytes:
    return _NCCL_BUFFERS if role.count > 1 or role.collectives else 0


def _memory(role: Role, device: Device, trace: MemoryTrace, fits: bool) -> Memory:
    communicator = _communicator(role)
    total = trace.peak_reserved + device.context_bytes + communicator
    least = trace.peak_allocated + device.context_bytes + communicator  # the cache gives way when memory is short
    at = trace.at_peak
    return Memory(
        allocated=trace.peak_allocated, reserved=trace.peak_reserved, context=device.context_bytes, communicator=communicator,
        total=total, capacity=device.usable_bytes, fits=fits, fit_probability=_fit_probability(least, device.usable_bytes),
        breakdown=Breakdown(
            parameters=at.get("parameter", 0), gradients=at.get("gradient", 0), optimizer=at.get("optimizer", 0),
            activations=at.get("activation", 0), inputs=at.get("input", 0), temporaries=at.get("temporary", 0),
            workspace=at.get("workspace", 0),
        ),
        peak_module=role.graph.ops[trace.peak_op].module if trace.peak_op >= 0 else "",
        ranks=(RankMemory(role=role.name, count=role.count, total=total),),
    )  # fmt: skip


def _fit_probability(needed: Bytes, capacity: Bytes) -> float:
    distance = math.log(capacity / needed) / _MEMORY_ERROR
    return round(0.5 * math.erfc(-distance / math.sqrt(2)), 4)
