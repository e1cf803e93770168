"""Parameter servers: workers push gradients as they become ready and pull parameters that the servers have updated.

Parameters are spread evenly over the servers; workers that outnumber them take their links in turn. Synchronous workers
wait for the pull before they go on; asynchronous ones go on with what they have, and are held up by full links alone.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.errors import PlanError
from foretell.graph import Graph, Storage
from foretell.parallel.data import buckets
from foretell.parallel.rewrite import first_of, last_of
from foretell.plan import Plan
from foretell.program import Collective, Group, Role


def served(role: Role, plan: Plan) -> Role:
    """A worker's role."""
    clashing = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1] + ["zero"] * (plan.zero > 0)
    if clashing:
        raise PlanError(
            f"servers={plan.servers} hold whole replicas' parameters, which {', '.join(clashing)} would split. "
            "Use servers with dp alone."
        )
    if not role.graph.training:
        return role
    graph = _without_update(role.graph)
    end, turns = len(graph.ops), -(-plan.dp // plan.servers)
    link = Group(size=2, stride=1, count=1)
    pushes = [replace(c, kind="send-recv", name=c.name.replace("all-reduce", "push"), group=link, lane="servers", turns=turns,
                      waited_for_by=end + 1) for c in buckets(graph, plan, link)]  # fmt: skip
    pull = Collective(
        kind="send-recv", nbytes=role.graph.bytes_of("gradient"), group=link, name="pull parameters", lane="servers",
        starts_after=last_of(graph, "backward"), waited_for_by=end + 1 if plan.asynchronous else end, turns=turns,
    )  # fmt: skip
    return replace(role, name="worker", graph=graph, collectives=(*role.collectives, *pushes, pull))


def _without_update(graph: Graph) -> Graph:
    """Servers keep the optimizer's state and run its ops."""
    update = first_of(graph, "optimizer")
    storages = tuple(
        Storage(0, "host", -1, -1) if s.role == "optimizer" or s.born >= update
        else Storage(s.nbytes, s.role, s.born, min(s.freed, update))
        for s in graph.storages
    )  # fmt: skip
    return replace(graph, ops=graph.ops[:update], storages=storages)
