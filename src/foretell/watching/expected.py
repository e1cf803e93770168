"""What is expected of a job that will be watched: the forecast, as columns of the rows that are kept beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretell.cost.model import CostModel
from foretell.errors import InputError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import answer_to
from foretell.forecasting.question import decide
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.measure.machine import Machine, pick_device
from foretell.measure.record import GraphRow, Point
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Columns of a `StepRow`, and the graph they belong to where it is known whole."""

    columns: Mapping[str, Any]
    graph: GraphRow | None
    micro_steps: int


def expect(
    workload: Workload | Graph | str,
    on: str | Cluster | None,
    plan: Plan | str | None,
    settings: Mapping[str, Any] | None,
    model: str | CostModel,
    profile: Profile | str | Path | None,
    conditions: Conditions | None,
) -> Expected:
    """Capture the step, and forecast it on the cluster named or on the one at hand."""
    question = decide(workload, on or here(), plan, settings=settings)
    graph, made = question.graph, answer_to(question, model=model, profile=profile, conditions=conditions)
    # A SOURCE can be captured again; what has no name of that kind is known by its graph.
    source = workload if isinstance(workload, str) else f"{graph.name}-{graph.content_hash[:8]}.graph"
    return _expected(made, graph, source, settings or {})


def expect_forecast(made: Forecast) -> Expected:
    """A forecast that is made already. The graph of one rank among several is not that of the whole step."""
    alone = Plan.parse(made.plan).devices == 1
    source = f"{made.workload}-{made.graph.content_hash[:8]}.graph" if alone else made.workload
    return _expected(made, made.graph if alone else None, source, {})


def _expected(made: Forecast, graph: Graph | None, source: str, settings: Mapping[str, Any]) -> Expected:
    point = Point(source=source, settings=settings, kind="watched", plan=made.plan)
    time, memory = made.step_time, made.memory
    known = graph or made.graph
    micro_steps = Plan.parse(made.plan).grad_accumulation or known.grad_accumulation
    columns = point.columns | {
        "workload": made.workload, "precision": known.precision.arithmetic, "training": known.training,
        "grad_accumulation": micro_steps, "samples": known.samples, "tokens": known.tokens,
        "graph": graph and graph.content_hash,
        "cluster": made.cluster, "model": made.model, "profile": made.profile or "",
        "predicted_seconds": time.seconds, "predicted_low": time.low, "predicted_high": time.high,
        "predicted_allocated": memory.allocated, "predicted_reserved": memory.reserved,
    }  # fmt: skip
    return Expected(columns=columns, graph=None if graph is None else _row(graph), micro_steps=micro_steps)


def _row(graph: Graph) -> GraphRow:
    return GraphRow(hash=graph.content_hash, name=graph.name, file=graph.to_bytes(packed=False))


def here() -> str:
    """The cluster that this process is part of, as far as it can see: all nodes like this one."""
    machine = Machine(pick_device())
    name = "cpu" if machine.device.type == "cpu" else machine.provenance()["device"]
    if not name:
        raise InputError(
            f"{machine.name} is not in the catalog, so its forecast must be asked for: give on=, like on='8xh100-sxm'. "
            "List what is known with: foretell devices"
        )
    ranks = world_size()
    local = min(int(os.environ.get("LOCAL_WORLD_SIZE") or ranks), ranks)
    return name if ranks == 1 else f"{ranks // local}x{local}x{name}"


def rank() -> int:
    return _of_the_group("rank") if _grouped() else int(os.environ.get("RANK") or 0)


def world_size() -> int:
    return _of_the_group("world_size") if _grouped() else int(os.environ.get("WORLD_SIZE") or 1)


def _grouped() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _of_the_group(what: str) -> int:
    return int(getattr(torch.distributed, f"get_{what}")())
