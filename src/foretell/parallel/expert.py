"""Expert parallelism: ranks share the experts of a mixture, and rows are sent to the experts they were routed to.

Experts are found as weights of grouped products. Rows are sent before the first product and come back after the last,
forward and backward. Here a rank receives as many rows as it sends; how far the busiest has more is priced later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from foretell.errors import NotModelled, PlanError
from foretell.graph import Caveat, Graph, Op
from foretell.parallel.sharding.cut import CannotShard, Cut, Indivisible, Split, split_of
from foretell.parallel.sharding.propagate import GROUPED, Policy, Propagation
from foretell.plans import Plan
from foretell.program import Collective, Group, Role


def expert_parallel(role: Role, plan: Plan) -> Role:
    if plan.ep == 1:
        return role
    group = Group(size=plan.ep, stride=plan.tp, count=plan.devices // plan.ep)
    graph = role.graph
    try:
        sharding = Propagation(graph, Policy(group=group, lane="ep"), _experts(graph, plan.ep))
        sharded = sharding.sharded_step()
    except Indivisible as reason:
        raise PlanError(
            f"ep={plan.ep} cannot share the experts of {graph.name!r}: {reason}. Choose a divisor."
        ) from None
    except CannotShard as reason:
        raise NotModelled(f"ep={plan.ep} cannot share the experts of {graph.name!r}: {reason}.") from None
    own = frozenset(
        s for s, p in sharding.placements.items() if isinstance(p, Split) and graph.storages[s].role == "gradient"
    )
    even = Caveat(
        "even-routing",
        "Rows are taken to choose experts evenly, but for chance; give the skew of a real router as expert_skew.",
    )
    sharded = replace(sharded, caveats=(*sharded.caveats, even))
    collectives = (*role.collectives, *sharding.collectives, *_all_to_alls(graph, group))
    return replace(role, graph=sharded, collectives=collectives, partitioned=own)


def _experts(graph: Graph, ways: int) -> dict[int, Split]:
    """Weights of grouped products, and the ends of their groups: a number for each expert."""
    found = {}
    for op in graph.ops:
        if op.signature.name != GROUPED or len(op.inputs) < 3:
            continue
        for t in op.inputs[1:]:
            tensor = graph.tensors[t]
            if len(tensor.layout.shape) in (1, 3):
                found[tensor.storage] = split_of(tensor.layout, Cut(0), ways)
    if not found:
        raise PlanError(f"ep={ways} shares experts, and {graph.name!r} has no grouped products. Leave ep out.")
    return found


def _all_to_alls(graph: Graph, group: Group) -> Iterator[Collective]:
    """To the experts and back, for every run of grouped products of a module."""
    rows = [
        (i, op)
        for i, op in enumerate(graph.ops)
        if op.signature.name == GROUPED and len(op.signature.outputs[0].shape) == 2
    ]
    for _, run in groupby(rows, key=lambda at: (at[1].module, at[1].phase)):
        products = list(run)
        (first, sent), (last, made_by) = products[0], products[-1]
        yield _all_to_all(group, sent, sent.signature.inputs[0].nbytes, "rows to experts", first - 1, first)
        if made_by.signature.outputs[0].shape != sent.signature.inputs[0].shape:
            continue  # the first layer of a model: no op reads the gradient of its rows
        yield _all_to_all(group, made_by, made_by.signature.outputs[0].nbytes, "rows from experts", last, last + 1)


def _all_to_all(group: Group, op: Op, nbytes: int, what: str, after: int, before: int) -> Collective:
    return Collective(
        kind="all-to-all",
        nbytes=nbytes,
        group=group,
        name=f"all-to-all {what} of {op.module}",
        starts_after=after,
        waited_for_by=before,
        lane="ep",
        every_micro_step=True,
    )
