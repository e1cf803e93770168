"""ZeRO 1: parameters and gradients are whole on every rank, and each updates its part of them.

Gradients are scattered in buckets, in the last micro-step; the updated parameters are gathered at the end of the step, or
while the next forward pass runs. nanotron reduces them whole, after the last backward pass if it adds them up in fp32, and so
does DeepSpeed. InternEvo gives each parameter to one rank: gradients are reduced whole, and owners broadcast what they updated.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from foretell.errors import PlanError
from foretell.graph import Graph, Storage
from foretell.parallel.data import buckets, usual_bucket
from foretell.parallel.parameters import Parameter, parameters
from foretell.parallel.rewrite import first_of, shard_update, with_storages
from foretell.plans import Plan
from foretell.precision import Precision, bytes_per_number
from foretell.program import Collective, Group, Role

_ENGINE_BUCKET: Final = 500_000_000  # numbers that DeepSpeed's pipelines reduce at once (MEMORY_OPT_ALLREDUCE_SIZE)
_NUMBER: Final = 8  # bytes of a counter, or of a norm, which is not part of a flat tensor
_OWNERS_BUCKET: Final = 512 * 2**20  # InternEvo's reduce_bucket_size, in numbers, as all its configurations have it


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroups:
    """The ranks that share a copy of the model, and those that have the same part of it.

    Of experts that ranks share already, only those with the same ones (`experts`) can share a copy.
    """

    shard: Group
    replicas: Group
    experts: Group | None = None


def shard_optimizer_state(role: Role, plan: Plan, groups: ShardGroups) -> Role:
    """ZeRO 1: gradients are scattered in buckets, and the updated parameters gathered."""
    if plan.sharding == "nanotron":
        return _as_nanotron(role, plan, groups)
    if plan.sharding == "internevo":
        return _as_internevo(role, plan, groups)
    if sums_in_the_end(plan, role.graph.precision):
        return _as_deepspeed(role, plan, groups)
    own = role.partitioned
    graph = shard_update(role.graph, groups.shard.size, own, groups.experts.size if groups.experts else 1)
    filled = buckets(graph, plan, groups.shard, leave_out=own)
    if groups.experts is not None and groups.experts.size > 1:
        rest = frozenset(range(len(graph.storages))) - own
        filled += buckets(graph, plan, groups.experts, leave_out=rest)
    in_place = graph.precision.reduces_in_place
    scattered = [
        replace(
            bucket,
            kind="reduce-scatter",
            name=f"reduce-scatter bucket {number}",
            copied_in=0 if in_place else bucket.nbytes,
        )
        for number, bucket in enumerate(filled)
    ]
    gathers = _gathers(graph, plan, groups, own) if plan.overlap_gather else _gathers_at_the_end(graph, filled)
    collectives = (*role.collectives, *scattered, *between_replicas(scattered, groups), *gathers)
    copies = sum(c.copied_in for c in scattered)
    return replace(role, graph=graph, collectives=collectives).with_persistent("gradient", copies)


def check_sharding(plan: Plan) -> None:
    """Whether whose way of sharding it is can say the plan."""
    others = {"zero": 1, "hybrid_shard": None, "overlap_gather": False, "ep": 1, "offload": "none"}
    among = "all ranks of dp"
    if plan.sharding == "internevo":
        among = "ranks of dp"
        del others["hybrid_shard"]
    unsaid = [f"{name}={getattr(plan, name)}" for name, alone in others.items() if getattr(plan, name) != alone]
    if plan.sharding in ("nanotron", "internevo") and unsaid:
        raise PlanError(
            f"sharding={plan.sharding} shares the optimizer's state among {among} (zero=1) and nothing else, got {', '.join(unsaid)}. "
            "Leave these out, or sharding."
        )


def sums_in_the_end(plan: Plan, precision: Precision) -> bool:
    """Whether DeepSpeed reduces fp32 sums of gradients, after the last backward pass (`BF16_Optimizer`)."""
    alone = plan.ep == 1 and plan.hybrid_shard is None
    return alone and plan.sharding == "deepspeed" and plan.zero == 1 and precision.reduces_in_place


def _as_nanotron(role: Role, plan: Plan, groups: ShardGroups) -> Role:
    """Gradients are all-reduced whole, and what was updated is gathered in one buffer.

    Those that it adds up in fp32 it keeps in one buffer, not wrapped in DDP, and sends when the last backward pass is done
    (`make_ddp` in its `trainer.py`, `sync_gradients_across_dp` and `all_gather_coalesced`); others are DDP's.
    """
    graph = shard_update(role.graph, groups.shard.size, frozenset(), 1)
    in_place = graph.precision.reduces_in_place
    reduced = buckets(graph, replace(plan, overlap=plan.overlap and not in_place), groups.shard)
    whole = sum(c.nbytes for c in reduced)
    if in_place:
        reduced = [replace(c, nbytes=whole, name="all-reduce of all gradients") for c in reduced[:1]]
    else:
        reduced = [replace(c, copied_in=c.nbytes, copied_out=c.nbytes) for c in reduced]
    gathered = _gathers_at_the_end(graph, [replace(c, nbytes=whole) for c in reduced[:1]])
    copies = sum(c.copied_in for c in reduced)
    return replace(role, graph=graph, collectives=(*role.collectives, *reduced, *gathered)).with_persistent(
        "gradient", copies
    )


def _as_deepspeed(role: Role, plan: Plan, groups: ShardGroups) -> Role:
    """fp32 sums are all-reduced whole, in buckets that are copied together (`buffered_allreduce_fallback`), and what was updated
    is gathered at once (`all_gather_dp_groups`)."""
    graph = shard_update(role.graph, groups.shard.size, frozenset(), 1)
    size = plan.bucket_bytes or _ENGINE_BUCKET * bytes_per_number(graph.precision.reduce)
    reduced = [
        replace(c, copied_in=c.nbytes, copied_out=c.nbytes)
        for c in buckets(graph, replace(plan, overlap=False, bucket_bytes=size), groups.shard)
    ]
    gathered = _gathers_at_the_end(graph, [replace(c, nbytes=sum(b.nbytes for b in reduced)) for c in reduced[:1]])
    return replace(role, graph=graph, collectives=(*role.collectives, *reduced, *gathered))


def _as_internevo(role: Role, plan: Plan, groups: ShardGroups) -> Role:
    """Each parameter has one owner among the ranks that share the state (`HybridZeroOptimizer`).

    Gradients are flattened in large buckets and all-reduced among all replicas, whoever needs them; at the end each owner
    broadcasts its parameters, one owner after another.
    """
    graph = shard_update(role.graph, groups.shard.size, frozenset(), 1)
    copies = groups.replicas.size
    everyone = replace(groups.shard, size=groups.shard.size * copies, count=max(groups.shard.count // copies, 1))
    size = plan.bucket_bytes or _OWNERS_BUCKET * bytes_per_number(graph.precision.reduce)
    reduced = [
        replace(c, copied_in=c.nbytes, copied_out=c.nbytes)
        for c in buckets(graph, replace(plan, bucket_bytes=size), everyone)
    ]
    ends = [c.starts_after for c in reduced[1:]] + [c.waited_for_by for c in reduced[-1:]]
    flat = [Storage(c.nbytes, "temporary", max(c.starts_after, 0), end) for c, end in zip(reduced, ends, strict=True)]
    owned, end = _of_owners(graph, groups.shard.size), len(graph.ops)
    changed, made = _flat_update(graph, sum(owned) // groups.shard.size)
    graph = with_storages(graph, changed, [*flat, *made])
    updated = [
        Collective(
            kind="broadcast",
            nbytes=numel * graph.precision.bytes_updated,
            group=groups.shard,
            name=f"broadcast updated {number}",
            starts_after=end - 1,
            waited_for_by=end,
        )
        for number, numel in enumerate(owned)
    ]
    return replace(role, graph=graph, collectives=(*role.collectives, *reduced, *updated))


def _flat_update(graph: Graph, numel: int) -> tuple[dict[int, Storage], list[Storage]]:
    """What updating one flat tensor takes: its gradients flattened, before they are copied to fp32, and what a list would have
    in many small blocks (fp32 gradients, roots) in one block, which no small block that was freed has room for."""
    update = first_of(graph, "optimizer")
    names = [op.signature.name for op in graph.ops[update:]]
    copied = update + next((i for i, name in enumerate(names) if name != "aten._to_copy"), 0)
    lists: dict[str, dict[int, Storage]] = defaultdict(dict)
    for number, storage in enumerate(graph.storages):
        if storage.role == "temporary" and storage.born >= update and storage.nbytes > _NUMBER:
            lists[names[storage.born - update]][number] = storage
    flattened = Storage(numel * bytes_per_number(graph.precision.gradients), "temporary", update, copied)
    flat = [
        Storage(sum(s.nbytes for s in parts), "temporary", max(s.born for s in parts), max(s.freed for s in parts))
        for parts in map(dict.values, lists.values())
    ]
    return {n: replace(s, nbytes=0) for parts in lists.values() for n, s in parts.items()}, [flattened, *flat]


def _of_owners(graph: Graph, ranks: int) -> list[int]:
    """Numbers in the parameters of each rank that has any: whole parameters, the largest first, to who has least."""
    numbers = sorted((p.layout.numel for p in parameters(graph) if p.gradient is not None), reverse=True)
    owned = [0] * min(ranks, len(numbers))
    for numel in numbers:
        heapq.heapreplace(owned, owned[0] + numel)
    return sorted(owned, reverse=True)


def _gathers_at_the_end(graph: Graph, filled: Sequence[Collective]) -> list[Collective]:
    """Updated parameters, once all are: bucket by bucket too, for over many ranks each pays the latency of its whole ring."""
    end = len(graph.ops)
    kept = Fraction(graph.precision.bytes_updated, bytes_per_number(graph.precision.reduce))
    return [
        replace(
            bucket,
            kind="all-gather",
            nbytes=int(bucket.nbytes * kept),
            name=f"all-gather updated {number}",
            starts_after=end - 1,
            waited_for_by=end,
        )
        for number, bucket in enumerate(filled)
    ]


def _gathers(graph: Graph, plan: Plan, groups: ShardGroups, own: frozenset[int]) -> Iterator[Collective]:
    """Updated parameters while the next forward pass runs, in the order in which it needs them."""
    for group, experts in ((groups.shard, False), (groups.experts, True)):
        if group is None or group.size == 1:
            continue
        limit = Fraction(usual_bucket(graph, plan, group), bytes_per_number(graph.precision.reduce))  # in numbers
        trained = [p for p in parameters(graph) if p.gradient is not None and (p.gradient in own) == experts]
        filled: list[Parameter] = []
        for p in trained:
            filled.append(p)
            if sum(q.layout.numel for q in filled) >= limit or p is trained[-1]:
                first = filled[0].used[0]
                yield Collective(
                    kind="all-gather",
                    nbytes=sum(q.layout.numel for q in filled) * graph.precision.bytes_updated,
                    group=group,
                    name=f"all-gather updated {filled[0].module}",
                    starts_after=-1,
                    waited_for_by=first,
                    issued_by=0,
                )
                filled = []


def between_replicas(scattered: Sequence[Collective], groups: ShardGroups) -> list[Collective]:
    """What the ranks with the same part add up among themselves, once it is scattered."""
    return [
        replace(
            c,
            kind="all-reduce",
            nbytes=-(-c.nbytes // c.group.size),
            group=groups.replicas,
            name=c.name.replace("reduce-scatter", "all-reduce"),
            lane="replicas",
            copied_in=0,
        )
        for c in (scattered if groups.replicas.size > 1 else ())
    ]
