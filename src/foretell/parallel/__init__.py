"""Parallel plans: Graph + Plan → Program, one pure pass per strategy."""

from __future__ import annotations

from dataclasses import fields

from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.parallel.accumulate import accumulate
from foretell.parallel.data import data_parallel
from foretell.parallel.shard import Sharding, shard
from foretell.parallel.tensor import tensor_parallel
from foretell.program import Group, Program, Role
from foretell.workload import Plan

_UNDERSTOOD = ("dp", "tp", "sequence_parallel", "bucket_bytes", "overlap", "zero", "hybrid_shard", "grad_accumulation")


def parallelize(graph: Graph, plan: Plan) -> Program:
    """Place a step on ranks. A setting that is not modelled is refused, never ignored."""
    ahead = [f.name for f in fields(plan) if f.name not in _UNDERSTOOD and getattr(plan, f.name) != f.default]
    if ahead:
        raise PlanError(
            f"plan {plan} asks for {', '.join(ahead)}, which this version does not model yet. "
            f"Settings that work: {', '.join(_UNDERSTOOD)}."
        )
    graph = accumulate(graph, plan.grad_accumulation or graph.grad_accumulation)
    role = tensor_parallel(Role(name="dp", count=plan.devices, graph=graph), plan)
    return Program(roles=(_replicated(role, plan),), ranks=plan.devices, whole=graph)


def _replicated(role: Role, plan: Plan) -> Role:
    """One replica's role, with what replicas tell each other."""
    inner = plan.tp  # ranks between neighbours of a data-parallel group
    replicas = plan.dp * plan.cp  # context-parallel ranks hold the same parameters, and their gradients add up too
    if plan.zero == 0:
        return data_parallel(role, plan, Group(size=replicas, stride=inner, count=inner * plan.pp))
    size = plan.hybrid_shard or replicas
    if replicas % size:
        raise PlanError(
            f"hybrid_shard={size} must divide dp × cp = {plan.dp} × {plan.cp} = {replicas}. "
            "It is how many ranks share one copy of the model: choose a divisor, usually the devices of a node."
        )
    copies = replicas // size
    return shard(role, plan, Sharding(
        shard=Group(size=size, stride=inner, count=copies * inner * plan.pp),
        replicas=Group(size=copies, stride=inner * size, count=size * inner * plan.pp),
    ))  # fmt: skip
