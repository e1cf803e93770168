"""What one rank of a plan runs, as after-ScaleDL reads it: its own ops, and its collectives as nodes between them.

Of a pipeline it is the stage with most to do; how long it waits for the others beside is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from foretell.cost.roofline import price_ops
from foretell.graph import Graph
from foretell.hardware import Cluster, Device
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.program import Collective, Pipeline, Program, Role
from foretell.units import Bytes, BytesPerSecond, Seconds

_OFTEN: Final = ("forward", "backward", "weights")  # phases that a pipeline repeats for every micro-batch
_PASSES: Final = {"all-reduce": 2.0}  # times a ring sends every byte but a rank's own; other collectives once


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective between the op that makes its data ready and the first that needs it."""

    kind: str
    nbytes: Bytes
    size: int  # ranks
    bandwidth: BytesPerSecond
    latency: Seconds
    runs: float  # in a step
    after: int  # op; -1: before the step
    before: int  # op

    @property
    def ideal(self) -> Seconds:
        """By bytes and the slowest link alone, as a ring."""
        part = (self.size - 1) / self.size
        return _PASSES.get(self.kind, 1.0) * part * self.nbytes / self.bandwidth + (self.size - 1) * self.latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    graph: Graph
    runs: tuple[float, ...]  # of each op, in a step
    exchanges: tuple[Exchange, ...]
    waiting: float  # for other stages, as a part of what it does


def rank_of(graph: Graph, plan: Plan, cluster: Cluster, device: Device) -> Rank:
    """The busiest one. A plan that cannot be modelled is refused."""
    if plan == Plan():
        return Rank(graph=graph, runs=tuple(map(float, graph.op_times)), exchanges=(), waiting=0.0)
    program = parallelize(graph, plan)
    number = max(range(len(program.roles)), key=lambda i: _busy(program.roles[i], device))
    role, pipeline = program.roles[number], program.pipeline
    often = pipeline.micro_batches if pipeline is not None else 1
    runs = tuple(op.times * float(often if op.phase in _OFTEN else 1) for op in role.graph.ops)
    made = tuple(_exchanges(program, number, often, cluster))
    return Rank(graph=role.graph, runs=runs, exchanges=made, waiting=_waiting(pipeline, len(program.roles)))


def _busy(role: Role, device: Device) -> Seconds:
    prices = price_ops(role.graph, device)
    return sum(price.seconds * op.times for price, op in zip(prices, role.graph.ops, strict=True))


def _waiting(pipeline: Pipeline | None, stages: int) -> float:
    """The bubble of 1F1B and its like."""
    if pipeline is None:
        return 0.0
    return (stages - 1) * stages / (pipeline.micro_batches * pipeline.chunks)


def _exchanges(program: Program, number: int, often: int, cluster: Cluster) -> Iterator[Exchange]:
    role, pipeline = program.roles[number], program.pipeline
    for one in role.collectives:
        yield _exchange(one, role.runs(one) * (often if one.every_micro_step else 1.0), cluster)
    for one in _handed(pipeline, number) if pipeline is not None else ():
        yield _exchange(one, 2.0 * often, cluster, last=len(role.graph.ops) - 1)  # there, and its gradient back


def _handed(pipeline: Pipeline, number: int) -> Sequence[Collective]:
    """What a stage hands to the next."""
    return [one for chunk, one in enumerate(pipeline.hand_over) if pipeline.stage_of[chunk] == number]


def _exchange(one: Collective, runs: float, cluster: Cluster, last: int | None = None) -> Exchange:
    inside = cluster.nodes[0].inside
    spans = one.group.size * one.group.stride > min(node.count for node in cluster.nodes)
    crosses = cluster.between is not None and (spans or one.kind == "send-recv")
    link = cluster.between if crosses and cluster.between is not None else inside
    bandwidth = (cluster.between_bandwidth if crosses else None) or inside.bandwidth
    return Exchange(
        kind=one.kind, nbytes=one.nbytes * one.turns, size=max(one.group.size, 2), bandwidth=bandwidth, latency=link.latency,
        runs=runs, after=one.starts_after if last is None else last, before=one.waited_for_by if last is None else last + 1,
    )  # fmt: skip
