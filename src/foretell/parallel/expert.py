"""Expert parallelism: ranks share the experts of a mixture, and rows are sent to the experts they were routed to.

Experts are found as weights of grouped products. Rows are sent before the first product and come back after the last,
forward and backward. Here a rank receives as many rows as it sends; how far the busiest has more is priced later. Ranks that
share a sequence send the rows of their own tokens: those that share every expert gather what each has received.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from foretell.errors import NotModelled, PlanError
from foretell.graph import Caveat, Graph, Op
from foretell.parallel.sharding.cut import CannotShard, Cut, Indivisible, Split, split_of
from foretell.parallel.sharding.propagate import EXPERTS_LANE, GROUPED, Policy, Propagation
from foretell.plans import Plan
from foretell.program import Collective, Group, Role

_TO_EXPERTS: Final = "all-to-all rows to experts"
_FROM_EXPERTS: Final = "all-to-all rows from experts"
_BLOCK: Final = 128  # numbers of a row that share a scale of 4 bytes


def replicas_of_experts(plan: Plan) -> Group:
    """Ranks with the same experts."""
    inner = plan.tp if plan.splits_experts else 1  # ranks between neighbours of a group of experts
    size = plan.dp * plan.cp * plan.tp * plan.directions // inner // plan.ep
    return Group(size=size, stride=inner * plan.ep, count=plan.devices // size)


def check_overlap(plan: Plan) -> None:
    """Whether there is something to hide, and something to hide it behind."""
    if plan.overlap_ep and plan.ep == 1:
        raise PlanError(
            "overlap_ep=true hides what ranks send to each other's experts, but ep=1 has none. Set ep=2 or more, or leave "
            "overlap_ep out."
        )
    if plan.delay_wgrad and not plan.overlap_ep:
        raise PlanError(
            "delay_wgrad=true runs gradients of weights while experts' ranks send beside another micro-batch, which needs "
            "overlap_ep=true. Set it, or leave delay_wgrad out."
        )


def expert_parallel(role: Role, plan: Plan) -> Role:
    if plan.ep == 1:
        if plan.splits_experts:
            return role
        return replace(role, partitioned=_gradients(role.graph))
    group = Group(size=plan.ep, stride=plan.tp if plan.splits_experts else 1, count=plan.devices // plan.ep)
    graph = role.graph
    try:
        sharding = Propagation(graph, Policy(group=group, lane=EXPERTS_LANE), _experts(graph, plan.ep))
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
    gathered = plan.tp if plan.sequence_parallel and plan.splits_experts else 1
    tokens = (graph.tokens or 0) // (plan.cp if plan.splits_experts else plan.cp * plan.tp)
    journeys = _all_to_alls(graph, group, gathered, tokens if plan.dispatch != "all-to-all" else 0)
    if plan.dispatch == "deepep-fp8":
        journeys = map(_in_8_bits, journeys)
    collectives = (*role.collectives, *sharding.collectives, *journeys)
    return replace(role, graph=sharded, collectives=collectives, partitioned=own)


def _gradients(graph: Graph) -> frozenset[int]:
    """Of the weights of grouped products."""
    experts = {graph.tensors[t].storage for op in graph.ops if op.signature.name == GROUPED for t in op.inputs[1:2]}
    return frozenset(g for p, g in (graph.gradients or {}).items() if p in experts)


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


def _all_to_alls(graph: Graph, group: Group, gathered: int, tokens: int) -> Iterator[Collective]:
    """To the experts and back, for every run of grouped products of a module.

    Of rows that so many ranks gather each sends and receives its part. Rows that arrive for several experts are sorted by them,
    and sorted back before they leave. Where tokens are sent instead, once to each node and rank, they are sorted on arrival alone.
    """
    rows = [
        (i, op)
        for i, op in enumerate(graph.ops)
        if op.signature.name == GROUPED and len(op.signature.outputs[0].shape) == 2
    ]
    groups = _groups(graph)
    for _, run in groupby(rows, key=lambda at: (at[1].module, at[1].phase)):
        products = list(run)
        (first, sent), (last, made_by) = products[0], products[-1]
        given, nbytes = sent.signature.inputs[0].shape[0], sent.signature.inputs[0].nbytes
        choices = max(round(given / tokens), 1) if tokens else 1
        several = sent.signature.inputs[1].shape[0] > group.size and not tokens
        there = _all_to_all(group, sent, nbytes // gathered, _TO_EXPERTS, first - 1, first)
        yield replace(there, choices=choices, groups=groups, copied_out=nbytes if several else 0)
        if made_by.signature.outputs[0].shape != sent.signature.inputs[0].shape:
            continue  # the first layer of a model: no op reads the gradient of its rows
        back = _all_to_all(group, made_by, nbytes // gathered, _FROM_EXPERTS, last, last + 1)
        yield replace(back, choices=choices, groups=groups, copied_in=nbytes if several else 0)


def _groups(graph: Graph) -> tuple[int, int]:
    """Of experts, and in how many of them a token's rows lie."""
    return graph.facts.expert_groups or (1, 1)


def _in_8_bits(journey: Collective) -> Collective:
    """Rows are sent to experts in 8 bits, with a scale for each block of a row, and come back in full."""
    if journey.name.startswith(_TO_EXPERTS):
        return replace(journey, nbytes=round(journey.nbytes * (1 + 4 / _BLOCK) / 2))
    return journey


def _all_to_all(group: Group, op: Op, nbytes: int, what: str, after: int, before: int) -> Collective:
    return Collective(
        kind="all-to-all",
        nbytes=nbytes,
        group=group,
        name=f"{what} of {op.module}",
        starts_after=after,
        waited_for_by=before,
        lane=EXPERTS_LANE,
        every_micro_step=True,
    )
