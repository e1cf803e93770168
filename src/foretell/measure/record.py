"""What a measurement is: rows of five tables, each a frozen dataclass whose fields are the table's columns.

A `Record` is everything one run produced. It is the only thing that travels from the instrument to the store, as
Python objects or as one line of JSON, and it needs neither torch nor pyarrow. SI units throughout; a number that
was not measured is None, never zero.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from foretell.errors import InputError
from foretell.graph.types import PHASES
from foretell.measure.columns import check_rows
from foretell.sources.former_names import stored_source
from foretell.sources.settings import texts_of
from foretell.units import Bytes, Seconds

VERSION: Final = 1
_MOST_LISTS: Final = 1 << 22  # of one record
_MOST_VALUES: Final = 1 << 24
FINAL: Final = ("ok", "out-of-memory", "nan-loss", "time-limit")  # outcomes that measuring again would not change
OUTCOMES: Final = (*FINAL, "error")
MEASURED: Final = ("step", "operators")  # kinds of a point; operators: a tiny model measured for its ops alone
# watched: steps of a job that ran for its own sake; collective: one kind of communication among ranks
KINDS: Final = (*MEASURED, "watched", "collective")
RESOURCES: Final = ("device", "memory_bandwidth", "network_rx", "network_tx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What to measure: a SOURCE with its settings, and the plan of several ranks.

    Args:
        source: As in `forecast`.
        settings: Its parameters, as text.
        kind: `step`, or `operators` for calls measured by themselves.
        plan: Of several ranks, like `dp=2`.

    Examples:
        >>> foretell.Point(source="timm/resnet18", settings={"batch": "8"}).kind
        'step'
    """

    source: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)  # kept as texts
    kind: str = "step"
    plan: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", texts_of(self.settings))

    @property
    def settings_text(self) -> str:
        return json.dumps(dict(sorted(self.settings.items())), separators=(",", ":"))

    @property
    def key(self) -> str:
        """The same for the same question, whoever asks it."""
        text = "\n".join((stored_source(self.source), self.settings_text, self.kind, self.plan))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def but_batch(self) -> Point:
        """What is the same for all batches of it."""
        return replace(self, settings={name: value for name, value in self.settings.items() if name != "batch"})

    @property
    def columns(self) -> dict[str, str]:
        """Of a `StepRow`."""
        columns = {"source": self.source, "settings": self.settings_text, "kind": self.kind, "plan": self.plan}
        return {"point": self.key, **columns}

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return " ".join(part for part in (self.source, settings, self.plan) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One measured step of one rank, or one that failed and how."""

    # What was asked
    point: str  # Point.key
    kind: str = field(metadata={"one_of": KINDS})
    source: str
    settings: str = field(metadata={"json": True})  # names sorted
    plan: str = ""
    world_size: int = 1
    rank: int = 0
    backend: str = ""  # of the collectives: nccl, gloo

    # What became of it
    outcome: str = field(default="ok", metadata={"one_of": OUTCOMES})
    error: str = ""
    marks: tuple[str, ...] = ()  # why to mistrust it: throttled, contended, unsteady

    # The workload
    workload: str = ""
    precision: str = ""
    training: bool = True
    grad_accumulation: int = 1
    samples: int | None = None
    tokens: int | None = None
    graph: str | None = None  # content hash, in the table of graphs

    # Time, without a profiler: medians over repetitions, back to back
    repetitions: int = 0
    step_seconds: Seconds | None = None
    step_low: Seconds | None = None  # 10th percentile
    step_high: Seconds | None = None  # 90th percentile
    forward_seconds: Seconds | None = None
    backward_seconds: Seconds | None = None
    optimizer_seconds: Seconds | None = None
    issue_seconds: Seconds | None = None  # host, from the start of a step until all of it is issued
    # Time, from kernel traces
    device_seconds: Seconds | None = None  # union of compute kernels
    host_seconds: Seconds | None = None  # issuing, without waiting for a full queue
    communication_seconds: Seconds | None = None  # union of collectives
    bound: str = ""  # device, host
    kernels: int | None = None
    kernel_seconds: Seconds | None = None  # sum over kernels
    unattributed_seconds: Seconds | None = None  # of kernels that no op of the graph launched

    # Memory
    peak_allocated: Bytes | None = None
    peak_reserved: Bytes | None = None
    resting_allocated: Bytes | None = None  # between steps
    used_outside: Bytes | None = None  # of the device, outside the allocator
    process_peak: Bytes | None = None  # of the process in the host's memory, where a CPU is the device

    # A job that was watched: the steps before these, and what was forecast for them
    steps_before: int | None = None
    cluster: str = ""
    model: str = ""
    profile: str = ""
    predicted_seconds: Seconds | None = None
    predicted_low: Seconds | None = None
    predicted_high: Seconds | None = None
    predicted_allocated: Bytes | None = None
    predicted_reserved: Bytes | None = None

    # Resources over one step, as Driple counts them
    device_idle_seconds: Seconds | None = None
    device_active_seconds: Seconds | None = None
    device_peak: float | None = None
    memory_bandwidth_idle_seconds: Seconds | None = None
    memory_bandwidth_active_seconds: Seconds | None = None
    memory_bandwidth_peak: float | None = None
    network_rx_idle_seconds: Seconds | None = None
    network_rx_active_seconds: Seconds | None = None
    network_rx_peak: float | None = None
    network_tx_idle_seconds: Seconds | None = None
    network_tx_active_seconds: Seconds | None = None
    network_tx_peak: float | None = None
    sent_bytes: Bytes | None = None
    received_bytes: Bytes | None = None
    power_watts: float | None = None  # mean while steps ran back to back
    energy_joules: float | None = None  # of a step

    # Provenance
    device: str = ""  # name in the catalog, "" if it is not there
    device_name: str = ""  # as the driver says it
    driver: str = ""
    cuda: str = ""
    cudnn: str = ""
    torch: str = ""
    python: str = ""
    libraries: str = field(default="", metadata={"json": True})  # name → version
    host_cpu: str = ""
    host_cores: int | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_celsius: float | None = field(default=None, metadata={"signed": True})
    date: str = ""  # ISO 8601, UTC
    occasion: str = ""  # one uninterrupted stay on one machine
    foretell: str = ""
    commit: str = ""

    @property
    def id(self) -> str:
        """Content hash of the row: the same measurement is the same row, wherever it is stored.

        Defaults are left out, so that a column added later does not change the id of rows written before it.
        """
        stated = {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}
        return hashlib.sha256(_json(stated).encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One op of a step's graph and what it took."""

    op: int  # position in the graph
    target: str
    phase: str = field(metadata={"one_of": PHASES})
    device_seconds: Seconds | None  # its kernels; on a CPU, the call itself
    dispatch_seconds: Seconds | None  # host, inside the dispatched call, while it was recorded
    issue_seconds: Seconds | None  # host, from the launch before to this op's last launch; None without a kernel
    kernels: tuple[str, ...] = ()
    kernel_seconds: tuple[Seconds, ...] = field(default=(), metadata={"as_long_as": "kernels"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    hash: str
    name: str
    file: bytes  # a Foretell graph file


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """One resource over time."""

    resource: str  # device, memory_bandwidth, network_rx, network_tx, power
    counter: str  # where the numbers are from
    unit: str  # fraction, bytes/s, W
    seconds: tuple[Seconds, ...]  # since the start of the window
    values: tuple[float, ...] = field(metadata={"as_long_as": "seconds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """What the caching allocator did in one step, in order."""

    action: tuple[str, ...]  # alloc, free_requested, free_completed, segment_alloc, segment_free, …
    address: tuple[int, ...] = field(metadata={"as_long_as": "action"})
    bytes: tuple[int, ...] = field(metadata={"as_long_as": "action"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything one run of one point produced."""

    step: StepRow
    ops: tuple[OpRow, ...] = ()
    graph: GraphRow | None = None
    series: tuple[SeriesRow, ...] = ()
    allocations: AllocationRow | None = None

    def to_line(self) -> str:
        """One line of JSON."""
        return _json({"version": VERSION} | _encoded(self))

    @classmethod
    def from_line(cls, line: str) -> Record:
        try:
            _check_size(line)
            data = json.loads(line)
            if data["version"] > VERSION:
                raise InputError(
                    f"the record has format {data['version']}, this Foretell reads up to {VERSION}. "
                    "Upgrade with: pip install -U foretell"
                )
            record = _decoded(cls, data)
            record.check()
            return record
        except InputError:
            raise
        except Exception as error:  # whatever a stranger's line breaks, the line is to blame
            raise InputError(f"not a measurement record ({type(error).__name__}: {error}).") from error

    def check(self) -> None:
        """Refuse values that the tables cannot hold: all that reads records may rely on what they say."""
        parts: tuple[tuple[type, Sequence[Any]], ...] = (
            (StepRow, [self.step]),
            (OpRow, self.ops),
            (GraphRow, [] if self.graph is None else [self.graph]),
            (SeriesRow, self.series),
            (AllocationRow, [] if self.allocations is None else [self.allocations]),
        )
        for kind, rows in parts:
            if any(type(row) is not kind for row in rows):
                raise InputError(f"a record holds {kind.__name__} objects, got {rows!r:.80}.")
            if rows:
                names = [column.name for column in dataclasses.fields(kind)]
                check_rows(kind, dict(zip(names, zip(*map(attrgetter(*names), rows), strict=True), strict=True)))
        if self.graph is not None and self.graph.hash != self.step.graph:
            raise InputError(
                f"the step has the graph {self.step.graph!r:.80}, the record brings {self.graph.hash:.80}."
            )

    def check_graph(self) -> None:
        """Refuse a graph that is not what its hash says, and ops beyond its end."""
        if self.graph is None:
            return
        ops = _ops_in(self.graph)
        if any(row.op >= ops for row in self.ops):
            raise InputError(f"the record has ops beyond the {ops:,} of its graph.")


@lru_cache(maxsize=256)  # a campaign has many records of one graph
def _ops_in(row: GraphRow) -> int:
    from foretell.graph import Graph

    graph = Graph.from_bytes(row.file, name=f"the graph {row.hash[:12]}")
    if graph.content_hash != row.hash:
        raise InputError(f"the graph {row.hash[:12]} is not what its hash says: its content is {graph.content_hash}.")
    return len(graph.ops)


T = TypeVar("T")


def _check_size(line: str) -> None:
    """A short line must not become a heap of empty lists."""
    if line.count("[") + line.count("{") > _MOST_LISTS or line.count(",") > _MOST_VALUES:
        raise InputError(f"the record has more than {_MOST_LISTS:,} lists or {_MOST_VALUES:,} values.")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _encoded(row: Any) -> dict[str, Any]:
    """A row as JSON can hold it. Ops go by column: thousands of rows repeat the same names."""
    out: dict[str, Any] = {}
    for column in dataclasses.fields(row):
        value = getattr(row, column.name)
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif column.name == "ops":
            value = _ops_encoded(value)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            value = [_encoded(item) for item in value]
        elif dataclasses.is_dataclass(value):
            value = _encoded(value)
        out[column.name] = value
    return out


def _ops_encoded(ops: tuple[OpRow, ...]) -> dict[str, list[Any]]:
    """By column; a kernel's long name is written once."""
    columns = {c.name: [getattr(op, c.name) for op in ops] for c in dataclasses.fields(OpRow)}
    names = {name: i for i, name in enumerate(dict.fromkeys(k for op in ops for k in op.kernels))}
    columns["kernels"] = [[names[k] for k in op.kernels] for op in ops]
    return columns | {"kernel_names": list(names)}


def _ops_decoded(columns: Mapping[str, list[Any]]) -> tuple[OpRow, ...]:
    names = columns["kernel_names"]
    columns = {c.name: columns[c.name] for c in dataclasses.fields(OpRow)}
    columns["kernels"] = [tuple(names[i] for i in kernels) for kernels in columns["kernels"]]
    columns["kernel_seconds"] = [tuple(seconds) for seconds in columns["kernel_seconds"]]
    return tuple(OpRow(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _decoded(kind: type[T], data: Mapping[str, Any]) -> T:
    values = {}
    for name, hint in get_type_hints(kind).items():
        if name not in data:
            continue  # written before the column was there: its default holds
        values[name] = _value(hint, data[name])
    return kind(**values)


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) is tuple:
        [item, *_] = get_args(hint)
        if item is OpRow:
            return _ops_decoded(value)
        if not isinstance(value, list):
            return value  # which the check refuses
        return tuple(_value(item, v) for v in value)
    inner = next((a for a in get_args(hint) if dataclasses.is_dataclass(a)), hint)
    if isinstance(inner, type) and dataclasses.is_dataclass(inner):
        return _decoded(inner, value)
    return base64.b64decode(value, validate=True) if inner is bytes else value
