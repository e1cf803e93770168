"""Pipeline parallelism: a replica's step cut into stages, each a role of its own that takes turns by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from foretell.graph import Graph
from foretell.parallel.schedules import most_in_flight, orders
from foretell.parallel.stages import Stages
from foretell.plan import Plan
from foretell.program import Action, Collective, Group, Pipeline, Role
from foretell.units import Bytes

Weigh = Callable[[Graph], Sequence[float]]


def bytes_touched(graph: Graph) -> list[float]:
    """What an op weighs where nothing better is known."""
    return [float(sum(x.nbytes for x in (*op.signature.inputs, *op.signature.outputs))) for op in graph.ops]


def pipelined(
    role: Role, plan: Plan, micro_batches: int, weigh: Weigh, replicate: Callable[[Role], Role]
) -> tuple[tuple[Role, ...], Pipeline]:
    """Cut a role into stages; `replicate` adds what each stage says to its replicas."""
    turns = orders(plan, micro_batches, training=role.graph.training)
    stages = Stages(role.graph, plan, weigh(role.graph), micro_batches)
    made, ranges = [], []
    for stage in range(plan.pp):
        graph, where, places = stages.stage(stage)
        own = tuple(_moved(c, places, len(graph.ops)) for c in role.collectives if c.starts_after in places)
        part = Role(
            name=f"stage {stage}",
            count=plan.devices // plan.pp,
            graph=graph,
            collectives=own,
            partitioned=role.partitioned,
        )
        part = replicate(part)
        waiting = _activations_in_flight(graph, where, turns[stage])
        held = {**part.persistent, "activation": part.persistent.get("activation", 0) + waiting}
        made.append(replace(part, persistent=held))
        ranges.append(where)
    between = Group(size=2, stride=plan.devices // plan.pp, count=plan.devices // plan.pp)
    hand_over = tuple(
        Collective(kind="send-recv", nbytes=nbytes, group=between, name=f"send to chunk {chunk + 1}",
                   starts_after=-1, waited_for_by=0, lane="pp", every_micro_step=True)
        for chunk, nbytes in enumerate(stages.crossings())
    )  # fmt: skip
    return tuple(made), Pipeline(
        micro_batches=micro_batches, chunks=stages.chunks, orders=turns, ranges=tuple(ranges), hand_over=hand_over
    )


def _moved(collective: Collective, places: Mapping[int, int], end: int) -> Collective:
    """A collective of the whole step, at its place among the stage's ops; what it waits for may lie on the next stage."""
    starts = places[collective.starts_after]
    waited = places.get(collective.waited_for_by, starts + 1)
    return replace(collective, starts_after=starts, waited_for_by=min(max(waited, starts + 1), end))


def _activations_in_flight(
    graph: Graph, ranges: dict[tuple[str, int], tuple[int, int]], order: tuple[Action, ...]
) -> Bytes:
    """What micro-batches between their passes hold, beside the one that the stage's graph holds itself."""
    kept: dict[int, Bytes] = {}
    for (phase, chunk), (first, last) in ranges.items():
        if phase == "forward":
            kept[chunk] = sum(s.nbytes for s in graph.storages if s.role == "activation" and first <= s.born < last)
    held = sum(kept[chunk] * count for chunk, count in most_in_flight(order).items())
    return max(held - sum(kept.values()), 0)
