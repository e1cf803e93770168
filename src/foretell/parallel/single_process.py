"""`torch.nn.DataParallel`: one process drives all devices and holds the model on the first of them.

Every forward pass copies the parameters to the other devices, every backward pass adds their gradients up on the first,
which alone updates. Nothing overlaps, and one interpreter issues the ops of all devices.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.parallel.rewrite import first_of, last_of, refuse_split_models
from foretell.plans import Plan
from foretell.program import Collective, Group, Role


def single_process(role: Role, plan: Plan) -> Role:
    refuse_split_models(plan, "data_parallel=dp copies whole models", "Use data_parallel=ddp, or dp alone.")
    if plan.dp == 1:
        return role
    graph = role.graph
    copy = Collective(
        kind="broadcast",
        nbytes=graph.bytes_of("gradient") or graph.bytes_of("parameter"),
        group=Group(size=plan.dp),
        name="copy the model",
        starts_after=-1,
        issued_by=0,
        waited_for_by=0,
        every_micro_step=True,
    )
    collectives = [copy]
    if graph.training:
        last, update = last_of(graph, "backward"), first_of(graph, "optimizer")
        collectives.append(
            replace(copy, name="add up gradients", starts_after=last, issued_by=None, waited_for_by=update)
        )
    return replace(role, name="first device", collectives=(*role.collectives, *collectives), issues_for=plan.dp)
