"""`torch.nn.DataParallel`: one process drives all devices and holds the model on the first of them.

Every forward pass copies the parameters to the other devices, every backward pass adds their gradients up on the first,
which alone updates. Nothing overlaps, and one interpreter issues the ops of all devices.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.errors import PlanError
from foretell.parallel.rewrite import first_of, last_of
from foretell.plan import Plan
from foretell.program import Collective, Group, Role


def single_process(role: Role, plan: Plan) -> Role:
    clashing = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1] + ["zero"] * (plan.zero > 0)
    if clashing:
        raise PlanError(
            f"data_parallel=dp copies whole models, which {', '.join(clashing)} would split. Use data_parallel=ddp, "
            "or dp alone."
        )
    graph = role.graph
    if plan.dp == 1:
        return role
    group = Group(size=plan.dp)
    nbytes = graph.bytes_of("gradient") or graph.bytes_of("parameter")
    said = [Collective(kind="broadcast", nbytes=nbytes, group=group, name="copy the model", starts_after=-1, issued_by=0,
                       waited_for_by=0, every_micro_step=True)]  # fmt: skip
    if graph.training:
        said.append(
            Collective(kind="broadcast", nbytes=nbytes, group=group, name="add up gradients", starts_after=last_of(graph, "backward"),
                       waited_for_by=first_of(graph, "optimizer"), every_micro_step=True)
        )  # fmt: skip
    return replace(role, name="first device", collectives=(*role.collectives, *said), issues_for=plan.dp)
