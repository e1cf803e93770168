"""A run made into a forecast: times, memory, resources, cost and energy of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from foretell.cost.flops import executed, flops
from foretell.cost.model import CostModel
from foretell.cost.power import use_of
from foretell.cost.roofline import seconds_at_peak
from foretell.distribution import interval
from foretell.forecasting.critical import critical_path
from foretell.forecasting.energy import cluster_watts, idle_watts
from foretell.forecasting.invariants import check_arithmetic, check_step
from foretell.forecasting.job import Job, JobLength
from foretell.forecasting.memory import adjusted
from foretell.forecasting.result import (
    Cost,
    Duration,
    Energy,
    Forecast,
    HostDescription,
    LinkUse,
    Network,
    Resources,
    StepDescription,
    Throughput,
    Use,
)
from foretell.forecasting.run import Run
from foretell.forecasting.snapshot import RankStep
from foretell.forecasting.trainer import TrainerOverhead
from foretell.forecasting.uncertainty import StepDistribution, step_distribution
from foretell.graph import Caveat, Signature
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Profile, network_of
from foretell.program import Program
from foretell.software import Software
from foretell.units import Flops, Seconds


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A run made into a forecast."""

    program: Program
    cluster: Cluster
    plan: Plan
    ran: Run
    model: CostModel
    profile: Profile | None
    loading: Seconds
    trainer: TrainerOverhead
    software: Software | None = None  # today's

    def forecast(self, length: JobLength | None, caveats: Iterable[Caveat]) -> Forecast:
        ran, whole = self.ran, self.program.whole
        check_step(self.step, whole.name, self.cluster)
        check_arithmetic(self._used(executed), self.step, whole.name, self.cluster)
        known = self.known
        step_range = input_range = None
        if known.step is not None:
            low, high = interval(known.step)
            step_range = max(low, self.loading), max(high, self.loading)
            input_range = max(self.loading - high, 0.0), max(self.loading - low, 0.0)
        return Forecast(
            model=self.model.name,
            workload=whole.name,
            cluster=str(self.cluster),
            plan=str(self.plan),
            step=self._step_description(),
            profile=self.profile.name if self.profile else None,
            host=self._host(),
            step_time=Duration.within(self.step, step_range),
            device_time=Duration.of(self.busy, known.device),
            host_time=Duration.of(ran.slowest.host_seconds, known.host),
            exposed_communication=Duration.of(ran.exposed, known.exposed),
            bubble=Duration.of(ran.bubble, known.wait(ran.bubble)),
            stragglers=Duration.of(ran.stragglers, known.wait(ran.stragglers)),
            trainer=Duration.of(self.added, known.wait(self.added)),
            input_wait=Duration.within(self.step - self._ready, input_range),
            memory=ran.memory if self.profile is None else adjusted(ran.memory, self.profile.memory),
            network=self._network(),
            resources=self._resources(),
            throughput=self._throughput(),
            cost=self._cost(),
            energy=Energy(watts=self._watts, joules_per_step=self._watts * self.step),
            critical_path=critical_path(ran.timeline, self.program.roles, self._around),
            job=None if length is None else self._job(length, step_range),
            caveats=(*whole.caveats, *caveats),
            explanation=whole.facts.notes,
            timeline=ran.timeline,
            memory_trace=ran.heaviest.trace,
            graph=ran.heaviest.role.graph,
            ranks=tuple(
                RankStep(
                    role=p.role,
                    device=p.node.device,
                    seconds=p.durations.device.tolist(),
                    streams_hold=p.streams_hold,
                )
                for p in ran.stages
            ),
        )

    def _host(self) -> HostDescription:
        hosts = {node.host.name: node.host.op_seconds for node in self.cluster.kinds}
        return HostDescription(name=" + ".join(hosts), op_seconds=max(hosts.values()))

    @cached_property
    def known(self) -> StepDistribution:
        return step_distribution(
            self.program,
            self.ran,
            self.cluster,
            self.model,
            profile=self.profile,
            fixed=self._fixed,
            added=self.added,
            spread=self.trainer.spread,
            software=self.model.older_software.spread if self.software else 0.0,
        )

    @property
    def _fixed(self) -> Seconds:
        if self.profile is None:
            return 0.0
        return self.profile.for_step(network_of(self.program.whole), self.program.ranks).fixed_seconds

    @property
    def _around(self) -> dict[str, Seconds]:
        """What a step has beside what its ranks run."""
        return {
            "waiting for the slowest rank": self.ran.stragglers,
            "what the trainer adds": self.added,
            "seconds that a profile adds": self._fixed,
            "waiting for the data loader": self.step - self._ready,
        }

    @property
    def _ready(self) -> Seconds:
        return self.ran.timeline.period + self.ran.stragglers + self.added + self._fixed

    @property
    def added(self) -> Seconds:
        return self.trainer.seconds(self.ran.timeline.period + self.ran.stragglers)

    @cached_property
    def step(self) -> Seconds:
        return max(self._ready, self.loading)

    @cached_property
    def busy(self) -> Seconds:
        return self.ran.slowest.device_seconds

    @cached_property
    def _watts(self) -> float:
        """Of all devices, each with its part of the whole step's work."""
        if not self.step:
            return idle_watts(self.cluster)
        whole = self.program.whole
        use = use_of(whole, self.ran.slowest.node.device, busy=self.busy)
        return cluster_watts(self.cluster, use.over(self.step, self._whole_steps / self.plan.devices))

    @property
    def _whole_steps(self) -> float:
        """How often all devices together do what the captured step does."""
        return self._micro_steps / self.program.whole.grad_accumulation

    @property
    def _micro_steps(self) -> int:
        """Of all replicas together."""
        return self.program.micro_steps * self.plan.dp

    def _step_description(self) -> StepDescription:
        whole = self.program.whole
        facts = whole.facts
        return StepDescription(
            samples=whole.samples,
            tokens=whole.tokens,
            inputs=None if facts.inputs is None else "×".join(map(str, facts.inputs)),
            precision=whole.precision.name,
            optimizer=facts.optimizer,
            parameters=facts.parameters,
            untrained=facts.untrained,
            grad_accumulation=self.program.micro_steps,
        )

    def _throughput(self) -> Throughput:
        whole, step = self.program.whole, self.step
        return Throughput(
            samples_per_second=whole.samples * self._micro_steps / step if whole.samples else None,
            tokens_per_second=whole.tokens * self._micro_steps / step if whole.tokens else None,
            mfu=self._used(flops),
        )

    def _used(self, counted: Callable[[Signature], Flops]) -> float:
        """The arithmetic of a step over what all its devices can do meanwhile."""
        runs = self.cluster.runs
        peaks = (
            (seconds_at_peak(self.program.whole, node.device, counted), node.count * times) for node, times in runs
        )
        at_once = sum(devices / seconds for seconds, devices in peaks if seconds)  # captured steps per second, of all
        return self._whole_steps / self.step / at_once if at_once else 0.0

    def _cost(self) -> Cost:
        price = self.cluster.dollars_per_hour
        return Cost(
            dollars_per_hour=price,
            dollars_per_step=None if price is None else price * self.step / 3600,
            price=None if price is None else self.cluster.price_source,
        )

    def _job(self, length: JobLength, within: tuple[Seconds, Seconds] | None) -> Job:
        whole = self.program.whole
        return length.cost(
            step=self.step,
            within=within,
            devices=self.cluster.devices,
            nodes=len(self.cluster.nodes),
            samples=(whole.samples or 0) * self._micro_steps,
            tokens=(whole.tokens or 0) * self._micro_steps,
            dollars_per_hour=self.cluster.dollars_per_hour,
            watts=self._watts,
            idle_watts=idle_watts(self.cluster),
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
