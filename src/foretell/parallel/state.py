"""Bytes of a model's state on one rank, as ZeRO leaves it: the rule that bounds need before any pass has run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from foretell.plans import Plan
from foretell.precision import Precision, bytes_per_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Bytes of parameters, their gradients and the optimizer's state; fractions of a byte where ranks share one."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0  # whole parameters, kept between their forward and backward passes
    buckets: float = 0.0  # copies of gradients, in which ranks add them up

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.buckets

    def divided(self, parts: float) -> ModelState:
        """The share of one of the ranks that tensor, pipeline or expert parallelism splits a model among."""
        return ModelState(
            parameters=self.parameters / parts, gradients=self.gradients / parts, optimizer=self.optimizer / parts,
            gathered=self.gathered / parts, buckets=self.buckets / parts,
        )  # fmt: skip


def shards_of(plan: Plan) -> int:
    """Ranks that share one copy of the model's state."""
    return (plan.hybrid_shard or plan.dp * plan.cp) if plan.zero else 1


def state_per_rank(whole: ModelState, plan: Plan, precision: Precision) -> ModelState:
    """What a rank keeps of one replica's state, without padding and without the buffers of a trainer.

    ZeRO 1 shares the optimizer's state, 2 and 3 gradients and parameters too; 2 gathers all of them for a step.
    """
    if plan.servers:
        return replace(whole, optimizer=0.0)  # they keep it
    shards = shards_of(plan)
    kept = replace(whole, optimizer=whole.optimizer / shards)
    if plan.zero > 1 and shards > 1:
        kept = replace(kept, parameters=whole.parameters / shards, gradients=whole.gradients / shards)
        if plan.zero == 2:
            kept = replace(kept, gathered=float(whole.parameters * gathered_share(precision)))
    elif plan.dp * plan.cp > 1 and plan.data_parallel == "ddp" and not precision.reduces_in_place:
        kept = replace(kept, buckets=float(whole.gradients * reduced_share(precision)))
    return _offloaded(kept, plan, precision)


def gathered_share(precision: Precision) -> Fraction:
    """Bytes of a gathered parameter for each byte that is kept of it."""
    kept = precision.parameters
    return Fraction(bytes_per_number(precision.gathered or kept), bytes_per_number(kept))


def reduced_share(precision: Precision) -> Fraction:
    """Bytes of a gradient on its way between ranks for each byte that is kept of it."""
    return Fraction(bytes_per_number(precision.reduce), bytes_per_number(precision.gradients))


def _offloaded(state: ModelState, plan: Plan, precision: Precision) -> ModelState:
    if plan.offload == "none":
        return state
    on_device = replace(state, optimizer=0.0)
    has_main_gradients = precision.gradients != precision.parameters
    if plan.zero > 1 and not has_main_gradients:  # each leaves the device when it is ready
        on_device = replace(on_device, gradients=0.0)
    return replace(on_device, parameters=0.0) if plan.offload == "parameters" else on_device
