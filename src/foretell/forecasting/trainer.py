"""What a trainer adds to its steps: input, logs, checks, and kernels that wait for each other.

It belongs to the trainer, not to how many devices it runs on. A loop around one device or around DDP is what was captured, so
nothing is added to it; a plan that shards a model is run by a trainer, known or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from foretell.cost.model import CostModel
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.uncertainty.jobs import jobs_of
from foretell.graph import Caveat
from foretell.graph.facts import StepFacts
from foretell.plans import Plan
from foretell.sources.configs import configuration_of
from foretell.trainers import FUSING, TRAINERS, UNKNOWN
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOverhead:
    """A part of the step that is added to it, how sure that is, and who says so."""

    fraction: float = 0.0
    spread: float = 0.0  # standard deviation, as a logarithm, of what another trainer like it makes of the step
    source: Literal["none", "conditions", "published jobs"] = "none"
    trainer: str | None = None  # by name; None: the loop that was captured, or nobody that has a name

    @classmethod
    def given(cls, conditions: Conditions) -> TrainerOverhead:
        """As a number of the conditions says; none where they have none."""
        if isinstance(conditions.trainer, str) or conditions.trainer is None:
            return cls()
        return cls(fraction=conditions.trainer, source="conditions")

    @property
    def factor(self) -> float:
        """What it makes of a step."""
        return 1 + self.fraction

    def seconds(self, step: Seconds) -> Seconds:
        """What is added to a step."""
        return step * self.fraction

    def caveat(self, share: float) -> Caveat:
        """For a forecast of which it is a `share`."""
        who = "its trainer" if self.trainer is None else self.trainer
        who = "a trainer that is not known (--trainer says which)" if self.trainer == UNKNOWN else who
        return Caveat(
            "trainer-added", f"{self.fraction:.0%} is added to the step for what {who} does around it.", share
        )


def without_its_kernels(trainer: str | None, facts: StepFacts) -> Caveat | None:
    """For a step with kernels that its trainer does not run."""
    if trainer not in FUSING or facts.trainer in FUSING:
        return None
    text = (
        f"{trainer} runs fused kernels, and the step was captured with torch's own. Capture it with kernels=megatron."
    )
    return Caveat("trainer-kernels", text)


def trainer_overhead(
    conditions: Conditions,
    model: CostModel,
    facts: StepFacts,
    plan: Plan | None,
    *,
    training: bool,
    profiled: bool,
) -> TrainerOverhead:
    """As the conditions say, or as published jobs of such trainers had it. A profile knows its own.

    `plan`: None where plans of all kinds are compared, with one trainer for all.
    """
    if isinstance(conditions.trainer, int | float):
        return TrainerOverhead.given(conditions)
    by_name = conditions.trainer is not None
    if not training or (not by_name and (profiled or facts.is_script)):
        return TrainerOverhead()
    trainer, known = trainer_of(conditions, facts, plan), jobs_of(model)
    if known is None:
        return TrainerOverhead(trainer=trainer)
    if trainer is None:
        loop = known.overhead("plain")
        return TrainerOverhead(spread=loop.spread_from_nothing)
    added = known.overhead(TRAINERS.get(trainer))
    return TrainerOverhead(fraction=added.fraction, spread=added.spread, source="published jobs", trainer=trainer)


def trainer_of(conditions: Conditions, facts: StepFacts, plan: Plan | None) -> str | None:
    """Who runs the step: as the user says, its configuration, its kernels or its plan; None: the loop that was captured."""
    if isinstance(conditions.trainer, str):
        return conditions.trainer
    if facts.trainer is not None:
        return facts.trainer
    if plan is not None and plan.sharding != "torch":
        return plan.sharding
    return UNKNOWN if plan is None or _shards(plan) else None


def _shards(plan: Plan) -> bool:
    """A model is cut, so more than a loop around it runs it."""
    return plan.zero > 0 or max(plan.tp, plan.pp, plan.cp, plan.ep) > 1


def trainer_settings(
    workload: object, settings: Mapping[str, Any] | None, conditions: Conditions | None
) -> Mapping[str, Any] | None:
    """Settings of a source with the kernels of the trainer that is named, where the source takes them and nobody says which."""
    trainer = conditions.trainer if conditions else None
    if trainer not in FUSING or not isinstance(workload, str) or "kernels" in (settings or {}):
        return settings
    is_named = workload.startswith("hf/")
    is_config = workload.endswith(".json") and configuration_of(workload, settings) is None
    return {**(settings or {}), "kernels": "megatron"} if is_named or is_config else settings


def same_trainer(conditions: Conditions, facts: StepFacts, plan: Plan | None, *, profiled: bool) -> Conditions:
    """For who compares plans or numbers of devices: all have one trainer, or some would win by what it adds."""
    if conditions.trainer is not None or profiled or facts.is_script:
        return conditions
    return replace(conditions, trainer=trainer_of(conditions, facts, plan))
