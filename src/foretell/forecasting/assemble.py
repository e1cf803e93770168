"""The composition: a workload goes in, what its step will cost comes out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from foretell.cost.flops import total_flops
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.errors import InputError, PlanError, RequirementNotMet
from foretell.forecasting.calibration import Range
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.critical import critical_parts
from foretell.forecasting.energy import cluster_watts
from foretell.forecasting.intervals import between, how_held, intervals, why_none
from foretell.forecasting.job import Length
from foretell.forecasting.job import job as whole_job
from foretell.forecasting.result import Cost, Energy, Forecast, LinkUse, Network, Resources, Throughput, Use
from foretell.forecasting.run import Placed, Run, run
from foretell.graph import Caveat, Graph
from foretell.hardware import Cluster
from foretell.parallel import parallelize
from foretell.plan import Plan
from foretell.profile import Profile
from foretell.program import Program
from foretell.units import Seconds
from foretell.workload import Workload

__all__ = ["DEFAULT_MODEL", "BatchFit", "fit_batch", "forecast", "load_model"]

_PEAK_OF_PRECISION = {"amp-bf16": "bf16", "amp-fp16": "fp16"}


def forecast(
    workload: Workload | Graph | str,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: Length | None = None,
) -> Forecast:
    """Forecast one steady-state step of a workload (or captured graph, or SOURCE) on a cluster.

    `model` names what prices operators: one that is shipped, the folder of one you fitted, or `roofline`. `profile` makes
    the forecast fit one machine, cluster or trainer. `conditions` are the data loader, the jitter of ranks and the
    routing of experts; `job` asks what a whole training takes.
    """
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    if isinstance(plan, str):
        plan = Plan.parse(plan)
    plan = plan or Plan(dp=cluster.devices)
    plan.check_devices(cluster.devices)
    _check_one_process(plan, cluster)
    prices_by = load_model(model) if isinstance(model, str) else model
    fitted = profile if profile is None or isinstance(profile, Profile) else Profile.load(profile)
    conditions = conditions or Conditions()
    graph = _graph(workload, settings)
    device = cluster.nodes[0].device
    with _no_search_for_garbage():
        program = parallelize(graph, plan, lambda g: [p.seconds for p in prices_by.price(g, device).prices])
        ran = run(program, cluster, prices_by, conditions, fitted)
        return _answer(program, cluster, plan, ran, prices_by, conditions, job, fitted)


def _check_one_process(plan: Plan, cluster: Cluster) -> None:
    if plan.data_parallel == "dp" and len(cluster.nodes) > 1:
        raise PlanError(
            f"data_parallel=dp drives all devices from one process, but {cluster} has {len(cluster.nodes)} nodes and a "
            f"process lies on one. Use data_parallel=ddp, or at most {cluster.nodes[0].count} devices of one node."
        )


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
    from foretell.capture import capture

    return capture(workload, settings)


def _answer(
    program: Program, cluster: Cluster, plan: Plan, ran: Run, model: CostModel, conditions: Conditions, length: Length | None,
    profile: Profile | None,
) -> Forecast:  # fmt: skip
    slowest, whole = ran.slowest, program.whole
    fixed = profile.fixed_seconds if profile else 0.0
    paced = ran.timeline.period + ran.stragglers + fixed
    loading = _loading(program, conditions)
    step = max(paced, loading)
    known = intervals(program, ran, model, fixed)
    busy, price = slowest.device_seconds, cluster.dollars_per_hour
    peak = slowest.node.device.peak(_PEAK_OF_PRECISION.get(whole.precision, whole.precision))
    micro_steps = program.micro_steps * plan.dp
    samples, tokens = (n * micro_steps if n else None for n in (whole.samples, whole.tokens))
    watts = cluster_watts(cluster, busy / step if step else 0.0)
    return Forecast(
        model=model.name, workload=whole.name, cluster=str(cluster), plan=str(plan),
        profile=profile.name if profile else None,
        step_time=between(step, known.step and (max(known.step[0], loading), max(known.step[1], loading))),
        device_time=between(busy, known.device), host_time=between(slowest.host_seconds, known.host),
        exposed_communication=between(ran.exposed, known.others), bubble=between(ran.bubble, known.others),
        stragglers=between(ran.stragglers, known.others),
        input_wait=between(step - paced, known.step and _late_input(loading, known.step)),
        memory=ran.memory, network=_network(ran), resources=_resources(ran, step),
        throughput=Throughput(
            samples_per_second=samples / step if samples else None,
            tokens_per_second=tokens / step if tokens else None,
            mfu=total_flops(whole) / whole.grad_accumulation * micro_steps / plan.devices / step / peak,
        ),
        cost=Cost(dollars_per_hour=price, dollars_per_step=None if price is None else price * step / 3600),
        energy=Energy(watts=watts, joules_per_step=watts * step), critical_path=critical_parts(ran.timeline),
        job=None if length is None else whole_job(
            length, step=step, samples=samples, tokens=tokens, dollars_per_hour=price, watts=watts,
            idle_watts=cluster_watts(cluster, 0.0),
        ),
        caveats=(*whole.caveats, *_caveats(program, slowest, busy, model), *_profile_caveat(profile, known.step)),
        timeline=ran.timeline, memory_trace=ran.heaviest.trace, graph=ran.heaviest.role.graph,
    )  # fmt: skip


def _loading(program: Program, conditions: Conditions) -> Seconds:
    """What a replica's data loader takes for a step; it works ahead, so the longer of the two sets the pace."""
    if conditions.loader is None:
        return 0.0
    if not program.whole.samples:
        raise InputError(
            f"a data loader of {conditions.loader:g} samples/s was given, but the samples of a step of "
            f"{program.whole.name!r} are not known. Set Workload(samples=…)."
        )
    return program.whole.samples * program.micro_steps / conditions.loader


def _late_input(loading: Seconds, step: Range) -> Range:
    """A slower step waits less for its input."""
    return max(loading - step[1], 0.0), max(loading - step[0], 0.0)


def _network(ran: Run) -> Network:
    links = tuple(LinkUse(link=name, sent_bytes=nbytes) for name, nbytes in sorted(ran.links.items()))
    return Network(sent_bytes=ran.sent, received_bytes=ran.sent, links=links)


def _resources(ran: Run, step: Seconds) -> Resources:
    """Idle, active and peak of the slowest rank's step, from when its streams are busy."""
    placed, busy, talking = ran.slowest, min(ran.timeline.computing, step), min(ran.timeline.talking, step)
    moving, fullest = 0.0, 0.0
    for op, price in zip(placed.role.graph.ops, placed.priced.prices, strict=True):
        if price.seconds > 0 and price.work.traffic:
            moving += price.seconds * op.times
            fullest = max(fullest, price.work.traffic / price.seconds / placed.node.device.bandwidth)
    if placed.device_seconds:
        moving *= busy / placed.device_seconds  # kernels beside communication take longer
    network = Use(idle_seconds=step - talking, active_seconds=talking, peak=ran.fastest_link)
    return Resources(
        device=Use(idle_seconds=step - busy, active_seconds=busy, peak=1.0 if busy else 0.0),
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


def _profile_caveat(profile: Profile | None, interval: Range | None) -> list[Caveat]:
    if profile is None or interval is None:
        return []
    text = f"Times follow profile {profile.name!r}; the interval is the model's own, from errors without a profile."
    return [Caveat("profile-not-calibrated", text)]


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
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: Length | None = None,
) -> BatchFit:
    """Find the largest `batch` whose step fits on every device of the cluster."""
    from foretell.capture import capture  # loads torch
    from foretell.graph.rescale import extend, same_path

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
        answer = forecast(captured(low), on, plan, model=model, profile=profile, conditions=conditions, job=job)
        if answer.memory.fits:
            return BatchFit(batch=low, forecast=answer)
        low = min(low - 1, int(low * 0.99))
    raise RequirementNotMet(
        f"{source} does not fit on {on} even with batch 1. Choose a device with more memory, a lower precision, or fewer parameters."
    )
