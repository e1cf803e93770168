"""Data parallelism as DistributedDataParallel does it: gradients are all-reduced in buckets as they become ready."""

from __future__ import annotations

from foretell.graph import Graph
from foretell.program import Collective, Group, Program, Role
from foretell.units import MIB, Bytes
from foretell.workload import Plan

_FIRST_BUCKET = 1 * MIB  # DDP keeps its first bucket small, to start communicating early


def data_parallel(graph: Graph, plan: Plan) -> Program:
    if plan.dp == 1 or not graph.training:
        return Program(roles=(Role(name="dp", count=plan.dp, graph=graph),), ranks=plan.dp)
    collectives = tuple(_buckets(graph, plan))
    copies = sum(c.nbytes for c in collectives)  # buckets are copies of the gradients
    role = Role(name="dp", count=plan.dp, graph=graph, collectives=collectives, persistent={"gradient": copies})
    return Program(roles=(role,), ranks=plan.dp)


def _buckets(graph: Graph, plan: Plan) -> list[Collective]:
    update = next((i for i, op in enumerate(graph.ops) if op.phase == "optimizer"), len(graph.ops))
    last_backward = max((i for i, op in enumerate(graph.ops) if op.phase == "backward"), default=0)
    buckets: list[Collective] = []
    held, limit = 0, _FIRST_BUCKET
    ready_gradients = _ready(graph)
    for number, (ready, nbytes) in enumerate(ready_gradients):
        held += nbytes
        if held >= limit or number == len(ready_gradients) - 1:
            start = ready if plan.overlap else last_backward
            buckets.append(
                Collective(kind="all-reduce", nbytes=held, group=Group(size=plan.dp), name=f"all-reduce bucket {len(buckets)}",
                           starts_after=start, waited_for_by=update)
            )  # fmt: skip
            held, limit = 0, plan.bucket_bytes
    return buckets


def _ready(graph: Graph) -> list[tuple[int, Bytes]]:
    """(op that last writes it, bytes) of every gradient, in the order in which they become ready."""
    ready: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "backward":
            for tensor in op.outputs:
                ready[graph.tensors[tensor].storage] = position
    gradients = [(ready[i], s.nbytes) for i, s in enumerate(graph.storages) if s.role == "gradient" and i in ready]
    return sorted(gradients)
