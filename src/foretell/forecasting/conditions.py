"""What surrounds a step: how its input comes, how far ranks differ, how evenly tokens are routed, what a trainer adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError, check_number
from foretell.hardware import host_named
from foretell.software import Software
from foretell.trainers import trainer_named

# How far equal devices of a cluster differ, as a standard deviation. Sinha et al., "Not All GPUs Are Created Equal" (SC 2022):
# 8 % between the whiskers of a boxplot, on average over clusters and applications, which are 5.4 deviations of a normal
# distribution; to that, 0.4 % for the same step on another occasion, in our H200 dataset.
USUAL_JITTER: Final = 0.0155


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What surrounds a step.

    Args:
        loader: Samples per second that each replica's data loader delivers; None: it is never late.
        jitter: Standard deviation of a rank's step around its median, as a part of it.
        slowdown: Of compute while a collective runs at the same time; None: by the units its links take.
        expert_skew: Rows of the busiest rank over the average; None: chance under an even router.
        trainer: Who runs the step, as `megatron`, or what it adds as a part of the step; None: as the source says it.
        host: What feeds the devices: a host of the catalog, seconds that it takes to dispatch an op, or `usual`: what each board
            is sold with. None: that too, but boards of one question share the slowest of theirs.
        software: Of which time, as `torch-1.12` or `2022-07`. None: today's.

    Raises:
        InputError: A number outside its range.

    Examples:
        >>> slow = foretell.Conditions(loader=100.0)
        >>> foretell.forecast("torchvision/resnet18", on="h200", conditions=slow).input_wait.seconds > 0
        True
    """

    loader: float | None = None  # samples per second that each replica's data loader delivers; None: it is never late
    jitter: float = USUAL_JITTER  # sigma of a rank's step around its median, as a part of it
    slowdown: float | None = None  # of compute while a collective runs beside it; None: by the units its links take
    expert_skew: float | None = None  # rows of the busiest rank over the average; None: chance under an even router
    trainer: float | str | None = None  # by name, or what it adds as a part of the step; None: as the source says it
    host: float | str | None = None  # by name or seconds per op, or usual; None: in a comparison the same for all
    software: str | None = None  # a version of torch, or a date; None: today's

    def __post_init__(self) -> None:
        if self.software is not None:
            object.__setattr__(self, "software", str(Software.parse(self.software)))
        if self.host is not None:
            host_named(self.host)
        if isinstance(self.trainer, str):
            object.__setattr__(self, "trainer", trainer_named(self.trainer))
        for name, low, high, allowed in (
            ("loader", 1e-6, 1e12, "samples per second, more than 0 and at most 1e12"),
            ("jitter", 0.0, 0.999, "a part of the step from 0 up to 1, as 0.0155"),
            ("slowdown", 1.0, 1e6, "at least 1, which is none, and at most 1e6"),
            ("expert_skew", 1.0, 1e6, "at least 1, which is even, and at most 1e6"),
            ("trainer", 0.0, 1e3, "a part of the step of at least 0, which is nothing, and at most 1000"),
        ):
            named = name == "trainer" and isinstance(self.trainer, str)
            if (value := getattr(self, name)) is not None and not named:
                check_number(name, value, allowed, InputError, least=low, most=high)
