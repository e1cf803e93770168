"""A network that predicts the time of a whole step from its graph, with no model of ops and no time of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool

from foretell.learn.graph_network import Sample, States, huber
from foretell.learn.interaction import Example


class WholeStep(States):
    """Predicts the logarithm of a step's seconds."""

    def __init__(self, samples: Sequence[Sample], width: int = 32, rounds: int = 3, drop: float = 0.1) -> None:
        super().__init__(samples, width, rounds, drop)
        totals = torch.cat([s.totals for s in samples])
        self.register_buffer("total_mean", totals.mean(0))
        self.register_buffer("total_scale", totals.std(0, correction=0) + 1e-3)
        self.read = nn.Sequential(nn.Linear(width + totals.shape[1], width), nn.ReLU(), nn.Linear(width, 1))
        self.usual = nn.Parameter(torch.tensor(float(np.mean([s.whole.item() for s in samples]))))

    def forward(self, steps: Batch) -> Tensor:
        pooled = global_add_pool(self.states(steps) * steps.share[:, None], steps.batch, steps.num_graphs)
        totals = (steps.totals - self.total_mean) / self.total_scale
        predicted: Tensor = self.usual + self.read(torch.cat([pooled, totals], dim=1))[:, 0]
        return predicted

    def loss(self, steps: Batch) -> Tensor:
        total: Tensor = (steps.weight * huber(self(steps), steps.whole, 0.2)).sum() / steps.weight.sum()
        return total


def sample_by_sizes(e: Example, families: Sequence[str], weight: float) -> Sample:
    """A step by its sizes alone: no time of an op, not even the roofline's."""
    step = e.step
    kinds = np.array([[float(family == known) for known in families] for family in e.families])
    flops, traffic = float(step.flops @ step.count), float(step.traffic @ step.count)
    sizes = (
        np.log1p(step.flops),
        np.log1p(step.traffic),
        np.log1p(step.count),
        step.position,
        step.phases,
        step.cached,
    )
    totals = [math.log1p(flops), math.log1p(traffic), math.log(step.count.sum()), float(step.training)]
    return Sample.of(
        step,
        table=np.column_stack([*sizes, kinds]),
        share=step.traffic * step.count / max(traffic, 1.0),
        wanted=np.full(len(step), math.nan),
        whole=math.log(e.whole),
        weight=weight,
        totals=[totals],
    )
