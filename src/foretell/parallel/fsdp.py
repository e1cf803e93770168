"""Sharded data parallelism: ZeRO 1 to 3, with torch's `fully_shard` as the model for 2 and 3.

3 gathers a block's parameters before it runs, forward and backward, and frees them after; 2 keeps them in between. Both
scatter the block's gradients when its backward is done. 1 keeps parameters whole, scatters gradients in buckets after
the last micro-step, and gathers the parameters it has updated. Repeated blocks are the units; what is outside of them
is one more, gathered first, kept for the backward pass and scattered last. Stages of a pipeline scatter in their last
micro-batch alone, as torch lets them. Without overlap a block waits for what it gathers and for what it scatters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from foretell.graph import ITEM_BYTES, Graph, Storage, Tensor
from foretell.parallel.blocks import BlockOf, Pass, Span, blocks, passes
from foretell.parallel.parameters import Parameter, parameters
from foretell.parallel.rewrite import first_of, last_of, on_tensors, shard_of, shard_update, with_storages
from foretell.parallel.zero1 import ShardGroups, between_replicas, shard_optimizer_state, sums_in_the_end
from foretell.plans import Plan
from foretell.precision import DTYPES
from foretell.program import Collective, Group, Role
from foretell.units import Bytes

_BUCKET: Final = 500_000_000  # DeepSpeed's reduce_bucket_size, in numbers
_LIVE: Final = 1_000_000_000  # its stage3_max_live_parameters


def sharded_data_parallel(role: Role, plan: Plan, groups: ShardGroups) -> Role:
    """The role with its model state sharded."""
    streams = plan.offload == "parameters"  # blocks come from the host, to a rank alone too
    # InternEvo updates flat copies, whoever shares them.
    alone = groups.shard.size == 1 and not streams and plan.sharding != "internevo"
    if alone or not role.graph.training:
        return role
    whole = role.graph
    role = shard_optimizer_state(role, plan, groups) if plan.zero == 1 else _Fsdp(role, plan, groups).sharded()
    has_buffers = plan.sharding == "deepspeed" and not sums_in_the_end(plan, whole.precision)
    return _with_deepspeed_buffers(role, whole, plan) if has_buffers else role


def _with_deepspeed_buffers(role: Role, whole: Graph, plan: Plan) -> Role:
    """What DeepSpeed allocates by its settings or their defaults, whatever a step needs: a buffer of `reduce_bucket_size`
    numbers, with `overlap_comm` of stages 1 and 2 a second, of stage 3 up to `stage3_max_live_parameters` gathered ones."""
    found = parameters(whole)
    item = max((ITEM_BYTES[p.layout.dtype] for p in found), default=0)
    bucket = plan.bucket_bytes or _BUCKET * item
    role = role.with_persistent("gradient", bucket * (2 if plan.overlap and plan.zero < 3 else 1))
    live = min(plan.live_parameters or _LIVE, sum(p.layout.numel for p in found)) * item
    return role.with_persistent("parameter", live) if plan.zero == 3 else role


class _Fsdp:
    """One role under ZeRO 2 or 3, unit by unit: the repeated blocks, and the rest under the name ""."""

    def __init__(self, role: Role, plan: Plan, groups: ShardGroups) -> None:
        self.role, self.plan, self.groups = role, plan, groups
        self.graph = graph = role.graph
        self.passes = passes(graph, paths := blocks(graph))
        self.unit_of = BlockOf(paths)
        self.members: dict[str, list[Parameter]] = defaultdict(list)
        for parameter in parameters(graph):
            self.members[self.unit_of[parameter.module]].append(parameter)
        self.order = [path for path in paths if self.members[path]]
        precision = graph.precision
        self.gathered_as = DTYPES[precision.gathered] if precision.gathered else None
        self.reduced_as = DTYPES[precision.reduced] if precision.reduced else None
        self.update = first_of(graph, "optimizer")
        self.added: list[Storage] = []
        self.collectives: list[Collective] = []

    def sharded(self) -> Role:
        for micro_step in self.passes:
            self._gather_forward(micro_step)
            self._scatter(micro_step["backward"])
        changed = dict(self._resized())
        experts = self.groups.experts.size if self.groups.experts else 1
        graph = self._on_parts(dict(self._runs_on_parts()))
        graph = shard_update(graph, self.groups.shard.size, self.role.partitioned, experts)
        graph = with_storages(graph, changed, self.added)
        ordered = sorted(self.collectives, key=_issued_at)
        return replace(self.role, graph=graph, collectives=(*self.role.collectives, *ordered))

    def _gather_forward(self, micro_step: Pass) -> None:
        forward, backward = micro_step["forward"], micro_step["backward"]
        begin = min(span.first for span in forward.values())
        turn = max(span.last for span in forward.values())
        end = max((span.last for span in backward.values()), default=turn)
        if self.members[""]:
            self._gather("", begin, begin - 1, begin, kept_to=end)
        ran = [path for path in self.order if path in forward]
        before = begin - 1
        for path in ran:  # a gather waits until the buffer of the one before is free
            first, last = forward[path].first, forward[path].last
            if not self.plan.overlap:
                before = first - 1
            if self.plan.zero == 2:  # kept for its backward pass; where it has none, until all others had theirs
                last = backward[path].last if path in backward else end
            once = self.plan.zero == 2 and self.plan.pp > 1 and self.plan.overlap
            # A stage gathers once in a step, all of its chunks while the first passes run.
            self._gather(path, begin if once else first, begin - 1 if once else before, first, kept_to=last)
            before = first - 1
        if self.plan.zero == 3:
            self._prefetch_backward(ran, backward, turn, end)

    def _prefetch_backward(self, ran: list[str], backward: Mapping[str, Span], turn: int, end: int) -> None:
        """Where a unit's backward pass begins, the unit that ran before it is gathered, needed or not."""
        if not self.plan.overlap:
            for path in reversed([p for p in ran if p in backward]):
                first, last = backward[path]
                self._gather(path, first, first - 1, first, kept_to=last)
            return
        before = dict(zip(ran[1:], ran, strict=False))
        # The unit outside of all blocks starts backward, where anything is left to run after the forward pass.
        issued = {ran[-1]: turn + 1} if ran and turn < end else {}
        for path in reversed([p for p in ran if p in backward]):
            span = backward[path]
            at = issued.pop(path, span.first)
            self._gather(path, at, at - 1, span.first, kept_to=span.last)
            if path in before:
                issued[before[path]] = span.first
        for path, at in issued.items():  # gathered for a backward pass that never comes
            self._gather(path, at, at - 1, end + 1, kept_to=None)

    def _gather(self, path: str, issued: int, ready: int, wanted: int, *, kept_to: int | None) -> None:
        for group, members in self._sharing(path):
            whole = sum(self._gathered_bytes(p) for p in members)
            gather = Collective(
                kind="all-gather",
                nbytes=whole,
                group=group,
                name=f"all-gather {path or 'the rest'}",
                starts_after=ready,
                waited_for_by=wanted,
                issued_by=issued,
                every_micro_step=self.plan.pp == 1 or self.plan.zero == 3,
                copied_out=whole,
            )
            self.collectives.append(gather)
            arrives = issued if gather.every_micro_step else wanted
            self.added.append(Storage(whole, "temporary", arrives, wanted))  # in one piece, and is copied out
            if kept_to is not None:
                self.added += [Storage(self._gathered_bytes(p), "parameter", wanted, kept_to) for p in members]

    def _sharing(self, path: str) -> Iterator[tuple[Group, list[Parameter]]]:
        """The parameters of a unit by the ranks that share them; some experts lie on one rank alone."""
        by_group: dict[Group, list[Parameter]] = defaultdict(list)
        for p in self.members[path]:
            by_group[self._group(p)].append(p)
        streams = self.plan.offload == "parameters"
        yield from ((group, members) for group, members in by_group.items() if group.size > 1 or streams)

    def _group(self, p: Parameter) -> Group:
        experts = self.groups.experts
        return experts if experts is not None and p.gradient in self.role.partitioned else self.groups.shard

    def _scatter(self, backward: Mapping[str, Span]) -> None:
        if not backward:
            return
        end = max(span.last for span in backward.values())
        done = [(path, backward[path].last) for path in reversed(self.order) if path in backward] + [("", end)]
        for (path, last), (_, following) in pairwise([*done, ("", end)]):
            for group, members in self._sharing(path):
                whole = sum(
                    self._padded_bytes(p, self.reduced_as or p.layout.dtype) for p in members if p.gradient is not None
                )
                if not whole:
                    continue
                scattered = Collective(
                    kind="reduce-scatter",
                    nbytes=whole,
                    group=group,
                    name=f"reduce-scatter {path or 'the rest'}",
                    starts_after=last,
                    waited_for_by=self.update if self.plan.overlap else last + 1,
                    every_micro_step=self.plan.pp == 1,
                    copied_in=whole,
                )
                self.collectives += [scattered, *between_replicas([scattered], self.groups)]
                self.added.append(Storage(whole, "temporary", last, following))

    def _resized(self) -> Iterator[tuple[int, Storage]]:
        """Parameters and gradients on one rank: its part of each, and whole gradients until they are scattered."""
        backward, backward_ends = self.passes[0]["backward"], last_of(self.graph, "backward")
        for path, members in self.members.items():
            for p in members:
                if (ways := self._group(p).size) == 1 and self.plan.offload != "parameters":
                    continue
                part = self._padded_bytes(p, p.layout.dtype) // ways
                yield p.storage, replace(self.graph.storages[p.storage], nbytes=part)
                if p.gradient is None:
                    continue
                gradient = self.graph.storages[p.gradient]
                done = max(backward[path].last if path in backward else backward_ends, gradient.born)
                made = self._gathered_bytes(p)  # as the backward pass makes it of what was gathered
                if gradient.born < 0:  # a main gradient, of the rank's part alone
                    yield p.gradient, replace(gradient, nbytes=-(-gradient.nbytes // ways))
                    self.added.append(Storage(made, "temporary", min(p.ready, done), done))
                    continue
                yield (
                    p.gradient,
                    replace(
                        gradient,
                        nbytes=min(made, gradient.nbytes) if self.graph.precision.casts else gradient.nbytes,
                        freed=done,
                    ),
                )
                # DeepSpeed's lie in a flat buffer that it makes as it begins (`grad_partitions_flat_buffer` of its `stage3.py`).
                stay = (self.plan.sharding, self.plan.zero, self.plan.offload) == ("deepspeed", 3, "none")
                self.added.append(
                    Storage(part, "gradient", -1 if stay else done, len(self.graph.ops) if stay else gradient.freed)
                )
        for position, _ in self._runs_on_parts():  # copies of parameters arrive as they are gathered
            for t in self.graph.ops[position].outputs if self.graph.ops[position].phase == "forward" else ():
                number = self.graph.tensors[t].storage
                yield number, replace(self.graph.storages[number], nbytes=0)

    def _runs_on_parts(self) -> Iterator[tuple[int, int]]:
        """Ops that a rank runs on its part alone, with how many parts there are: copies of parameters that are made
        before they are gathered, and what adds to main gradients once they are scattered."""
        for p in (p for members in self.members.values() for p in members):
            ways = self._group(p).size
            if self.graph.precision.casts:
                yield from ((at, ways) for at in p.used if self.graph.ops[at].signature.name == "aten._to_copy")
            kept = p.gradient is not None and self.graph.storages[p.gradient].born < 0
            if kept and self.graph.ops[p.ready].signature.name == "aten.add_":
                yield p.ready, ways

    def _on_parts(self, positions: Mapping[int, int]) -> Graph:
        ops, tensors = list(self.graph.ops), list(self.graph.tensors)

        def part(number: int, ways: int) -> int:
            t = tensors[number]
            tensors.append(Tensor(shard_of(t.layout, ways), t.storage, t.offset))
            return len(tensors) - 1

        for position, ways in positions.items():
            ops[position] = on_tensors(ops[position], tensors, partial(part, ways=ways))
        return replace(self.graph, ops=tuple(ops), tensors=tuple(tensors)) if positions else self.graph

    def _gathered_bytes(self, p: Parameter) -> Bytes:
        if self.graph.precision.weights and self.unit_of[p.module] and len(p.layout.shape) > 1:
            return self._padded_bytes(p, "float8_e4m3fn")
        floating = p.layout.dtype in ("float32", "float64")
        return self._padded_bytes(p, self.gathered_as if self.gathered_as and floating else p.layout.dtype)

    def _padded_bytes(self, p: Parameter, dtype: str) -> Bytes:
        ways = self._group(p).size
        return shard_of(p.layout, ways).numel * ways * ITEM_BYTES[dtype]


def _issued_at(collective: Collective) -> tuple[int, int]:
    """Where the host issues it: after an op, or later, before the next."""
    return (collective.starts_after, 0) if collective.issued_by is None else (collective.issued_by - 1, 1)
