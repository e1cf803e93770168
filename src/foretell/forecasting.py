"""The composition: a workload goes in, what its step will cost comes out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from foretell.answer import (
    Cost,
    Forecast,
    Network,
    Resources,
    Throughput,
    Use,
)
from foretell.cost.flops import total_flops
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.errors import InputError, RequirementNotMet
from foretell.graph import Caveat, Graph
from foretell.hardware import Cluster
from foretell.intervals import between, how_held, intervals, why_none
from foretell.parallel import parallelize
from foretell.program import Program
from foretell.running import Placed, Run, run
from foretell.units import Seconds
from foretell.workload import Plan, Workload

__all__ = ["DEFAULT_MODEL", "BatchFit", "fit_batch", "forecast", "load_model"]

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
    device = cluster.nodes[0].device
    with _no_search_for_garbage():
        program = parallelize(graph, plan, lambda g: [p.seconds for p in prices_by.price(g, device).prices])
        return _answer(program, cluster, plan, run(program, cluster, prices_by), prices_by)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """A plan makes a hundred thousand small objects that live to its end: to search them over and over is a fifth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _graph(workload: Workload | Graph | str, settings: Mapping[str, str] | None) -> Graph:
    if isinstance(workload, Graph):
        return workload
    from foretell.capture import capture  # loads torch

    return capture(workload, settings)


def _answer(program: Program, cluster: Cluster, plan: Plan, ran: Run, model: CostModel) -> Forecast:
    slowest, whole, step = ran.slowest, program.whole, ran.timeline.period
    known = intervals(program, ran, model)
    busy, price = slowest.device_seconds, cluster.dollars_per_hour
    peak = slowest.node.device.peak(_PEAK_OF_PRECISION.get(whole.precision, whole.precision))
    micro_steps = program.micro_steps * plan.dp
    return Forecast(
        model=model.name, workload=whole.name, cluster=str(cluster), plan=str(plan),
        step_time=between(step, known.step), device_time=between(busy, known.device),
        host_time=between(slowest.host_seconds, known.host),
        exposed_communication=between(ran.exposed, known.others), bubble=between(ran.bubble, known.others),
        memory=ran.memory, network=Network(sent_bytes=ran.sent, received_bytes=ran.sent), resources=_resources(ran, step),
        throughput=Throughput(
            samples_per_second=whole.samples * micro_steps / step if whole.samples else None,
            tokens_per_second=whole.tokens * micro_steps / step if whole.tokens else None,
            mfu=total_flops(whole) / whole.grad_accumulation * micro_steps / plan.devices / step / peak,
        ),
        cost=Cost(dollars_per_hour=price, dollars_per_step=None if price is None else price * step / 3600),
        caveats=(*whole.caveats, *_caveats(program, slowest, busy, model)),
        timeline=ran.timeline, memory_trace=ran.heaviest.trace, graph=ran.heaviest.role.graph,
    )  # fmt: skip


def _resources(ran: Run, step: Seconds) -> Resources:
    placed, busy = ran.slowest, ran.slowest.device_seconds
    moving, fullest = 0.0, 0.0
    for op, price in zip(placed.role.graph.ops, placed.priced.prices, strict=True):
        if price.seconds > 0 and price.work.traffic:
            moving += price.seconds * op.times
            fullest = max(fullest, price.work.traffic / price.seconds / placed.node.device.bandwidth)
    network = Use(idle_seconds=max(step - ran.talking, 0.0), active_seconds=ran.talking, peak=ran.fastest_link)
    return Resources(
        device=Use(idle_seconds=max(step - busy, 0.0), active_seconds=busy, peak=1.0 if busy else 0.0),
        memory_bandwidth=Use(idle_seconds=max(step - moving, 0.0), active_seconds=moving, peak=min(fullest, 1.0)),
        network_rx=network,
        network_tx=network,
    )


def _caveats(program: Program, outcome: Placed, busy: Seconds, model: CostModel) -> list[Caveat]:
    caveats = []
    device = outcome.node.device.name
    if model.name == ROOFLINE:
        text = "Device time is the roofline of published peaks; real kernels are slower, often by half or more."
        caveats.append(Caveat("roofline-costs", text))
    elif (measured_on := model.device) != device:
        text = f"Operators were measured on {measured_on}; for {device} they are carried over by its published numbers."
        caveats.append(Caveat("device-not-measured", text))
    if why := why_none(program, outcome, model):
        caveats.append(Caveat("not-calibrated", f"No interval is given: {why}."))
    elif held := how_held(outcome, model):
        caveats.append(Caveat("calibrated-elsewhere", held))
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
