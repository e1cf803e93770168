"""One question: which step, on which cluster, by which plan, and who decided the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal

from foretell.capture import capture
from foretell.errors import InputError, PlanError, check_kind
from foretell.graph import Caveat, Graph
from foretell.hardware import Cluster
from foretell.parallel import cuts_of_compiled
from foretell.plans import Plan, PlanTemplate
from foretell.sources.configs import configuration_of
from foretell.sources.scripts import Accelerator, Script, script_of
from foretell.workload import Workload

Subject = Workload | Graph | Script | str  # a str is a SOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a forecast is made of: a step, a cluster and a plan that fills it."""

    graph: Graph
    cluster: Cluster
    plan: Plan
    decided_by: Literal["caller", "script", "configuration", "cluster"]  # the plan

    @property
    def remark(self) -> str:
        """What a user should know who left the plan to a file; empty where there is nothing to say."""
        template = self.graph.facts.plan
        if template is None or template.by != self.decided_by:
            return ""
        if template.by == "script":
            return f"Plan of {template.source} on {self.cluster}: {self.plan}. Give --plan for another."
        if template.devices in (None, self.cluster.devices):
            return ""
        return f"{template.source} is written for {template.devices} devices; this is the forecast for {self.cluster.devices}."


def decide(
    workload: Subject,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
    cache: bool = True,
    output: Callable[[bytes], None] | None = None,
) -> Question:
    """Decide the graph, the cluster and the plan: as given, as a script or a configuration asks for, or data parallelism.

    A script is run as it would find itself on the cluster. What is wrong with cluster and plan is said before a capture.
    """
    check_kind("on", on, (str, Cluster), "a Cluster or its name, like '8xh100-sxm'", InputError)
    check_kind("plan", plan, (str, Plan, NoneType), "a Plan, text like 'dp=4,tp=2', or None", PlanError)
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    given = Plan.parse(plan) if isinstance(plan, str) else plan
    subject = script_of(workload)
    check_kind(
        "workload", subject, (Workload, Graph, Script, str), "a Workload, a Graph, a Script or a SOURCE", InputError
    )
    if given is not None:
        _check(given, cluster)
    elif isinstance(subject, str) and (configuration := configuration_of(subject, settings)) is not None:
        _planned(configuration.template(settings), cluster)
    if isinstance(subject, Script):
        subject = on_cluster(subject, cluster, given)
    graph = capture(subject, settings, progress=progress, cache=cache, output=output)
    if given is not None and not _asks_to_compile(subject, settings) and (cuts := cuts_of_compiled(graph, given)):
        eager = capture(subject, settings, progress=progress, cache=cache, output=output, compiled=False)
        graph = _not_compiled(eager, cuts)
    if given is not None:
        return Question(graph=graph, cluster=cluster, plan=given, decided_by="caller")
    if (template := graph.facts.plan) is not None:
        return Question(graph=graph, cluster=cluster, plan=_planned(template, cluster), decided_by=template.by)
    return Question(graph=graph, cluster=cluster, plan=Plan(dp=cluster.devices), decided_by="cluster")


def _asks_to_compile(subject: Subject, settings: Mapping[str, Any] | None) -> bool:
    """Whether the question does, and not code that compiles by itself; a graph is what it is."""
    if isinstance(subject, Workload):
        return bool(subject.compile)
    if isinstance(subject, str):
        return subject.endswith(".graph") or "compile" in (settings or {})
    return isinstance(subject, Graph)


def _not_compiled(graph: Graph, cuts: list[str]) -> Graph:
    text = f"torch.compile: kernels of a step that {', '.join(cuts)} cut are not compiled here; this is its eager step."
    return replace(graph, caveats=(*graph.caveats, Caveat("compile-not-modelled", text)))


def _planned(template: PlanTemplate, cluster: Cluster) -> Plan:
    plan = template.plan_for(cluster.devices, len(cluster.nodes))
    _check(plan, cluster)
    return plan


def _check(plan: Plan, cluster: Cluster) -> None:
    plan.check_devices(cluster.devices)
    if plan.data_parallel == "dp" and len(cluster.nodes) > 1:
        raise PlanError(
            f"data_parallel=dp drives all devices from one process, but {cluster} has {len(cluster.nodes)} nodes and a "
            f"process runs on one. Use data_parallel=ddp, or at most {cluster.nodes[0].count} devices of one node."
        )


def on_cluster(script: Script, cluster: Cluster, plan: Plan | None = None) -> Script:
    """The script as it would find itself there: one process per replica or device, on its node's accelerators."""
    devices = cluster.devices
    if script.processes not in (None, devices) and plan is None:
        if script.launcher is not None:
            nodes, name = script.nodes or 1, cluster.nodes[0].device.name
            counts = f"{nodes}x" * (nodes > 1) + f"{(script.processes or 1) // nodes}x"
            raise InputError(
                f"the launch line starts {script.processes} processes, but {cluster} has {devices} devices. Give "
                f"--on {counts}{name}, or a line that starts {devices}."
            )
        raise InputError(
            f"{script.processes} processes do not fill {cluster}, which has {devices} devices. Leave out --nproc for one "
            "process per device, choose another cluster, or say with --plan what the other devices do."
        )
    if script.nodes is not None and script.nodes != len(cluster.nodes) and plan is None:
        raise InputError(
            f"the launch line starts {script.nodes} nodes, but {cluster} has {len(cluster.nodes)}. Change one of them, such "
            f"as --on {script.nodes}x{max(devices // script.nodes, 1)}x{cluster.nodes[0].device.name}."
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
