"""Measured steps, as people have them: what ran, where, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.capture import capture
from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import InputError, check_number
from foretell.forecasting.forecast import forecast, profile_response
from foretell.forecasting.profile_response import ProfileResponse
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.learn.adapt.operators import Recorded
from foretell.plans import Plan
from foretell.profile import Operators, Profile
from foretell.software import Software
from foretell.units import Bytes, Seconds
from foretell.workload import Workload

LONGEST: Final[Seconds] = 1e6
MOST_STEPS: Final = 16  # of many equal ones: a handful of numbers needs no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measured step, asked about as `forecast` is.

    Args:
        workload: A Workload, a Graph or a SOURCE, with `settings`, `on` a cluster and with a `plan`.
        seconds: What the step took.
        allocated: Peak bytes of the allocator, where they were measured; `reserved` those of its cache.
        recorded: Op by op, where it was.
        software: Of which time what ran it is, like `torch-1.12`; None: today's.

    Raises:
        InputError: A time or a size that is not above 0.

    Examples:
        >>> foretell.MeasuredStep(workload="torchvision/resnet18", on="h200", seconds=0.0215).network
        'torchvision/resnet18'
    """

    workload: Workload | Graph | str
    on: str | Cluster
    plan: Plan | str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: Seconds
    allocated: Bytes | None = None
    reserved: Bytes | None = None
    recorded: Recorded | None = None  # op by op, where it was
    software: str | None = None

    def __post_init__(self) -> None:
        if self.software is not None:
            object.__setattr__(self, "software", str(Software.parse(self.software)))
        allowed = f"seconds of a step, above 0 and at most {LONGEST:g}"
        check_number("a measured step", self.seconds, allowed, InputError, least=1e-9, most=LONGEST)
        for name in ("allocated", "reserved"):
            if (nbytes := getattr(self, name)) is not None:
                check_number(f"{name} of a measured step", nbytes, "bytes, more than 0", InputError, least=1)

    @property
    def network(self) -> str:
        """What steps of one model share, whatever their batch: they are left out together."""
        return self.workload if isinstance(self.workload, str) else self.workload.name

    @property
    def cluster(self) -> Cluster:
        return Cluster.parse(self.on) if isinstance(self.on, str) else self.on

    @property
    def timed_ops(self) -> tuple[Recorded, Graph]:
        """What it ran, and the graph that a forecast of it is made from."""
        assert self.recorded is not None
        captured = self.workload if isinstance(self.workload, Graph) else capture(self.workload, self._settings)
        return self.recorded, captured

    def response(self, model: str | CostModel = DEFAULT, timed: Operators | None = None) -> ProfileResponse:
        return profile_response(
            self.workload, self.on, self.plan, settings=self._settings, model=model, timed=timed, software=self.software
        )

    def predicted(self, profile: Profile, model: str | CostModel = DEFAULT) -> Seconds:
        found = forecast(self.workload, self.on, self.plan, settings=self._settings, model=model, profile=profile)
        return found.step_time.seconds

    @property
    def _settings(self) -> Mapping[str, Any] | None:
        return self.settings if isinstance(self.workload, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A measured step that was captured and priced, ready for trials of many profiles."""

    seconds: Seconds
    network: str
    response: ProfileResponse
    allocated: Bytes | None = None
    reserved: Bytes | None = None
    software: str | None = None  # that `response` is under

    @classmethod
    def of(
        cls, step: Step, model: str | CostModel = DEFAULT, timed: Operators | None = None,
        known: ProfileResponse | None = None,
    ) -> Prepared:  # fmt: skip
        found = known or step.response(model, timed)
        return cls(
            seconds=step.seconds,
            network=step.network,
            response=found,
            allocated=step.allocated,
            reserved=step.reserved,
            software=step.software,
        )


def is_repeated(networks: Sequence[str]) -> bool:
    """Whether most steps are of networks that others are of too."""
    count = Counter(networks)
    return len(count) > 1 and 2 * sum(n for n in count.values() if n > 1) > len(networks)


def well_spread(keys: Sequence[tuple[str, float]], most: int = MOST_STEPS) -> list[int]:
    """Positions of some of many: evenly through them in the order of their keys, plan first and then seconds."""
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    if len(order) <= most:
        return order
    return [order[round(i * (len(order) - 1) / (most - 1))] for i in range(most)]
