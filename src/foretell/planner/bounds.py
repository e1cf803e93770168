"""What a plan takes at least, in time and in memory, from a few numbers of its step: most plans are never simulated.

A replica is priced once, alone on the few devices that share it; what plans with more devices add to it (the fill of a
pipeline, gradients, gathered parameters) is arithmetic. Every number leaves out something that the simulator counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from foretell.cost.collectives import collective_seconds, compute_slowdown
from foretell.cost.flops import total_flops
from foretell.cost.model import CostModel
from foretell.errors import InputError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.memory import beside_at_peak
from foretell.forecasting.run import time_alike
from foretell.graph import Graph
from foretell.hardware import Cluster, Device
from foretell.parallel import parallelize
from foretell.parallel.blocks import BlockOf, blocks
from foretell.parallel.parameters import parameters
from foretell.parallel.rewrite import last_of
from foretell.parallel.stages import balanced
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.profile import Profile
from foretell.program import Collective, Group
from foretell.simulate.step import simulate
from foretell.units import Bytes, Flops, Seconds

# Ops are priced with their neighbours, which plans change a little; the rest are bounds.
SLACK: Final = 0.985
_LINE: Final = 0.95  # of a step that is continued from two batches
_BLOCKS: Final = 0.9  # of a model's state and activations, in its repeated blocks
_RECOMPUTED: Final = 0.75  # of a block's forward pass, at least: recomputing ends where the last thing needed is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of a step as it was captured, for bounds that need no prices."""

    flops: Flops  # of a micro-step
    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    precision: Precision


def facts_of(graph: Graph) -> Facts:
    return Facts(
        flops=total_flops(graph) / graph.grad_accumulation,
        parameters=graph.bytes_of("parameter"),
        gradients=graph.bytes_of("gradient"),
        optimizer=graph.bytes_of("optimizer"),
        precision=graph.precision,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One micro-step of one replica on a rank of those that share it, and what it keeps; `why` it cannot be, if so."""

    units: tuple[Seconds, ...] = ()  # forward and backward of each repeated block, the rest with the first and the last
    host: Seconds = 0.0  # that it takes to issue them
    blocks_forward: Seconds = 0.0  # the part of it that checkpointing of all blocks would repeat
    update: Seconds = 0.0
    parameters: Bytes = 0
    in_blocks: Bytes = 0  # of the parameters: what FSDP gathers twice
    gradients: Bytes = 0
    optimizer: Bytes = 0
    activations: Bytes = 0  # kept for the backward pass
    beside: Bytes = 0  # temporaries at the peak, with everything in one stage
    why: str = ""

    @property
    def micro(self) -> Seconds:
        return sum(self.units)


def price_replica(
    graph: Graph, cluster: Cluster, plan: Plan, model: CostModel, conditions: Conditions, profile: Profile | None
) -> Replica:
    """Of a plan's tensor and context parallelism and checkpointing, with nothing else of it."""
    alone = Plan(
        tp=plan.tp,
        cp=plan.cp,
        sequence_parallel=plan.sequence_parallel,
        overlap_tp=plan.overlap_tp,
        checkpointing=plan.checkpointing,
        grad_accumulation=1,
    )
    try:
        step = time_alike(parallelize(graph, alone), corner(cluster, alone.devices), model, conditions, profile)
    except InputError as error:
        return Replica(why=str(error))
    role, durations = step.role, step.durations
    units, forward, update = _by_block(role.graph, durations.device.tolist())
    ahead = simulate(role, replace(durations, host=0.0 * durations.host), draw=False).period
    scale = max(ahead - update, 0.0) / (sum(units) or 1.0)  # communication is spread evenly
    issuing = sum(s for op, s in zip(role.graph.ops, durations.host, strict=True) if op.phase != "optimizer")
    inside = BlockOf(blocks(role.graph))
    turn = last_of(role.graph, "forward")
    alive = [s for s in role.graph.storages if s.role == "activation" and s.born <= turn < s.freed]
    return Replica(
        units=tuple(seconds * scale for seconds in units),
        host=issuing,
        blocks_forward=forward,
        update=update,
        parameters=role.graph.bytes_of("parameter"),
        in_blocks=sum(p.layout.nbytes for p in parameters(role.graph) if inside[p.module]),
        gradients=role.graph.bytes_of("gradient"),
        optimizer=role.graph.bytes_of("optimizer"),
        activations=sum(s.nbytes for s in alive),
        beside=beside_at_peak(role.graph, cluster.nodes[0].device),
    )


def _by_block(graph: Graph, device: Sequence[Seconds]) -> tuple[list[Seconds], Seconds, Seconds]:
    """Seconds of each repeated block, of their forward passes together, and of the update.

    What comes before the blocks runs with the first of them, what comes after with the last, as stages have it.
    """
    number = {path: i for i, path in enumerate(blocks(graph))}
    inside = BlockOf(number)
    units, forward, update = [0.0] * max(len(number), 1), 0.0, 0.0
    seen: set[str] = set()
    for op, seconds in zip(graph.ops, device, strict=True):
        if op.phase == "optimizer":
            update += seconds
            continue
        block = inside[op.module]
        if block:
            seen.add(op.phase)
            units[number[block]] += seconds
            forward += seconds if op.phase == "forward" else 0.0
        else:
            units[0 if (op.phase == "forward") != (op.phase in seen) else -1] += seconds
    return units, forward, update


def corner(cluster: Cluster, devices: int) -> Cluster:
    """The first devices of a cluster."""
    nodes, left = [], devices
    for node in cluster.nodes:
        nodes.append(node if node.count <= left else replace(node, count=left))
        left -= nodes[-1].count
        if not left:
            break
    return replace(cluster, nodes=tuple(nodes), name="")


def continued(sizes: tuple[int, int], known: tuple[Replica, Replica], to: int) -> Replica:
    """A bound at another batch, along the line through two; kernels of a larger batch may be somewhat more efficient."""
    small, large = known
    along = (to - sizes[0]) / (sizes[1] - sizes[0])

    def on_line(a: float, b: float) -> float:
        return max(a + (b - a) * along, 0.0)

    return replace(
        small,
        units=tuple(_LINE * on_line(a, b) for a, b in zip(small.units, large.units, strict=True)),
        host=_LINE * min(small.host, large.host),
        blocks_forward=on_line(small.blocks_forward, large.blocks_forward),
        activations=round(on_line(small.activations, large.activations)),
        beside=round(on_line(small.beside, large.beside)),
    )


def recomputing(replica: Replica, plan: Plan) -> Replica:
    """A bound for a plan that recomputes, from its replica that does not: it keeps nothing, and repeats what it must."""
    share = (
        1.0 if plan.checkpointing == "full" else plan.checkpointing if isinstance(plan.checkpointing, float) else 0.0
    )
    more = _RECOMPUTED * share * replica.blocks_forward / max(len(replica.units), 1)
    return replace(replica, units=tuple(seconds + more for seconds in replica.units), activations=0, beside=0)


def arithmetic_step(facts: Facts, plan: Plan, device: Device) -> Seconds:
    """Of work at the device's peak."""
    peak = max(device.peak(facts.precision.unit(family, device)) for family in ("matmul", "convolution"))
    micro_steps = plan.grad_accumulation or 1
    each = facts.flops / (plan.tp * plan.cp * plan.pp) / peak
    return each * (micro_steps + plan.pp - 1)


def arithmetic_memory(facts: Facts, plan: Plan) -> Bytes:
    """Of the model's state alone."""
    parts = plan.tp * plan.pp * plan.ep
    return round(_BLOCKS * _state(facts.parameters / parts, facts.gradients / parts, facts.optimizer / parts, plan))


def step_bound(replica: Replica, plan: Plan, cluster: Cluster, precision: Precision, slowdown: float | None) -> Seconds:
    """The device's time or the host's, whichever is longer."""
    issuing = (plan.grad_accumulation or 1) * replica.host / plan.pp
    return SLACK * max(_device_bound(replica, plan, cluster, precision, slowdown), issuing)


def _device_bound(
    replica: Replica, plan: Plan, cluster: Cluster, precision: Precision, slowdown: float | None
) -> Seconds:
    """Of the plan's stages one after another, its update, and what it communicates where nothing hides it."""
    micro_steps = plan.grad_accumulation or 1
    device = cluster.nodes[0].device
    stages = _stage_seconds(replica.units, plan.pp)
    slowest = max(stages)
    adding = 3 * replica.gradients / plan.pp / device.bandwidth  # gradients to those of the micro-step before
    computing = sum(stages) + (micro_steps - 1) * (slowest + adding)
    replicas = plan.dp * plan.cp
    shards = (plan.hybrid_shard or replicas) if plan.zero else 1
    update = replica.update / plan.pp / shards
    if replicas == 1 or plan.servers:
        return computing + update
    size = shards if plan.zero else replicas
    link = _Lane(cluster, Group(size=size, stride=plan.tp, count=plan.devices // size))
    narrow = 0.5 if precision.is_autocast and plan.zero > 1 else 1.0
    whole, again, gradients = (
        n / plan.pp / plan.ep for n in (replica.parameters * narrow, replica.in_blocks * narrow, replica.gradients)
    )
    if plan.zero == 0:
        return computing + update + max(link("all-reduce", gradients) - slowest, 0.0)
    gather, scatter = link("all-gather", whole), link("reduce-scatter", gradients)
    if plan.zero == 1:
        return computing + update + gather + max(scatter - slowest, 0.0)
    if plan.pp > 1:  # what a stage communicates may hide behind its waiting for others
        return computing + update
    if plan.zero == 3:
        gather += link("all-gather", again)
    communicating = micro_steps * (gather + scatter)
    slower = link.slowdown if slowdown is None else slowdown
    beside = min(communicating, computing)
    return max(computing + (1 - 1 / slower) * beside, communicating) + update


def memory_bound(replica: Replica, plan: Plan) -> Bytes:
    """Of the heaviest stage, from its share of the blocks."""
    micro_steps = plan.grad_accumulation or 1
    parts = plan.ep
    state = _state(replica.parameters / parts, replica.gradients / parts, replica.optimizer / parts, plan)
    if micro_steps == 1 and plan.zero < 2:  # gradients come as activations go
        state -= replica.gradients / parts
    kept = replica.activations
    if plan.pp == 1:
        return round(SLACK * (state + kept + replica.beside))
    shares = [count / len(replica.units) for count in _stage_blocks(replica.units, plan.pp)]
    stages = (share * (state + kept * min(plan.pp - s, micro_steps)) for s, share in enumerate(shares))
    return round(_BLOCKS * max(stages))


@cache
def _cut(units: tuple[Seconds, ...], parts: int) -> list[int]:
    return balanced(units, parts)


def _stage_seconds(units: tuple[Seconds, ...], stages: int) -> list[Seconds]:
    seconds = [0.0] * stages
    for stage, unit in zip(_cut(units, stages) if stages > 1 else [0] * len(units), units, strict=True):
        seconds[stage] += unit
    return seconds


def _stage_blocks(units: tuple[Seconds, ...], stages: int) -> list[int]:
    cut = _cut(units, stages)
    return [cut.count(stage) for stage in range(stages)]


def _state(parameters: float, gradients: float, optimizer: float, plan: Plan) -> float:
    replicas = plan.dp * plan.cp
    shards = plan.hybrid_shard or replicas
    if replicas == 1:
        return parameters + gradients + optimizer
    if plan.zero < 2:  # buckets are copies of the gradients
        return parameters + 2 * gradients + optimizer / (shards if plan.zero else 1)
    return parameters / (1 if plan.zero == 2 else shards) + (gradients + optimizer) / shards


class _Lane:
    """Collectives of a group, each in one piece."""

    def __init__(self, cluster: Cluster, group: Group) -> None:
        self.cluster, self.group = cluster, group

    def __call__(self, kind: str, nbytes: float) -> Seconds:
        if nbytes < 1:
            return 0.0
        return _remembered(
            ("seconds", id(self.cluster), self.group, kind, round(nbytes)),
            lambda: collective_seconds(self._one(kind, round(nbytes)), self.cluster),
        )

    @property
    def slowdown(self) -> float:
        """Of compute beside them."""
        one, cluster = self._one("all-gather", 1), self.cluster
        return _remembered(
            ("slowdown", id(cluster), self.group), lambda: compute_slowdown([one], cluster, cluster.nodes[0].device)
        )

    def _one(self, kind: str, nbytes: Bytes) -> Collective:
        return Collective(kind=kind, nbytes=nbytes, group=self.group, name=kind, starts_after=-1, waited_for_by=1)


_known: dict[tuple[object, ...], float] = {}


def _remembered(key: tuple[object, ...], make: Callable[[], float]) -> float:
    if key not in _known:
        _known[key] = make()
    return _known[key]
