"""Parameter servers: workers push gradients as they become ready and pull parameters that the servers have updated.

Parameters are divided evenly among the servers; workers that outnumber them take their links in turn. Synchronous
workers wait for the pull before they go on; asynchronous ones go on with what they have, and wait for full links alone.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.graph import Graph, Storage
from foretell.parallel.data import buckets
from foretell.parallel.rewrite import NOTHING, first_of, last_of, refuse_split_models
from foretell.plans import Plan
from foretell.program import Collective, Group, Role


def parameter_servers(role: Role, plan: Plan) -> Role:
    """A worker's role."""
    refuse_split_models(plan, f"servers={plan.servers} hold whole replicas' parameters", "Use servers with dp alone.")
    if not role.graph.training:
        return role
    graph = _without_update(role.graph)
    end = len(graph.ops)
    pull = Collective(
        kind="send-recv",
        nbytes=role.graph.bytes_of("gradient"),
        group=Group(size=2),
        name="pull parameters",
        lane="servers",
        starts_after=last_of(graph, "backward"),
        waited_for_by=end + 1 if plan.asynchronous else end,
        turns=-(-plan.dp // plan.servers),
    )
    pushes = [
        replace(pull, nbytes=b.nbytes, name=f"push bucket {i}", starts_after=b.starts_after, waited_for_by=end + 1)
        for i, b in enumerate(buckets(graph, plan, pull.group))
    ]
    return replace(role, name="worker", graph=graph, collectives=(*role.collectives, *pushes, pull))


def _without_update(graph: Graph) -> Graph:
    """Servers keep the optimizer's state and run its ops."""
    update = first_of(graph, "optimizer")
    storages = [
        NOTHING
        if s.role == "optimizer" or s.born >= update
        else Storage(s.nbytes, s.role, s.born, min(s.freed, update))
        for s in graph.storages
    ]
    return replace(graph, ops=graph.ops[:update], storages=tuple(storages))
