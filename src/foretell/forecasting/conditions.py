"""What surrounds a step: how its input comes, how far ranks differ, how evenly tokens are routed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError

# One standard deviation of a step's device time, repeated on another occasion, in our H200 dataset (docs/status.md).
USUAL_JITTER: Final = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What surrounds a step."""

    loader: float | None = None  # samples per second that each replica's data loader delivers; None: it is never late
    jitter: float = USUAL_JITTER  # sigma of a rank's step around its median, as a part of it
    slowdown: float | None = None  # of compute while a collective runs beside it; None: by the units its links take
    expert_skew: float | None = None  # rows of the busiest rank over the average; None: chance under an even router

    def __post_init__(self) -> None:
        for name, low, high, allowed in (
            ("loader", 0.0, math.inf, "samples per second, more than 0"),
            ("jitter", -1e-12, 1.0, "a part of the step from 0 up to 1, as 0.004"),
            ("slowdown", 1 - 1e-12, math.inf, "at least 1, which is none"),
            ("expert_skew", 1 - 1e-12, math.inf, "at least 1, which is even"),
        ):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and low < value < high):
                raise InputError(f"{name} must be {allowed}, got {value!r}.")
