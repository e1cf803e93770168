"""Context parallelism: every rank takes a part of each sequence; in attention, keys and values go round the ring."""

from __future__ import annotations

from dataclasses import replace

from foretell.errors import NotModelled, PlanError
from foretell.graph import Graph
from foretell.parallel.sharding.cut import CannotShard, Cut, Split, split_of
from foretell.parallel.sharding.propagate import Policy, Propagation
from foretell.plans import Plan
from foretell.program import Group, Role


def context_parallel(role: Role, plan: Plan) -> Role:
    if plan.cp == 1:
        return role
    graph = role.graph
    group = Group(size=plan.cp, stride=plan.tp, count=plan.devices // plan.cp)
    policy = Policy(group=group, lane="cp", cuts_whole=True, sums_gradients=False)
    try:
        sharding = Propagation(graph, policy, _sequences(graph, plan.cp))
        sharded = sharding.sharded_step()
    except CannotShard as reason:
        raise NotModelled(
            f"cp={plan.cp} cannot keep parts of sequences apart through {graph.name!r}: {reason}. Divide it by dp, tp or pp."
        ) from None
    return replace(role, graph=sharded, collectives=(*role.collectives, *sharding.collectives))


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
