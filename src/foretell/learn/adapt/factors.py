"""Forecasts in parts that a few factors may stretch.

A cluster's software and network differ from the catalogue's by factors that hold for all its steps: for device time, host
time, communication that does not hide, and bubble. `learn/residuals.py` and the trainers of the benchmarks fit them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretell.cost.model import CostModel
from foretell.errors import InputError
from foretell.forecasting.assemble import DEFAULT_MODEL, forecast
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plan import Plan
from foretell.units import Bytes, Seconds

_QUIET = 1e-3  # a host so fast that it is never waited for, so that its time can be told apart
SOFT = 6.0  # device and host run side by side: nearly their maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of a forecast that are calibrated, and its memory by purpose."""

    device: Seconds
    host: Seconds
    waiting: Seconds  # for communication that does not hide behind compute
    bubble: Seconds
    memory: Mapping[str, Bytes]

    def seconds(self, factors: Sequence[float]) -> Seconds:
        """A pipeline runs empty in proportion to what fills it, be that the device or the host."""
        device, host, waiting, bubble = factors
        busy = device * self.device + waiting * self.waiting
        paced = float((busy**SOFT + (host * self.host) ** SOFT) ** (1 / SOFT))
        return paced * (1 + bubble * self.bubble / (self.device + self.waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no forecast."""

    why: str
    impossible: bool  # or only not modelled yet


def ask(graph: Graph, cluster: Cluster, plan: Plan, model: str | CostModel = DEFAULT_MODEL) -> Answer | Refusal:
    quiet = {node: _quiet(node) for node in dict.fromkeys(cluster.nodes)}
    try:
        found = forecast(
            graph, dataclasses.replace(cluster, nodes=tuple(quiet[n] for n in cluster.nodes)), plan, model=model
        )
    except InputError as error:
        return Refusal(why=str(error), impossible="does not model yet" not in str(error))
    device, bubble = found.device_time.seconds, found.bubble.seconds
    memory = {
        **dataclasses.asdict(found.memory.breakdown),
        "allocated": found.memory.allocated,
        "total": found.memory.total,
    }
    return Answer(
        device=device, host=found.host_time.seconds / _QUIET, bubble=bubble, memory=memory,
        waiting=max(found.step_time.seconds - device - bubble, 0.0),
    )  # fmt: skip


def _quiet(node: Any) -> Any:
    host = dataclasses.replace(node.host, op_seconds=node.host.op_seconds * _QUIET)
    return dataclasses.replace(node, host=host)
