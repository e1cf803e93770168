"""The least memory that a plan needs on its heaviest rank: the model's state, and activations of micro-steps under way."""

from __future__ import annotations

from typing import Final

from foretell.planner.bounds import SLACK
from foretell.planner.bounds.replica import Replica, StepTotals, stages_of
from foretell.plans import Plan
from foretell.units import Bytes

_IN_BLOCKS: Final = 0.9  # of a model's state and activations, in its repeated blocks


def arithmetic_memory(totals: StepTotals, plan: Plan) -> Bytes:
    """The bytes of the model's state alone."""
    parts = plan.tp * plan.pp * plan.ep
    return round(
        _IN_BLOCKS * _state(totals.parameters / parts, totals.gradients / parts, totals.optimizer / parts, plan)
    )


def memory_bound(replica: Replica, plan: Plan) -> Bytes:
    """The bytes of the heaviest stage, from its share of the blocks."""
    micro_steps = plan.grad_accumulation or 1
    parts = plan.ep
    state = _state(replica.parameters / parts, replica.gradients / parts, replica.optimizer / parts, plan)
    if micro_steps == 1 and plan.zero < 2:  # gradients come as activations go
        state -= replica.gradients / parts
    if plan.pp == 1:
        return round(SLACK * (state + replica.activations + replica.temporaries))
    stages = stages_of(replica.units, plan.pp)
    shares = [stages.count(stage) / len(stages) for stage in range(plan.pp)]
    under_way = (min(plan.pp - stage, micro_steps) for stage in range(plan.pp))
    return round(
        _IN_BLOCKS * max(share * (state + replica.activations * n) for share, n in zip(shares, under_way, strict=True))
    )


def _state(parameters: float, gradients: float, optimizer: float, plan: Plan) -> float:
    replicas = plan.dp * plan.cp
    shards = plan.hybrid_shard or replicas
    if replicas == 1:
        return parameters + gradients + optimizer
    if plan.zero < 2:  # buckets are copies of the gradients
        return parameters + 2 * gradients + optimizer / (shards if plan.zero else 1)
    return parameters / (1 if plan.zero == 2 else shards) + (gradients + optimizer) / shards
