"""Sharded data parallelism: ZeRO 1 to 3, with torch's `fully_shard` as the model for 2 and 3.

3 gathers a block's parameters before it runs, forward and backward, and frees them after; 2 keeps them in between. Both
scatter the block's gradients when its backward is done. 1 keeps parameters whole, scatters gradients in buckets after
the last micro-step, and gathers the parameters it has updated. Repeated blocks are the units; what is outside of them
is one more, gathered first, kept for the backward pass and scattered last. Stages of a pipeline scatter in their last
micro-batch alone, as torch lets them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from foretell.graph import ITEM_BYTES, Storage
from foretell.parallel.blocks import Span, block_of, blocks, passes
from foretell.parallel.data import buckets
from foretell.parallel.parameters import Parameter, parameters
from foretell.parallel.rewrite import first_of, last_of, shard_of, shard_update, with_storages
from foretell.plan import Plan
from foretell.program import Collective, Group, Role
from foretell.units import Bytes

# Under autocast a sharded step gathers in the dtype of the matrix products and reduces in full precision.
_GATHERED_AS = {"amp-bf16": "bfloat16", "amp-fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The ranks that share a copy of the model, and those that hold the same part of it."""

    shard: Group
    replicas: Group


def shard(role: Role, plan: Plan, sharding: Sharding) -> Role:
    """The role with its model state sharded."""
    if sharding.shard.size == 1 or not role.graph.training:
        return role
    if plan.zero == 1:
        return _optimizer_state(role, plan, sharding)
    return _Units(role, plan, sharding).sharded()


def _optimizer_state(role: Role, plan: Plan, sharding: Sharding) -> Role:
    ways = sharding.shard.size
    graph = shard_update(role.graph, ways)
    scattered = [replace(c, kind="reduce-scatter", name=c.name.replace("all-reduce", "reduce-scatter"), group=sharding.shard)
                 for c in buckets(graph, plan, sharding.shard)]  # fmt: skip
    end = len(graph.ops)
    gathered = graph.bytes_of("gradient")
    gather = Collective(kind="all-gather", nbytes=gathered, group=sharding.shard, name="all-gather updated parameters",
                        starts_after=end - 1, waited_for_by=end)  # fmt: skip
    copies = sum(c.nbytes for c in scattered)
    replicated = tuple(_between_replicas(c, sharding) for c in scattered) if sharding.replicas.size > 1 else ()
    return replace(
        role, graph=graph, collectives=(*role.collectives, *scattered, *replicated, gather),
        persistent={**role.persistent, "gradient": role.persistent.get("gradient", 0) + copies},
    )  # fmt: skip


def _between_replicas(scattered: Collective, sharding: Sharding) -> Collective:
    """What the ranks with the same part add up among themselves, once it is scattered."""
    return replace(
        scattered, kind="all-reduce", nbytes=-(-scattered.nbytes // sharding.shard.size), group=sharding.replicas,
        name=scattered.name.replace("reduce-scatter", "all-reduce"), lane="replicas",
    )  # fmt: skip


class _Units:
    """One role under ZeRO 2 or 3, unit by unit."""

    def __init__(self, role: Role, plan: Plan, sharding: Sharding) -> None:
        self.role, self.plan, self.sharding = role, plan, sharding
        self.ways = sharding.shard.size
        self.graph = graph = role.graph
        self.paths = blocks(graph)
        where = block_of(self.paths)
        self.members: dict[str, list[Parameter]] = defaultdict(list)
        for parameter in parameters(graph):
            self.members[where[parameter.module]].append(parameter)
        self.order = [path for path in self.paths if self.members[path]]
        self.gathered_as = _GATHERED_AS.get(graph.precision)
        self.backward_ends = last_of(graph, "backward")
        self.update = first_of(graph, "optimizer")
        self.added: list[Storage] = []
        self.collectives: list[Collective] = []

    def sharded(self) -> Role:
        for spans in passes(self.graph, self.paths):
            self._gathers(spans)
            self._scatters(spans)
        changed = dict(self._resized())
        graph = with_storages(shard_update(self.graph, self.ways), changed, self.added)
        ordered = sorted(self.collectives, key=_asked_at)
        return replace(self.role, graph=graph, collectives=(*self.role.collectives, *ordered))

    def _gathers(self, spans: dict[str, dict[str, Span]]) -> None:
        forward, backward = spans["forward"], spans["backward"]
        begin = min(span.first for span in forward.values())
        turn = max(span.last for span in forward.values())
        end = max((span.last for span in backward.values()), default=turn)
        if self.members[""]:
            self._gather("", begin, begin - 1, begin, held_to=end)
        before = begin - 1
        for path in (
            p for p in self.order if p in forward
        ):  # a gather waits until the buffer of the one before is free
            first, last = forward[path].first, forward[path].last
            if self.plan.zero == 2:  # kept for its backward pass; where it has none, until all others had theirs
                last = backward[path].last if path in backward else end
            self._gather(path, first, before, first, held_to=last)
            before = first - 1
        if self.plan.zero == 3:
            self._gathers_again([p for p in self.order if p in forward], backward, turn, end)

    def _gathers_again(self, ran: list[str], backward: dict[str, Span], turn: int, end: int) -> None:
        """Prefetch: where a unit's backward pass begins, the unit that ran before it is gathered, needed or not."""
        before = dict(zip(ran[1:], ran, strict=False))
        asked = {ran[-1]: turn + 1} if ran else {}  # the unit outside of all blocks starts backward
        for path in reversed([p for p in ran if p in backward]):
            span = backward[path]
            at = asked.pop(path, span.first)
            self._gather(path, at, at - 1, span.first, held_to=span.last)
            if path in before:
                asked[before[path]] = span.first
        for path, at in asked.items():  # gathered for a backward pass that never comes
            self._gather(path, at, at - 1, end + 1, held_to=None)

    def _gather(self, path: str, asked: int, ready: int, wanted: int, *, held_to: int | None) -> None:
        whole = sum(self._gathered_bytes(p) for p in self.members[path])
        self.collectives.append(
            Collective(kind="all-gather", nbytes=whole, group=self.sharding.shard, name=f"all-gather {path or 'the rest'}",
                       starts_after=ready, waited_for_by=wanted, issued_by=asked,
                       every_micro_step=self.plan.pp == 1 or self.plan.zero == 3)
        )  # fmt: skip
        self.added.append(Storage(whole, "temporary", asked, wanted))  # arrives in one piece, and is copied out
        if held_to is not None:
            self.added += [Storage(self._gathered_bytes(p), "parameter", wanted, held_to) for p in self.members[path]]

    def _scatters(self, spans: dict[str, dict[str, Span]]) -> None:
        backward = spans["backward"]
        if not backward:
            return
        end = max(span.last for span in backward.values())
        done = [(path, backward[path].last) for path in reversed(self.order) if path in backward] + [("", end)]
        for (path, last), (_, following) in pairwise([*done, ("", end)]):
            trained = [p for p in self.members[path] if p.gradient is not None]
            if not trained:
                continue
            whole = sum(self._padded(p) * ITEM_BYTES[p.layout.dtype] for p in trained)
            scattered = Collective(
                kind="reduce-scatter", nbytes=whole, group=self.sharding.shard, name=f"reduce-scatter {path or 'the rest'}",
                starts_after=last, waited_for_by=self.update, every_micro_step=self.plan.pp == 1,
            )  # fmt: skip
            self.collectives.append(scattered)
            if self.sharding.replicas.size > 1:
                self.collectives.append(_between_replicas(scattered, self.sharding))
            self.added.append(Storage(whole, "temporary", last, following))

    def _resized(self) -> Iterator[tuple[int, Storage]]:
        where = block_of(self.paths)
        spans = passes(self.graph, self.paths)[0]["backward"]
        for p in (p for members in self.members.values() for p in members):
            storage = self.graph.storages[p.storage]
            item = ITEM_BYTES[p.layout.dtype]
            part = shard_of(p.layout, self.ways).numel * item
            yield p.storage, replace(storage, nbytes=part)
            if p.gradient is None:
                continue
            gradient = self.graph.storages[p.gradient]
            path = where[p.module]
            done = max(spans[path].last if path in spans else self.backward_ends, gradient.born)
            yield p.gradient, replace(gradient, freed=done)
            self.added.append(Storage(part, "gradient", done, gradient.freed))

    def _padded(self, p: Parameter) -> int:
        return shard_of(p.layout, self.ways).numel * self.ways

    def _gathered_bytes(self, p: Parameter) -> Bytes:
        floating = p.layout.dtype in ("float32", "float64")
        dtype = self.gathered_as if self.gathered_as and floating else p.layout.dtype
        return self._padded(p) * ITEM_BYTES[dtype]


def _asked_at(collective: Collective) -> tuple[int, int]:
    """Where the host asks for it: after an op, or later, before the next."""
    return (collective.starts_after, 0) if collective.issued_by is None else (collective.issued_by - 1, 1)
