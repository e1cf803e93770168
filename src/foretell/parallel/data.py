"""Data parallelism as DistributedDataParallel does it: gradients are all-reduced in buckets as they become ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from foretell.graph import Graph
from foretell.parallel.expert import replicas_of_experts
from foretell.parallel.rewrite import first_of, last_of
from foretell.parallel.state import reduced_share
from foretell.plans import DDP_BUCKET_BYTES, Plan
from foretell.precision import bytes_per_number
from foretell.program import Collective, Group, Role
from foretell.trainers import FUSING
from foretell.units import MIB, Bytes

# DDP keeps its first bucket small, to start early, unless a size of buckets is asked for.
_FIRST_BUCKET: Final = 1 * MIB
# Of Megatron's buckets, in numbers: at least so many, and more where many ranks share one, whose latencies add up
# (`DistributedDataParallel` of megatron/core/distributed, bucket_size).
_MEGATRONS: Final = 40_000_000
_MEGATRONS_OF_A_RANK: Final = 1_000_000


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
    size = usual_bucket(graph, plan, group)
    filled, limit = 0, _FIRST_BUCKET if size == DDP_BUCKET_BYTES and plan.bucket_bytes is None else size
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
            filled, limit = 0, size
    return made


def usual_bucket(graph: Graph, plan: Plan, group: Group) -> Bytes:
    """Bytes that are reduced together: as the plan says, or as its trainer does among so many ranks."""
    if plan.bucket_bytes is not None:
        return plan.bucket_bytes
    if graph.facts.trainer not in FUSING:
        return DDP_BUCKET_BYTES
    return max(_MEGATRONS, _MEGATRONS_OF_A_RANK * group.size) * bytes_per_number(graph.precision.reduce)


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
