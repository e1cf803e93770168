"""Context parallelism: every rank takes a part of each sequence, which meets all others in attention.

Keys and values go round a ring while the attention of those that have come is computed; or they are gathered before it
(`cp_gather`); or ranks exchange parts of the sequence for heads before and after it (`ulysses`), all of them or those next to
each other, whose parts then go round. Sequences are dealt so that each rank has as much of what is not masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from foretell.errors import NotModelled, PlanError
from foretell.graph import Graph, Layout, Op, Signature
from foretell.graph.operators import PIECE_BY_PIECE
from foretell.parallel.sharding.cut import CannotShard, Cut, Split, split_of
from foretell.parallel.sharding.propagate import Policy, Propagation
from foretell.plans import Plan
from foretell.program import Collective, Group, Role

LANE: Final = "cp"
_RING: Final = "send-recv"
_BY_HEADS: Final = 3  # sides of a tensor that has a part for each head, at least


def check_context(plan: Plan) -> None:
    if plan.cp % plan.ulysses:
        raise PlanError(
            f"ulysses={plan.ulysses} is how many of the cp={plan.cp} ranks exchange heads, and must divide cp. Choose a divisor "
            "of it, or leave ulysses out."
        )
    if plan.cp_gather and (plan.cp == 1 or plan.ulysses > 1):
        raise PlanError(
            f"cp_gather=true gathers the keys of cp ranks that exchange no heads, got cp={plan.cp} and ulysses={plan.ulysses}. "
            "Set cp=2 or more and leave ulysses out, or leave cp_gather out."
        )


def context_parallel(role: Role, plan: Plan) -> Role:
    if plan.cp == 1:
        return role
    graph = role.graph
    group = Group(size=plan.cp, stride=plan.tp, count=plan.devices // plan.cp)
    policy = Policy(group=group, lane=LANE, cuts_whole=True, sums_gradients=False)
    try:
        sharding = Propagation(graph, policy, _sequences(graph, plan.cp))
        sharded = sharding.sharded_step()
    except CannotShard as reason:
        raise NotModelled(
            f"cp={plan.cp} cannot keep parts of sequences apart through {graph.name!r}: {reason}. Divide it by dp, tp or pp."
        ) from None
    return replace(
        role, graph=_marked(sharded, sharding.collectives), collectives=(*role.collectives, *sharding.collectives)
    )


def _marked(graph: Graph, collectives: Iterable[Collective]) -> Graph:
    """Attention that meets keys of other ranks runs piece by piece, each piece of as many keys as queries."""
    ops, signatures = list(graph.ops), dict[int, Signature]()
    for c in collectives:
        if c.kind == _RING:
            op = ops[c.starts_after + 1]
            old = op.signature
            if id(old) not in signatures:
                signatures[id(old)] = replace(old, arguments=(*old.arguments, (PIECE_BY_PIECE, True)))
            ops[c.starts_after + 1] = replace(op, signature=signatures[id(old)])
    return replace(graph, ops=tuple(ops))


def exchanged(role: Role, plan: Plan) -> Role:
    """The role with the plan's way of meeting the other parts, once heads are divided among tensor-parallel ranks."""
    if plan.cp == 1 or (plan.ulysses == 1 and not plan.cp_gather):
        return role
    exchange = _Exchange(role, plan)
    collectives = tuple(new for c in role.collectives for new in exchange.instead_of(c))
    graph = replace(role.graph, ops=tuple(exchange.ops), tensors=tuple(exchange.tensors))
    return replace(role, graph=graph, collectives=collectives)


class _Exchange:
    def __init__(self, role: Role, plan: Plan) -> None:
        self.plan, self.ring = plan, plan.cp // plan.ulysses
        self.graph = role.graph
        self.ops, self.tensors = list(role.graph.ops), list(role.graph.tensors)
        self.signatures: dict[int, Signature] = {}

    def instead_of(self, c: Collective) -> Iterator[Collective]:
        if c.lane != LANE or c.kind != _RING:
            yield c
            return
        at = c.starts_after + 1
        op, back = self.graph.ops[at], self.graph.ops[at].phase == "backward"
        keys = sum(x.nbytes for x in op.signature.required_tensors("key", "value"))
        if self.plan.cp_gather:
            yield replace(c, kind="all-gather", nbytes=keys, name=f"gathered {c.name}", waited_for_by=at)
            if back:  # each rank has a term of every gradient
                yield replace(c, kind="reduce-scatter", nbytes=keys, name=f"scattered {c.name}", starts_after=at)
            return
        yield from self._for_heads(c, at, op, keys // self.plan.cp)
        self.ops[at] = self._with_fewer_heads(op)
        if self.ring > 1:
            passing = keys // self.plan.ulysses * (self.ring - 1) // self.ring
            group = replace(c.group, size=self.ring, stride=c.group.stride * self.plan.ulysses)
            yield replace(c, nbytes=passing * (2 if back else 1), group=group)

    def _for_heads(self, c: Collective, at: int, op: Op, keys: int) -> Iterator[Collective]:
        """Queries, keys and values on the way in, what is made of them on the way out; and the other way round."""
        [query] = op.signature.required_tensors("query")
        there, back = query.nbytes + keys, query.nbytes  # the output is as large as the queries
        if op.phase == "backward":
            there, back = back, there
        group = replace(c.group, size=self.plan.ulysses, count=c.group.count * self.ring)
        made = replace(c, kind="all-to-all", group=group, name=f"all-to-all {op.module}")
        yield replace(made, nbytes=there, starts_after=at - 1, waited_for_by=at)
        yield replace(made, nbytes=back, starts_after=at, waited_for_by=at + 1)

    def _with_fewer_heads(self, op: Op) -> Op:
        """A part of the heads, of a longer part of the sequence: as many numbers, in the same storages."""
        [query] = op.signature.required_tensors("query")
        part = query.shape[2]
        inputs, outputs = (tuple(self._longer(t, part) for t in side) for side in (op.inputs, op.outputs))
        if id(op.signature) not in self.signatures:
            read, made = (tuple(self.tensors[t].layout for t in side) for side in (inputs, outputs))
            self.signatures[id(op.signature)] = replace(op.signature, inputs=read, outputs=made)
        return replace(op, signature=self.signatures[id(op.signature)], inputs=inputs, outputs=outputs)

    def _longer(self, number: int, part: int) -> int:
        tensor, ways = self.tensors[number], self.plan.ulysses
        if len(tensor.layout.shape) < _BY_HEADS:
            return number
        batch, heads, length, *size = tensor.layout.shape
        if heads % ways:
            raise PlanError(
                f"ulysses={ways} must divide the heads of a rank: {heads} / {ways} = {heads / ways:.2f}. Choose a divisor of "
                "the heads of keys after tensor parallelism, and let the rest of cp go round a ring."
            )
        shape = (batch, heads // ways, length * ways if length == part else length, *size)
        self.tensors.append(replace(tensor, layout=Layout.contiguous(shape, tensor.layout.dtype)))
        return len(self.tensors) - 1


def _sequences(graph: Graph, ways: int) -> dict[int, Split]:
    """Inputs of shape (samples, length, …), cut along their length."""
    if not graph.tokens or not graph.samples:
        raise PlanError(
            f"cp={ways} cuts sequences of tokens, and {graph.name!r} has none. Give the workload its tokens, or divide it by dp."
        )
    length = graph.tokens // graph.samples
    if length % ways:
        raise PlanError(
            f"cp={ways} must divide the sequence: {length} / {ways} = {length / ways:.2f}. Choose a divisor of {length}."
        )
    found = {}
    for tensor in graph.tensors:
        shape = tensor.layout.shape
        if graph.storages[tensor.storage].role == "input" and len(shape) > 1 and shape[1] == length:
            found[tensor.storage] = split_of(tensor.layout, Cut(1, tokens=True), ways)
    return found
