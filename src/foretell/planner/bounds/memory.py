"""The least memory that a plan needs on its heaviest rank: the model's state, and activations of micro-steps under way."""

from __future__ import annotations

from typing import Final

from foretell.parallel.state import state_per_rank
from foretell.planner.bounds import SLACK
from foretell.planner.bounds.replica import Replica, StepTotals, stages_of
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.units import Bytes

_IN_BLOCKS: Final = 0.9  # of a model's state and activations, in its repeated blocks


def arithmetic_memory(totals: StepTotals, plan: Plan) -> Bytes:
    """The bytes of the model's state alone."""
    whole = totals.state.divided(plan.tp * plan.pp * plan.ep)
    return round(_IN_BLOCKS * state_per_rank(whole, plan, totals.precision).total)


def memory_bound(replica: Replica, plan: Plan, precision: Precision) -> Bytes:
    """The bytes of the heaviest stage, from its share of the blocks."""
    micro_steps = plan.grad_accumulation or 1
    kept = state_per_rank(replica.state.divided(plan.ep), plan, precision)
    state = kept.total
    if micro_steps == 1 and plan.zero < 2:  # gradients come as activations go
        state -= kept.gradients
    temporaries = replica.temporaries if plan.offload == "none" else 0  # which may be the update's
    if plan.pp == 1:
        return round(SLACK * (state + replica.activations + temporaries))
    stages = stages_of(replica.units, plan.pp)[1:-1]
    shares = [stages.count(stage) / len(stages) for stage in range(plan.pp)]
    most = (share * (state + replica.activations * min(plan.pp - s, micro_steps)) for s, share in enumerate(shares))
    return round(_IN_BLOCKS * max(most))
