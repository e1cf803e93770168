"""What a method is: it is fitted on examples and answers queries. Ours and the published ones alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.units import Seconds

STEP_TIME: Final = "step_time"  # seconds
DEVICE_TIME: Final = "device_time"  # seconds of kernels on the busiest device
HOST_TIME: Final = "host_time"  # seconds the host needs to issue the step
JOB_TIME: Final = "job_time"  # seconds of a whole job: its start and all its steps
MEMORY: Final = "memory"  # peak allocated bytes on the worst device


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A step that is asked about: what one device runs, the plan, and where."""

    architecture: str  # the network, like `timm/resnet50`: what splits are made by
    plan: Plan
    cluster: Cluster
    graph: Graph | None = None  # None: the source does not say what was run
    batch: float = 1.0  # samples of all devices together
    fraction: float = 1.0  # of the data the whole job goes through
    dataset: str = ""  # its type, like `imagenet`: PredictDDL keeps one predictor for each
    settings: Mapping[str, str] = field(default_factory=dict)  # whatever else the source says


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A query and what was measured. A target that a setting cannot have is absent."""

    query: Query
    measured: Mapping[str, float]  # target → value
    cost: Seconds = 0.0  # of measuring it
    ops: Sequence[Seconds] = ()  # on the device, one run of each op of the graph, 0 for no kernel; empty: not timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a method predicts of a query; a target it cannot predict is absent, and `why` says the reason."""

    values: Mapping[str, float]
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


class Method(Protocol):
    """`fit` forgets what was fitted before and returns the method itself; `predict` answers every query, in order."""

    @property
    def name(self) -> str: ...

    def fit(self, examples: Sequence[Example]) -> Self: ...

    def predict(self, queries: Sequence[Query]) -> list[Prediction]: ...
