"""Parallel plans: Graph + Plan → Program, one pure pass per strategy."""

from __future__ import annotations

from dataclasses import fields

from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.parallel.data import data_parallel
from foretell.program import Program
from foretell.workload import Plan

_UNDERSTOOD = ("dp", "bucket_bytes", "overlap")


def parallelize(graph: Graph, plan: Plan) -> Program:
    """Place a step on ranks. Plain data parallelism so far; any other setting is refused, never ignored."""
    ahead = [f.name for f in fields(plan) if f.name not in _UNDERSTOOD and getattr(plan, f.name) != f.default]
    if ahead:
        raise PlanError(
            f"plan {plan} asks for {', '.join(ahead)}, which this version does not model yet. "
            "Plain data parallelism works today: write it as dp=N, or leave the plan out."
        )
    return data_parallel(graph, plan)
