"""What a trainer adds to its steps: input, logs, checks, and kernels that wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from foretell.cost.model import CostModel
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.uncertainty.jobs import jobs_of
from foretell.graph import Caveat
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOverhead:
    """A part of the step that is added to it, and who says so."""

    fraction: float = 0.0
    source: Literal["none", "conditions", "published jobs"] = "none"

    @classmethod
    def given(cls, conditions: Conditions) -> TrainerOverhead:
        """As the conditions say; none where they do not."""
        return cls() if conditions.trainer is None else cls(fraction=conditions.trainer, source="conditions")

    @property
    def factor(self) -> float:
        """What it makes of a step."""
        return 1 + self.fraction

    def seconds(self, step: Seconds) -> Seconds:
        """What is added to a step."""
        return step * self.fraction

    def caveat(self, share: float) -> Caveat:
        """For a forecast of which it is a `share`."""
        text = f"{self.fraction:.0%} is added to the step for what its trainer does around it."
        return Caveat("trainer-added", text, share)


def trainer_overhead(
    conditions: Conditions,
    model: CostModel,
    *,
    training: bool,
    profiled: bool,
    several: bool = True,
    own_loop: bool = False,
) -> TrainerOverhead:
    """As the conditions say, or as published jobs had it. One device is measured without a trainer, and a profile knows its own.

    `own_loop`: a script's, which was run itself: what it does around its step was recorded with it.
    """
    if conditions.trainer is not None:
        return TrainerOverhead.given(conditions)
    known = jobs_of(model) if several and training and not profiled and not own_loop else None
    return TrainerOverhead(fraction=known.trainer_overhead, source="published jobs") if known else TrainerOverhead()


def same_trainer(
    conditions: Conditions, model: CostModel, *, training: bool, profiled: bool, own_loop: bool = False
) -> Conditions:
    """For who compares numbers of devices: one device has the trainer that several have, or it would win by what that adds."""
    overhead = trainer_overhead(conditions, model, training=training, profiled=profiled, own_loop=own_loop)
    return conditions if overhead.source == "none" else replace(conditions, trainer=overhead.fraction)
