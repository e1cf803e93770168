"""What comes back: a `Forecast`, whose `to_dict` is the JSON of the public contract."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from foretell.distribution import Distribution, interval
from foretell.forecasting.job import Job
from foretell.forecasting.snapshot import RankStep, write_snapshot
from foretell.graph import Caveat, Graph
from foretell.graph.notes import Note
from foretell.simulate.memory import MemoryTrace
from foretell.simulate.timeline import Timeline
from foretell.text import json_text
from foretell.units import Bytes, Dollars, Seconds, show_bytes, show_seconds

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A median with its 90 % interval; the bounds are None until the model is calibrated."""

    seconds: Seconds
    low: Seconds | None = None
    high: Seconds | None = None

    @classmethod
    def within(cls, seconds: Seconds, bounds: tuple[Seconds, Seconds] | None) -> Duration:
        """With bounds, where they are known."""
        return cls(seconds=seconds) if bounds is None else cls(seconds=seconds, low=bounds[0], high=bounds[1])

    @classmethod
    def of(cls, seconds: Seconds, distribution: Distribution | None) -> Duration:
        """As JSON shows a distribution."""
        return cls.within(seconds, None if distribution is None else interval(distribution))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDescription:
    """What one step is. Samples, tokens and inputs are of one replica in one micro-step; None where it is not known."""

    samples: int | None
    tokens: int | None
    inputs: str | None  # the shape of the first, as 8×1024
    precision: str
    optimizer: str | None
    parameters: int | None
    untrained: int | None  # parameters of modules that run in the step and are no part of what it trains
    grad_accumulation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDescription:
    """What feeds the devices, and how long it takes to dispatch an op; of several, the slowest."""

    name: str
    op_seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What is allocated at the moment of the peak, by purpose."""

    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    inputs: Bytes
    temporaries: Bytes
    workspace: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    role: str
    count: int
    total: Bytes
    capacity: Bytes  # of its own device
    allocated: Bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the heaviest rank, as a part of what its device has: total = reserved + context + communicator."""

    allocated: Bytes
    reserved: Bytes
    context: Bytes
    communicator: Bytes
    total: Bytes
    capacity: Bytes
    fits: bool
    fit_probability: float
    breakdown: Breakdown
    peak_module: str
    ranks: tuple[RankMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Bytes that one rank sends and receives over its links in a step."""

    sent_bytes: Bytes
    received_bytes: Bytes
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes a rank sends over one kind of link in a step, and receives; they sum to the network's."""

    link: str
    sent_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a resource is used in a step; peak is a fraction, or bytes per second for the network."""

    idle_seconds: Seconds
    active_seconds: Seconds
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    device: Use
    memory_bandwidth: Use
    network_rx: Use
    network_tx: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    samples_per_second: float | None
    tokens_per_second: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    dollars_per_hour: Dollars | None
    dollars_per_step: Dollars | None
    price: str | None = None  # whose, and of which date


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Of the devices alone, without hosts and cooling."""

    watts: float
    joules_per_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """A part of the critical path: what a module computes or issues, or a collective."""

    stream: str  # device, host or network; around: beside what ranks run; all: what is not listed
    name: str
    seconds: Seconds


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One step of a workload on a cluster. Times and memory are of the slowest and heaviest rank.

    Attributes:
        step_time: The median in `seconds`, and a 90 % interval from `low` to `high`.
        device_time: Of compute kernels, collectives apart; `host_time` of issuing them.
        exposed_communication: What it adds to the step, as do `bubble`, `stragglers`, `trainer` and `input_wait`.
        memory: Peak bytes, their breakdown, `fits` and `fit_probability`.
        network: Bytes sent and received; `resources`: how busy device, memory and network are.
        throughput: Samples and tokens per second, MFU; `cost` in dollars, `energy` in joules, `job` of a training.
        caveats: What to know before relying on it; `explanation`: what was taken to be so; `critical_path`: what the step waits for.
        timeline: The step in time, for Perfetto or Chakra; `memory_trace`, `graph` and `ranks` likewise.

    Examples:
        >>> sorted(foretell.forecast("torchvision/resnet18", on="h200").to_dict()["step_time"])
        ['high', 'low', 'seconds']
    """

    model: str
    workload: str
    cluster: str
    plan: str
    step: StepDescription | None = None  # what one step is
    profile: str | None = None  # its name, where the forecast used one
    host: HostDescription | None = None  # what feeds the devices
    step_time: Duration
    device_time: Duration
    host_time: Duration
    exposed_communication: Duration
    bubble: Duration
    stragglers: Duration = Duration(seconds=0.0)
    trainer: Duration = Duration(seconds=0.0)
    input_wait: Duration = Duration(seconds=0.0)
    memory: Memory
    network: Network
    resources: Resources
    throughput: Throughput
    cost: Cost
    energy: Energy | None = None
    critical_path: tuple[Critical, ...] = ()
    job: Job | None = None
    caveats: tuple[Caveat, ...]
    explanation: tuple[Note, ...] = ()  # what a script's capture took to be so, one by one
    timeline: Timeline = field(repr=False)
    memory_trace: MemoryTrace = field(repr=False)
    graph: Graph = field(repr=False)
    ranks: tuple[RankStep, ...] = field(default=(), repr=False)  # of each role

    def _repr_html_(self) -> str:
        """For notebooks: the answer as a small table."""
        memory, time = self.memory, self.step_time
        between = f" ({show_seconds(time.low)} – {show_seconds(time.high)})" if time.low and time.high else ""
        rows = [
            ("Step time", f"{show_seconds(time.seconds)}{between}"),
            (
                "Memory",
                f"{show_bytes(memory.total)} of {show_bytes(memory.capacity)}: {'fits' if memory.fits else 'does not fit'}",
            ),
            ("Plan", self.plan),
            *((caveat.code, caveat.text) for caveat in self.caveats),
        ]
        lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table><caption>{escape(self.workload)} on {escape(self.cluster)}</caption>{lines}</table>"

    def to_dict(self) -> dict[str, Any]:
        from foretell import __version__

        answer: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "foretell": __version__}
        for f in dataclasses.fields(self):
            if f.name not in _VIEWS:
                answer[f.name] = plain_values(getattr(self, f.name))
        return answer

    def to_json(self) -> str:
        return json_text(self.to_dict())

    def to_memory_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write what the allocator does as a snapshot that pytorch.org/memory_viz opens, each role as a device."""
        write_snapshot(self.ranks, Path(path))


_FIELDS: dict[type, list[str]] = {}  # names of the fields of dataclasses that were spelt before
_VIEWS = ("timeline", "memory_trace", "graph", "ranks")  # large, and given as objects


def plain_values(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down, as JSON has them."""
    if isinstance(value, tuple):
        return [plain_values(item) for item in value]
    if (names := _FIELDS.get(type(value))) is None:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        names = _FIELDS[type(value)] = [f.name for f in dataclasses.fields(value)]
    return {name: plain_values(getattr(value, name)) for name in names}
