"""A small Llama whose batch is free, for tests of the planner."""

from __future__ import annotations

from functools import cache, partial

import torch

from foretell.cost.model import load_model
from foretell.forecasting.conditions import Conditions
from foretell.hardware import Cluster
from foretell.planner.evaluate import PlanEvaluator
from foretell.planner.steps import Steps, steps_of
from foretell.workload import Workload
from tests.parallel.models import Llama, loss


def llama(batch: int = 2, precision: str = "fp32") -> Workload:
    return Workload(
        name="small llama",
        model=lambda: Llama(width=256, layers=2, vocabulary=512),
        batch=lambda: {"x": torch.randint(512, (batch, 256)), "y": torch.randint(512, (batch, 256))},
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        precision=precision,
    )


@cache
def steps(precision: str = "fp32") -> Steps:
    return steps_of(partial(llama, precision=precision), {}, {})


def evaluator(*clusters: str, trainer: float | None = None, precision: str = "fp32") -> PlanEvaluator:
    return PlanEvaluator(
        steps=steps(precision), clusters=tuple(map(Cluster.parse, clusters)), model=load_model("roofline"),
        conditions=Conditions(trainer=trainer), profile=None, outcomes=None,
    )  # fmt: skip
