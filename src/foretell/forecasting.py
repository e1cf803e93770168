"""The composition: a workload goes in, what its step will cost comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretell.answer import (
    Breakdown,
    Cost,
    Duration,
    Forecast,
    Memory,
    Network,
    RankMemory,
    Resources,
    Throughput,
    Use,
)
from foretell.cost.collectives import collective_seconds, sent_bytes
from foretell.cost.flops import total_flops
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import ROOFLINE, CostModel, Priced, load_model
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.errors import InputError, RequirementNotMet
from foretell.graph import Caveat, Graph
from foretell.hardware import Cluster, Device, Node
from foretell.parallel import parallelize
from foretell.program import Program, Role
from foretell.simulate.allocator import OutOfMemory
from foretell.simulate.memory import MemoryTrace, replay
from foretell.simulate.schedule import Durations, simulate
from foretell.simulate.timeline import Timeline
from foretell.units import MIB, Bytes, Seconds
from foretell.workload import Plan, Workload

__all__ = ["DEFAULT_MODEL", "BatchFit", "fit_batch", "forecast", "load_model"]

_MEMORY_ERROR = 0.03  # one standard deviation of predicted over measured totals, see docs/memory.md
_NCCL_BUFFERS: Bytes = 200 * MIB  # an estimate of what NCCL takes for its channels
_PEAK_OF_PRECISION = {"amp-bf16": "bf16", "amp-fp16": "fp16"}


def forecast(
    workload: Workload | Graph | str,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
) -> Forecast:
    """Forecast one steady-state step of a workload (or captured graph, or SOURCE) on a cluster.

    `model` names what prices operators: one that is shipped, the folder of one you fitted, or `roofline`.
    """
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    if isinstance(plan, str):
        plan = Plan.parse(plan)
    plan = plan or Plan(dp=cluster.devices)
    plan.check_devices(cluster.devices)
    prices_by = load_model(model) if isinstance(model, str) else model
    graph = _graph(workload, settings)
    program = parallelize(graph, plan)
    role = program.roles[0]
    outcomes = [_on_node(role, node, cluster, prices_by) for node in dict.fromkeys(cluster.nodes)]
    slowest = max(outcomes, key=lambda o: o.timeline.period)
    heaviest = max(outcomes, key=lambda o: o.memory.total / o.memory.capacity)
    return _answer(program, cluster, plan, role, slowest, heaviest, prices_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The step on one kind of node."""

    node: Node
    priced: Priced
    durations: Durations
    timeline: Timeline
    memory: Memory
    trace: MemoryTrace


def _graph(workload: Workload | Graph | str, settings: Mapping[str, str] | None) -> Graph:
    if isinstance(workload, Graph):
        return workload
    from foretell.capture import capture  # loads torch

    return capture(workload, settings)


def _on_node(role: Role, node: Node, cluster: Cluster, model: CostModel) -> _Outcome:
    priced = model.price(role.graph, node.device)
    prices = priced.prices
    durations = Durations(
        device=[p.seconds for p in prices],
        host=model.host.seconds(role.graph, prices, node.host),
        waits=[p.work.waits for p in prices],
        collectives=[collective_seconds(c, cluster) for c in role.collectives],
    )
    trace, fits = _replay(role, node.device)
    timeline = simulate(role, durations)
    memory = _memory(role, node.device, trace, fits)
    return _Outcome(node=node, priced=priced, durations=durations, timeline=timeline, memory=memory, trace=trace)


def _replay(role: Role, device: Device) -> tuple[MemoryTrace, bool]:
    """The step's memory on a device; when it does not fit, as it would be on one without limit."""
    temporaries = temporary_bytes(role.graph, device)
    kept = kept_workspaces(role.graph, device)
    capacity = device.usable_bytes - device.context_bytes - _communicator(role)
    try:
        return replay(
            role.graph, temporaries=temporaries, kept_workspace=kept, persistent=role.persistent, capacity=capacity
        ), True
    except OutOfMemory:
        return replay(role.graph, temporaries=temporaries, kept_workspace=kept, persistent=role.persistent), False


def _communicator(role: Role) -> Bytes:
    return _NCCL_BUFFERS if role.count > 1 else 0


def _memory(role: Role, device: Device, trace: MemoryTrace, fits: bool) -> Memory:
    communicator = _communicator(role)
    total = trace.peak_reserved + device.context_bytes + communicator
    least = trace.peak_allocated + device.context_bytes + communicator  # the cache gives way when memory is short
    at = trace.at_peak
    return Memory(
        allocated=trace.peak_allocated, reserved=trace.peak_reserved, context=device.context_bytes, communicator=communicator,
        total=total, capacity=device.usable_bytes, fits=fits, fit_probability=_fit_probability(least, device.usable_bytes),
        breakdown=Breakdown(
            parameters=at.get("parameter", 0), gradients=at.get("gradient", 0), optimizer=at.get("optimizer", 0),
            activations=at.get("activation", 0), inputs=at.get("input", 0), temporaries=at.get("temporary", 0),
            workspace=at.get("workspace", 0),
        ),
        peak_module=role.graph.ops[trace.peak_op].module if trace.peak_op >= 0 else "",
        ranks=(RankMemory(role=role.name, count=role.count, total=total),),
    )  # fmt: skip


def _fit_probability(needed: Bytes, capacity: Bytes) -> float:
    distance = math.log(capacity / needed) / _MEMORY_ERROR
    return round(0.5 * math.erfc(-distance / math.sqrt(2)), 4)


def _answer(
    program: Program, cluster: Cluster, plan: Plan, role: Role, slowest: _Outcome, heaviest: _Outcome, model: CostModel
) -> Forecast:  # fmt: skip
    graph, whole = role.graph, program.whole
    timeline, step = slowest.timeline, slowest.timeline.period
    busy = sum(s * op.times for s, op in zip(slowest.durations.device, graph.ops, strict=True))
    issuing = sum(s * op.times for s, op in zip(slowest.durations.host, graph.ops, strict=True))
    sent = sum(sent_bytes(c) * role.runs(c) for c in role.collectives)
    price = cluster.dollars_per_hour
    micro_steps = graph.grad_accumulation * plan.dp
    return Forecast(
        model=model.name, workload=graph.name, cluster=str(cluster), plan=str(plan),
        step_time=Duration(seconds=step), device_time=Duration(seconds=busy), host_time=Duration(seconds=issuing),
        exposed_communication=Duration(seconds=max(timeline.exposed("network", behind="device"), 0.0)), bubble=Duration(seconds=0.0),
        memory=heaviest.memory, network=Network(sent_bytes=sent, received_bytes=sent),
        resources=_resources(graph, role, slowest, step, busy),
        throughput=Throughput(
            samples_per_second=graph.samples * micro_steps / step if graph.samples else None,
            tokens_per_second=graph.tokens * micro_steps / step if graph.tokens else None,
            mfu=total_flops(whole) * plan.dp / plan.devices / step
            / slowest.node.device.peak(_PEAK_OF_PRECISION.get(graph.precision, graph.precision)),
        ),
        cost=Cost(dollars_per_hour=price, dollars_per_step=None if price is None else price * step / 3600),
        caveats=(*graph.caveats, *_caveats(slowest, busy, model)),
        timeline=timeline, memory_trace=heaviest.trace, graph=graph,
    )  # fmt: skip


def _resources(graph: Graph, role: Role, outcome: _Outcome, step: Seconds, busy: Seconds) -> Resources:
    device = outcome.node.device
    moving, fullest = 0.0, 0.0
    for op, price in zip(graph.ops, outcome.priced.prices, strict=True):
        if price.seconds > 0 and price.work.traffic:
            moving += price.seconds * op.times
            fullest = max(fullest, price.work.traffic / price.seconds / device.bandwidth)
    talking = outcome.timeline.busy("network")
    fastest = max(
        (sent_bytes(c) / s for c, s in zip(role.collectives, outcome.durations.collectives, strict=True) if s > 0),
        default=0.0,
    )
    network = Use(idle_seconds=step - talking, active_seconds=talking, peak=fastest)
    return Resources(
        device=Use(idle_seconds=max(step - busy, 0.0), active_seconds=busy, peak=1.0 if busy else 0.0),
        memory_bandwidth=Use(idle_seconds=max(step - moving, 0.0), active_seconds=moving, peak=min(fullest, 1.0)),
        network_rx=network,
        network_tx=network,
    )


def _caveats(outcome: _Outcome, busy: Seconds, model: CostModel) -> list[Caveat]:
    caveats = []
    device = outcome.node.device.name
    if model.name == ROOFLINE:
        text = "Device time is the roofline of published peaks; real kernels are slower, often by half or more."
        caveats.append(Caveat("roofline-costs", text))
    elif (measured_on := model.device) != device:
        text = f"Operators were measured on {measured_on}; for {device} they are carried over by its published numbers."
        caveats.append(Caveat("device-not-measured", text))
    caveats.append(
        Caveat("not-calibrated", "No interval is given: the model has not been calibrated against measurements yet.")
    )
    for name, seconds in sorted(outcome.priced.unknown.items()):
        caveats.append(Caveat("op-without-model", f"{name} priced by bytes", seconds / busy if busy else 0.0))
    return caveats


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFit:
    """The largest batch that fits, with its forecast."""

    batch: int
    forecast: Forecast


def fit_batch(
    source: str,
    settings: Mapping[str, str],
    on: str | Cluster,
    plan: Plan | str | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    cache: bool = True,
    model: str | CostModel = DEFAULT_MODEL,
) -> BatchFit:
    """Find the largest `batch` whose step fits on every device of the cluster."""
    from foretell.capture import capture  # loads torch
    from foretell.capture.rescale import extend, same_path

    if source.endswith(".graph"):
        raise InputError(f"{source} is a captured graph, whose batch is fixed. Give the source it was captured from.")
    tell = progress or (lambda text: None)
    sizes = (8, 16)

    def captured(batch: int) -> Graph:
        tell(f"capturing {source} at batch {batch}")
        return capture(source, {**settings, "batch": str(batch)}, cache=cache)

    first, second = (captured(size) for size in sizes)
    continues = same_path(first, second)

    def fits(graph: Graph) -> bool:
        return forecast(graph, on, plan, model=ROOFLINE).memory.fits  # memory does not hang on it, and it is quick

    def fits_at(batch: int) -> bool:
        tell(f"trying batch {batch}")
        return fits(extend(first, second, sizes=sizes, to=batch) if continues else captured(batch))

    low, high = 0, 1
    while fits_at(high) and high < 2**24:
        low, high = high, high * 2
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        low, high = (middle, high) if fits_at(middle) else (low, middle)
    while low:  # the search worked on continued graphs; the answer is captured for real
        answer = forecast(captured(low), on, plan, model=model)
        if answer.memory.fits:
            return BatchFit(batch=low, forecast=answer)
        low = min(low - 1, int(low * 0.99))
    raise RequirementNotMet(
        f"{source} does not fit on {on} even with batch 1. Choose a device with more memory, a lower precision, or fewer parameters."
    )
