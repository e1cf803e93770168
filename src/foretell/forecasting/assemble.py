"""The composition: a workload goes in, what its step will cost comes out."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Final

from foretell.capture import capture
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import ROOFLINE, CostModel, load_model
from foretell.cost.offload import HOST_BYTES
from foretell.cost.roofline import seconds_at_peak
from foretell.errors import InputError, PlanError, check_kind
from foretell.forecasting.calibration import Range
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.critical import critical_path
from foretell.forecasting.energy import cluster_watts
from foretell.forecasting.intervals import (
    between,
    interval_source,
    intervals,
    spread_of,
    uncertain_ops,
    why_no_interval,
)
from foretell.forecasting.job import Job, JobLength
from foretell.forecasting.memory import adjusted
from foretell.forecasting.response import Response
from foretell.forecasting.result import (
    Asked,
    Cost,
    Energy,
    Forecast,
    LinkUse,
    Network,
    Resources,
    Throughput,
    Use,
)
from foretell.forecasting.run import Placed, Run, run
from foretell.forecasting.scripts import on_cluster, plan_noted
from foretell.forecasting.several import Spread, jobs_of
from foretell.graph import Caveat, Graph
from foretell.graph.operators import OPAQUE
from foretell.hardware import Cluster
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.profile import Operators, Profile, network_of
from foretell.program import Program
from foretell.sources.configs import plan_of
from foretell.sources.scripts import Script, script_of
from foretell.units import Seconds, show_bytes
from foretell.workload import Workload

__all__ = ["DEFAULT_MODEL", "forecast", "load_model"]

_PEAK_OF_PRECISION: Final = {"torch-fp32": "tf32", "amp-bf16": "bf16", "amp-fp16": "fp16"}


def forecast(
    workload: Workload | Graph | Script | str,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
) -> Forecast:
    """Forecast one steady-state step of a Workload, a captured Graph or a SOURCE on a cluster.

    `settings` are the parameters of a SOURCE. `model` names what prices operators: one that is shipped, the folder of one
    you fitted, or `roofline`. `profile` makes the forecast fit one machine, cluster or trainer. `conditions` are the data
    loader, the jitter of ranks and the routing of experts; `job` asks what a whole training costs.
    """
    workload = script_of(workload)
    check_kind(
        "workload", workload, (Workload, Graph, Script, str), "a Workload, a Graph, a Script or a SOURCE", InputError
    )
    check_kind("on", on, (str, Cluster), "a Cluster or its name, like '8xh100-sxm'", InputError)
    check_kind("plan", plan, (str, Plan, NoneType), "a Plan, text like 'dp=4,tp=2', or None", PlanError)
    asked, (cluster, plan) = plan, _where(on, plan, workload, settings)
    prices_by = load_model(model) if isinstance(model, str) else model
    fitted = Profile.load(profile) if isinstance(profile, str | Path) else profile
    conditions = conditions or Conditions()
    if isinstance(workload, Script):
        workload = on_cluster(workload, cluster, plan if asked else None)
    graph = capture(workload, settings)
    if asked is None and (noted := plan_noted(graph, cluster.devices)) is not None:
        cluster, plan = _where(cluster, noted, workload, settings)
    with no_garbage_collection():
        program = _program(graph, cluster, plan, prices_by)
        ran = run(program, cluster, prices_by, conditions, fitted)
        return _Assembly(
            program=program,
            cluster=cluster,
            plan=plan,
            ran=ran,
            model=prices_by,
            profile=fitted,
            loading=_loading(program, conditions),
            lost=_lost(program, prices_by, fitted, conditions),
        ).forecast(job)


def response(
    workload: Workload | Graph | str,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    timed: Operators | None = None,
) -> Response:
    """How the step that `forecast` would answer for answers to profiles; all of them with these times of ops, if any."""
    cluster, plan = _where(on, plan, workload, settings)
    prices_by = load_model(model) if isinstance(model, str) else model
    graph = capture(workload, settings)
    with no_garbage_collection():
        return Response(_program(graph, cluster, plan, prices_by), cluster, prices_by, timed)


def spread(
    workload: Workload | Graph | str,
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
) -> Spread | None:
    """How far the step that `forecast` would answer for may be off by its parts, before errors on jobs scale it."""
    cluster, plan = _where(on, plan, workload, settings)
    prices_by = load_model(model) if isinstance(model, str) else model
    with no_garbage_collection():
        program = _program(capture(workload, settings), cluster, plan, prices_by)
        return spread_of(program, run(program, cluster, prices_by, Conditions()), cluster, prices_by)


def _where(
    on: str | Cluster, plan: Plan | str | None, workload: object, settings: Mapping[str, str] | None
) -> tuple[Cluster, Plan]:
    """The cluster, and the plan: as given, as a configuration says it, or data parallelism."""
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    if isinstance(plan, str):
        plan = Plan.parse(plan)
    plan = plan or plan_of(workload, settings, cluster.devices, len(cluster.nodes)) or Plan(dp=cluster.devices)
    plan.check_devices(cluster.devices)
    _check_one_process(plan, cluster)
    return cluster, plan


def _program(graph: Graph, cluster: Cluster, plan: Plan, model: CostModel) -> Program:
    device = cluster.nodes[0].device
    return parallelize(graph, plan, lambda g: model.price(g, device).seconds.tolist())


def _check_one_process(plan: Plan, cluster: Cluster) -> None:
    if plan.data_parallel == "dp" and len(cluster.nodes) > 1:
        raise PlanError(
            f"data_parallel=dp drives all devices from one process, but {cluster} has {len(cluster.nodes)} nodes and a "
            f"process runs on one. Use data_parallel=ddp, or at most {cluster.nodes[0].count} devices of one node."
        )


_pausing = threading.Lock()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A plan makes a hundred thousand small objects that live to its end: searching them repeatedly is a fifth of it.

    It holds for the whole process, so one thread at a time may ask for it; garbage is collected in between.
    """
    if not gc.isenabled() or not _pausing.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.release()


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


def _lost(program: Program, model: CostModel, profile: Profile | None, conditions: Conditions) -> float:
    """What a trainer adds to its steps, as a part of them. Steps of one device are measured without one, and a profile
    knows its own."""
    if conditions.trainer is not None:
        return conditions.trainer
    known = jobs_of(model) if program.ranks > 1 and profile is None and program.whole.training else None
    return known.lost if known else 0.0


@dataclass(frozen=True, kw_only=True)
class _Assembly:
    """A run made into a forecast."""

    program: Program
    cluster: Cluster
    plan: Plan
    ran: Run
    model: CostModel
    profile: Profile | None
    loading: Seconds
    lost: float

    def forecast(self, length: JobLength | None) -> Forecast:
        ran, whole = self.ran, self.program.whole
        known = intervals(self.program, ran, self.cluster, self.model, self._fixed, self._added)
        step_range = input_range = None
        bounds = self.profile.within(self._ready, network_of(whole)) if self.profile else None
        if bounds := bounds or known.step:
            low, high = bounds
            step_range = max(low, self.loading), max(high, self.loading)
            input_range = max(self.loading - high, 0.0), max(self.loading - low, 0.0)
        return Forecast(
            model=self.model.name,
            workload=whole.name,
            cluster=str(self.cluster),
            plan=str(self.plan),
            asked=self._asked(),
            profile=self.profile.name if self.profile else None,
            step_time=between(self.step, step_range),
            device_time=between(self.busy, known.device),
            host_time=between(ran.slowest.host_seconds, known.host),
            exposed_communication=between(ran.exposed, known.exposed),
            bubble=between(ran.bubble, known.waiting and known.waiting(ran.bubble)),
            stragglers=between(ran.stragglers, known.waiting and known.waiting(ran.stragglers)),
            trainer=between(self._added, known.waiting and known.waiting(self._added)),
            input_wait=between(self.step - self._ready, input_range),
            memory=ran.memory if self.profile is None else adjusted(ran.memory, self.profile.memory),
            network=self._network(),
            resources=self._resources(),
            throughput=self._throughput(),
            cost=self._cost(),
            energy=Energy(watts=self._watts, joules_per_step=self._watts * self.step),
            critical_path=critical_path(ran.timeline, self.program.roles),
            job=None if length is None else self._job(length, step_range),
            caveats=(*whole.caveats, *self._caveats()),
            timeline=ran.timeline,
            memory_trace=ran.heaviest.trace,
            graph=ran.heaviest.role.graph,
        )

    @property
    def _fixed(self) -> Seconds:
        return self.profile.for_network(network_of(self.program.whole)).fixed_seconds if self.profile else 0.0

    @property
    def _ready(self) -> Seconds:
        return self.ran.timeline.period + self.ran.stragglers + self._added + self._fixed

    @property
    def _added(self) -> Seconds:
        return (self.ran.timeline.period + self.ran.stragglers) * self.lost

    @cached_property
    def step(self) -> Seconds:
        return max(self._ready, self.loading)

    @cached_property
    def busy(self) -> Seconds:
        return self.ran.slowest.device_seconds

    @cached_property
    def _watts(self) -> float:
        return cluster_watts(self.cluster, self.busy / self.step if self.step else 0.0)

    @property
    def _micro_steps(self) -> int:
        """Of all replicas together."""
        return self.program.micro_steps * self.plan.dp

    def _asked(self) -> Asked:
        whole = self.program.whole
        said, numbers = whole.provenance, whole.provenance.get("step.parameters", "")
        return Asked(
            samples=whole.samples,
            tokens=whole.tokens,
            inputs=said.get("step.inputs"),
            precision=str(whole.mixed or whole.precision),
            optimizer=said.get("step.optimizer"),
            parameters=int(numbers) if numbers.isdecimal() else None,
            grad_accumulation=self.program.micro_steps,
        )

    def _throughput(self) -> Throughput:
        whole, step = self.program.whole, self.step
        at_peak = seconds_at_peak(whole, self.ran.slowest.node.device) / whole.grad_accumulation * self._micro_steps
        return Throughput(
            samples_per_second=whole.samples * self._micro_steps / step if whole.samples else None,
            tokens_per_second=whole.tokens * self._micro_steps / step if whole.tokens else None,
            mfu=at_peak / step / self.plan.devices,
        )

    def _cost(self) -> Cost:
        price = self.cluster.dollars_per_hour
        return Cost(
            dollars_per_hour=price,
            dollars_per_step=None if price is None else price * self.step / 3600,
            price=None if price is None else self.cluster.price_source,
        )

    def _job(self, length: JobLength, within: Range | None) -> Job:
        whole = self.program.whole
        return length.cost(
            step=self.step,
            within=within,
            devices=self.cluster.devices,
            samples=(whole.samples or 0) * self._micro_steps,
            tokens=(whole.tokens or 0) * self._micro_steps,
            dollars_per_hour=self.cluster.dollars_per_hour,
            watts=self._watts,
            idle_watts=cluster_watts(self.cluster, 0.0),
        )

    def _network(self) -> Network:
        traffic = self.ran.traffic
        links = tuple(LinkUse(link=name, sent_bytes=nbytes) for name, nbytes in sorted(traffic.links.items()))
        return Network(sent_bytes=traffic.sent, received_bytes=traffic.sent, links=links)

    def _resources(self) -> Resources:
        """Idle, active and peak of the slowest rank's step, from when its streams are busy."""
        placed, timeline, step = self.ran.slowest, self.ran.timeline, self.step
        computing, communicating = min(timeline.computing, step), min(timeline.communicating, step)
        moving, fullest = 0.0, 0.0
        for price, times in zip(placed.priced.of_calls, placed.priced.calls.times, strict=True):
            if price.seconds > 0 and price.work.traffic:
                moving += price.seconds * times
                fullest = max(fullest, price.work.traffic / price.seconds / placed.node.device.bandwidth)
        if self.busy:
            moving *= computing / self.busy  # kernels beside communication take longer
        network = Use(idle_seconds=step - communicating, active_seconds=communicating, peak=self.ran.traffic.peak)
        return Resources(
            device=Use(idle_seconds=step - computing, active_seconds=computing, peak=1.0 if computing else 0.0),
            memory_bandwidth=Use(idle_seconds=max(step - moving, 0.0), active_seconds=moving, peak=min(fullest, 1.0)),
            network_rx=network,
            network_tx=network,
        )

    def _caveats(self) -> Iterator[Caveat]:
        placed, model = self.ran.slowest, self.model
        device = placed.node.device.name
        if model.name == ROOFLINE:
            text = "Device time is the roofline of published peaks; real kernels are slower, often by half or more."
            yield Caveat("roofline-costs", text)
        elif model.device != device:
            text = f"Operators were measured on {model.device} and transferred to {device} by its published numbers."
            yield Caveat("device-not-measured", text)
        if layout := self.cluster.partly_filled:
            yield Caveat("racks-partly-filled", f"Placed as {layout}. Write another layout like 2x72xNAME.")
        if self.lost:
            text = f"{self.lost:.0%} is added to the step for what its trainer does around it."
            yield Caveat("trainer-added", text, self._added / self.step)
        yield from self._precision_caveats(placed)
        yield from self._offload_caveats(placed)
        yield from self._interval_caveats(placed)
        for name, seconds in sorted(placed.priced.unknown.items()):
            share = seconds / self.busy if self.busy else 0.0
            if name == OPAQUE:
                targets = (s.target for s in placed.role.graph.signatures if s.name == OPAQUE)
                names = ", ".join(dict.fromkeys(target.rpartition(".")[2] for target in targets))
                text = f"Operations that cannot be looked into are priced by what is declared of them: {names}."
                yield Caveat("opaque-operations", text, share)
            else:
                yield Caveat("op-without-model", f"{name} priced by bytes", share)

    def _precision_caveats(self, placed: Placed) -> Iterator[Caveat]:
        """Where a device has no units for a precision, or has faster ones that it leaves out."""
        device, precision = placed.node.device, self.program.whole.precision
        wanted = _PEAK_OF_PRECISION.get(precision, precision)
        if wanted in ("bf16", "fp16") and wanted not in device.peaks:
            text = f"{device.name} has no units for {wanted}: products are converted and run as fp32, so it saves memory alone."
            yield Caveat("precision-without-units", text)
        elif wanted == "fp32" and "tf32" in device.peaks and device.kind == "gpu":
            times = device.peak("tf32") / device.peak("fp32")
            text = f"fp32 leaves out tensor cores. With precision=tf32 products are up to {times:.0f} times as fast on {device.name}."
            yield Caveat("fp32-without-tensor-cores", text)

    def _offload_caveats(self, placed: Placed) -> Iterator[Caveat]:
        if self.plan.offload == "none":
            return
        updated = sum(c.nbytes for c in placed.role.collectives if c.kind in ("host-update", "nvme-update"))
        kept = updated * HOST_BYTES[self.plan.offload] * placed.node.count
        where = "drives" if self.plan.offload_to == "nvme" else "memory"
        text = f"The host's {where} must keep {show_bytes(kept)} per node. How fast it updates, and the link to it, are usual values."
        yield Caveat("offload-assumed", text)

    def _interval_caveats(self, placed: Placed) -> Iterator[Caveat]:
        profile = self.profile
        if profile is not None and profile.intervals.width is not None:
            text = f"The interval is from errors of profile {profile.name!r} on steps left out of its fit."
            yield Caveat("calibrated-by-profile", text)
            return
        if why := why_no_interval(self.program, placed, self.model):
            yield Caveat("not-calibrated", f"No interval is given: {why}.")
            return
        if source := interval_source(self.program, placed, self.model):
            yield Caveat("calibrated-by-jobs" if self.program.ranks > 1 else "calibrated-elsewhere", source)
        text, share = uncertain_ops(placed, self.model)
        if text:
            yield Caveat("uncertain-ops", text, share)
        if profile is not None:
            text = f"Times follow profile {profile.name!r}; the interval is the model's, from errors without a profile."
            yield Caveat("profile-not-calibrated", text)
