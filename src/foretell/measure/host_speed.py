"""How fast this machine issues work: one number, in seconds, that every forecast of a host scales with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from foretell.cost.model import load_model
from foretell.errors import RequirementNotMet
from foretell.graph import Graph
from foretell.measure.instrument import SECONDS, measure
from foretell.measure.record import Point
from foretell.units import Seconds
from foretell.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeed:
    """`op_seconds` is what a catalog of hosts calls `op_time`; low and high are of single steps, 10th to 90th percentile."""

    op_seconds: Seconds
    low: Seconds
    high: Seconds
    ops: int  # that a step of the probe issues
    cpu: str


def probe(*, layers: int = 6, width: int = 32) -> Workload:
    """A transformer so small that issuing its ops is all its time."""

    def model() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    return Workload(
        name="host probe",
        model=model,
        batch=lambda: {"x": torch.randn(1, 8, width), "y": torch.randn(1, 8, width)},
        loss=lambda m, b: F.mse_loss(m(b["x"]), b["y"]),
        optimizer=lambda p: torch.optim.AdamW(p, foreach=False),
    )


def host_speed(device: str = "auto", seconds: Seconds = SECONDS) -> HostSpeed:
    """Run the probe, and divide its time by what its ops cost on a host that needs one second per op."""
    record = measure(Point(source="foretell.measure.host_speed:probe"), device=device, seconds=seconds)
    step = record.step
    if record.graph is None or not (step.step_seconds and step.step_low and step.step_high):
        raise RequirementNotMet(
            f"the probe of the host did not run: {step.outcome} {step.error}".rstrip() + ". Try again."
        )
    graph = Graph.from_bytes(record.graph.file)
    weight = load_model().host.step_weight(graph)
    op_seconds, low, high = (seconds / weight for seconds in (step.step_seconds, step.step_low, step.step_high))
    ops = sum(op.times for op in graph.ops)
    return HostSpeed(op_seconds=op_seconds, low=low, high=high, ops=ops, cpu=step.host_cpu)
