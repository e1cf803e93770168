"""Data parallelism as DistributedDataParallel does it: gradients are all-reduced in buckets as they become ready."""

from __future__ import annotations

from dataclasses import replace

from foretell.graph import Graph
from foretell.parallel.expert import replicas_of_experts
from foretell.parallel.rewrite import first_of, last_of
from foretell.parallel.state import reduced_share
from foretell.plans import DDP_BUCKET_BYTES, Plan
from foretell.program import Collective, Group, Role
from foretell.units import MIB, Bytes

_FIRST_BUCKET = 1 * MIB  # DDP keeps its first bucket small, to start early, unless a size of buckets is asked for


def data_parallel(role: Role, plan: Plan, group: Group) -> Role:
    """The role with the gradients of its replicas averaged."""
    if group.size == 1 or not role.graph.training:
        return role
    collectives = buckets(role.graph, plan, group, leave_out=role.partitioned)
    if role.partitioned and (fewer := replicas_of_experts(plan)).size > 1:
        rest = frozenset(range(len(role.graph.storages))) - role.partitioned
        collectives += [
            replace(c, name=f"{c.name} of experts") for c in buckets(role.graph, plan, fewer, leave_out=rest)
        ]
    if not role.graph.precision.reduces_in_place:  # gradients go into buckets, and what is summed comes back
        collectives = [replace(c, copied_in=c.nbytes, copied_out=c.nbytes) for c in collectives]
    copies = sum(c.copied_in for c in collectives)
    return replace(role, collectives=(*role.collectives, *collectives)).with_persistent("gradient", copies)


def buckets(graph: Graph, plan: Plan, group: Group, leave_out: frozenset[int] = frozenset()) -> list[Collective]:
    update, last_backward = first_of(graph, "optimizer"), last_of(graph, "backward")
    made: list[Collective] = []
    filled, limit = 0, plan.bucket_bytes or _FIRST_BUCKET
    gradients = _ready(graph, leave_out)
    for number, (ready, nbytes) in enumerate(gradients, start=1):
        filled += nbytes
        if filled >= limit or number == len(gradients):
            bucket = Collective(
                kind="all-reduce",
                nbytes=filled,
                group=group,
                name=f"all-reduce bucket {len(made)}",
                starts_after=ready if plan.overlap else last_backward,
                waited_for_by=update,
            )
            made.append(bucket)
            filled, limit = 0, plan.bucket_bytes or DDP_BUCKET_BYTES
    return made


def _ready(graph: Graph, leave_out: frozenset[int]) -> list[tuple[int, Bytes]]:
    """(op that last writes it, bytes to reduce) of every gradient, in the order in which they become ready."""
    ready: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "backward":
            for tensor in op.outputs:
                ready[graph.tensors[tensor].storage] = position
    share = reduced_share(graph.precision)
    return sorted(
        (position, graph.storages[i].nbytes * share.numerator // share.denominator)
        for i, position in ready.items()
        if graph.storages[i].role == "gradient" and i not in leave_out
    )
