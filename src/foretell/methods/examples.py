"""Examples of a user's own: what a store, a record file or a table of step times holds, for any method to learn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from foretell.design.blind import is_blind
from foretell.errors import ForetellError, InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.hardware.catalog import recognise
from foretell.learn.dataset import is_recorded_alone
from foretell.measure.record import RESOURCES, Record, StepRow
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, MEMORY, STEP_TIME, Example, Query
from foretell.plans import Plan
from foretell.sources.settings import texts_of

Say = Callable[[str], None]
_COLUMNS: Final = {  # target → column of a step
    STEP_TIME: "step_seconds", DEVICE_TIME: "device_seconds", HOST_TIME: "host_seconds", MEMORY: "peak_allocated",
    **{f"{r}_{what}": f"{r}_{what}" for r in RESOURCES for what in ("idle_seconds", "active_seconds", "peak")},
}  # fmt: skip
_SAME_STEP: Final = 1.5  # kernels that take this many steps were not recorded of the steps that were timed
_PROCESSOR: Final = "cpu"  # in the catalog: where steps without an accelerator are counted
_UNTIMED: Final = 11  # steps that the instrument runs beside its repetitions: warm-up, issuing, traces


def examples_of(path: Path | str, say: Say = lambda text: None) -> list[Example]:
    """Of a folder that is a store, a record file (`.jsonl`), or a table of step times (`.csv`) as `foretell adapt` reads them."""
    path = Path(path)
    made = list(_of_table(path, say) if path.suffix == ".csv" else _of_records(path, say))
    if not made:
        raise InputError(
            f"{path} holds no measured step with a graph on a device of the catalog. Measure some with: foretell measure SOURCE"
        )
    return made


def query_of(
    graph: Graph,
    on: Cluster | str,
    plan: Plan | str | None = None,
    *,
    architecture: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Query:
    """A captured step on a cluster, as a question to any method; without a plan, data-parallel over all devices."""
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    chosen = Plan.parse(plan) if isinstance(plan, str) else plan or Plan(dp=cluster.devices)
    chosen.check_devices(cluster.devices)
    micro_steps = chosen.grad_accumulation or graph.grad_accumulation
    return Query(
        architecture=architecture or graph.name, plan=chosen, cluster=cluster, graph=graph, dataset=dataset_of(graph),
        batch=float((graph.samples or 1) * micro_steps * chosen.dp), settings=texts_of(settings),
    )  # fmt: skip


def dataset_of(graph: Graph) -> str:
    """The type of data a step reads, by the shape of its inputs."""
    shapes = {t.layout for t in graph.tensors if graph.storages[t.storage].role == "input"}
    if any(len(x.shape) == 4 and x.shape[1] in (1, 3) and x.dtype.startswith(("float", "bfloat")) for x in shapes):
        return "images"
    return "tokens" if any(len(x.shape) == 2 and x.dtype == "int64" for x in shapes) else "other"


def _of_records(path: Path, say: Say) -> Iterator[Example]:
    """Steps of one device, and watched jobs, which know their cluster; networks that judge models are left out."""
    from foretell.store.place import found
    from foretell.store.store import Store

    kept, unknown = found(path), set[str]()
    records = kept.records("kind IN ('step', 'watched')") if isinstance(kept, Store) else kept.records(graphs=True)
    for number, record in enumerate(records, 1):
        if number % 50 == 0:
            say(f"reading record {number} of {path}")
        step = record.step
        usable = step.outcome == "ok" and step.rank == 0 and record.graph is not None and step.step_seconds
        if not usable or is_blind(step.source):
            continue
        if on := _place(step):
            yield _example(record, on)
        elif (name := step.device_name or "a device without a name") not in unknown:
            unknown.add(name)
            say(f"left out: steps on {name}, which the catalog does not have")


def _place(step: StepRow) -> str:
    """The cluster of a watched job, or the device, as the catalog has it by now; ranks that were measured share a node."""
    if step.cluster:
        return step.cluster
    known = recognise(step.device_name) if step.device_name and not step.device else None
    on_processor = not step.cuda and step.device_name and step.device_name == step.host_cpu
    device = step.device or (known.name if known else _PROCESSOR if on_processor else "")
    return f"{step.world_size}x{device}" if device and step.world_size > 1 else device


def _example(record: Record, on: str) -> Example:
    step, row = record.step, record.graph
    assert row is not None
    graph = Graph.from_bytes(row.file, name=row.name)
    settings = {name: str(value) for name, value in json.loads(step.settings or "{}").items()}
    query = query_of(graph, on, step.plan or None, architecture=step.source, settings=settings)
    known = {target: float(value) for target, column in _COLUMNS.items() if (value := getattr(step, column))}
    taken = tuple(op.device_seconds or 0.0 for op in record.ops)
    cost = (step.repetitions + _UNTIMED) * (step.step_seconds or 0.0)
    if not _is_traced(step):
        known.pop(DEVICE_TIME, None)
        taken = ()
    timed = len(taken) == len(graph.ops) and any(taken) and step.world_size == 1
    return Example(query=query, measured=known, cost=cost, ops=taken if timed else ())


def _is_traced(step: StepRow) -> bool:
    """Whether kernels were recorded of the steps that were timed, back to back."""
    return not is_recorded_alone(step) and (step.device_seconds or 0.0) < _SAME_STEP * (step.step_seconds or 0.0)


def _of_table(path: Path, say: Say) -> Iterator[Example]:
    """Every row is captured, once for each SOURCE and its settings."""
    from foretell.capture import capture
    from foretell.learn.adapt.table import read_steps

    graphs: dict[object, Graph] = {}
    for step in read_steps(path):
        assert isinstance(step.workload, str)
        key = (step.workload, *sorted(step.settings.items()))
        if key not in graphs:
            say(f"capturing {step.workload}")
            try:
                graphs[key] = capture(step.workload, step.settings)
            except ForetellError as error:
                raise InputError(f"{path}: {step.workload} cannot be captured. {error}") from error
        query = query_of(graphs[key], step.on, step.plan, architecture=step.workload, settings=step.settings)
        known = {STEP_TIME: step.seconds} | ({MEMORY: float(step.allocated)} if step.allocated else {})
        yield Example(query=query, measured=known, cost=(_UNTIMED + 1) * step.seconds)
