"""A training script on a cluster: what it is told of its devices, and the plan that its wrappers ask for."""

from __future__ import annotations

from dataclasses import replace

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.sources.scripts import Accelerator, Script


def on_cluster(script: Script, cluster: Cluster, plan: Plan | None = None) -> Script:
    """The script as it would find itself there: one process per replica or device, on its node's accelerators."""
    devices = cluster.devices
    if script.processes not in (None, devices) and plan is None:
        raise InputError(
            f"{script.processes} processes do not fill {cluster}, which has {devices} devices. Leave out --nproc for one "
            "process per device, choose another cluster, or say with --plan what the other devices do."
        )
    node = cluster.nodes[0]
    chip = Accelerator(
        name=node.device.title,
        capability=node.device.compute_capability or Accelerator().capability,
        memory=node.device.usable_bytes,
        units=node.device.compute_units,
        per_node=node.count,
    )
    return replace(script, processes=script.processes or devices, accelerator=chip)


def plan_noted(graph: Graph, devices: int) -> Plan | None:
    """What the wrappers of a captured script ask for, on so many devices; None if it was no script."""
    if (written := graph.provenance.get("plan")) is None:
        return None
    plan = Plan.parse(written)
    return replace(plan, dp=max(devices // (plan.tp * plan.pp * plan.cp), 1))
