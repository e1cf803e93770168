"""The shortest time that a step can take: its replica's stages one after another, and communication that nothing hides."""

from __future__ import annotations

from dataclasses import dataclass, field

from foretell.cost.collectives import collective_seconds, compute_slowdown
from foretell.hardware import Cluster, Device
from foretell.parallel.state import gathered_share, shards_of
from foretell.planner.bounds import SLACK
from foretell.planner.bounds.replica import Replica, StepTotals, stages_of
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.program import Collective, Group
from foretell.units import Bytes, Seconds


def arithmetic_step(totals: StepTotals, plan: Plan, device: Device) -> Seconds:
    """The time of the step's work at the device's peak."""
    peak = max(device.peak(totals.precision.unit(family, device)) for family in ("matmul", "convolution"))
    micro_steps = plan.grad_accumulation or 1
    each = totals.flops / (plan.tp * plan.cp * plan.pp) / peak
    return each * (micro_steps + plan.pp - 1)


@dataclass(slots=True, kw_only=True)
class StepBounds:
    """Bounds of steps on one cluster, with the collectives that were priced for them."""

    cluster: Cluster
    slowdown: float | None = None  # of compute beside a collective; None: as the cluster's links have it
    _seconds: dict[tuple[Group, str, Bytes], Seconds] = field(default_factory=dict)
    _slowdowns: dict[Group, float] = field(default_factory=dict)

    def step(self, replica: Replica, plan: Plan, precision: Precision) -> Seconds:
        """The device's time or the host's, whichever is longer."""
        issuing = (plan.grad_accumulation or 1) * replica.host / plan.pp
        return SLACK * max(self._device(replica, plan, precision), issuing)

    def _device(self, replica: Replica, plan: Plan, precision: Precision) -> Seconds:
        """The plan's stages one after another, its update, and what it communicates where nothing hides it."""
        micro_steps = plan.grad_accumulation or 1
        stages = _stage_seconds(replica.units, plan.pp)
        slowest = max(stages)
        bandwidth = self.cluster.nodes[0].device.bandwidth
        adding = 3 * replica.state.gradients / plan.pp / bandwidth  # gradients to those of the micro-step before
        computing = sum(stages) + (micro_steps - 1) * (slowest + adding)
        replicas = plan.dp * plan.cp
        shards = shards_of(plan)
        update = replica.update / plan.pp / shards if plan.offload == "none" else 0.0  # the host's, and longer
        if replicas == 1 or plan.servers:
            return computing + update
        size = shards if plan.zero else replicas
        group = Group(size=size, stride=plan.tp, count=plan.devices // size)
        narrow = float(gathered_share(precision)) if plan.zero > 1 else 1.0
        bytes_of = replica.state.parameters * narrow, replica.in_blocks * narrow, replica.state.gradients
        whole, again, gradients = (n / plan.pp / plan.ep for n in bytes_of)
        if plan.zero == 0:
            return computing + update + max(self._collective("all-reduce", group, gradients) - slowest, 0.0)
        gather = self._collective("all-gather", group, whole)
        scatter = self._collective("reduce-scatter", group, gradients)
        if plan.zero == 1:
            exposed = 0.0 if plan.overlap_gather else gather
            return computing + update + exposed + max(scatter - slowest, 0.0)
        if plan.pp > 1:  # what a stage communicates may hide behind its waiting for others
            return computing + update
        if plan.zero == 3:
            gather += self._collective("all-gather", group, again)
        communicating = micro_steps * (gather + scatter)
        slower = self._slowdown(group) if self.slowdown is None else self.slowdown
        overlapping = min(communicating, computing)
        return max(computing + (1 - 1 / slower) * overlapping, communicating) + update

    def _collective(self, kind: str, group: Group, nbytes: float) -> Seconds:
        """The time of a collective in one piece."""
        if nbytes < 1:
            return 0.0
        key = group, kind, round(nbytes)
        if key not in self._seconds:
            self._seconds[key] = collective_seconds(_one(kind, round(nbytes), group), self.cluster)
        return self._seconds[key]

    def _slowdown(self, group: Group) -> float:
        """How much slower the device computes while the group communicates."""
        if group not in self._slowdowns:
            gathering, device = _one("all-gather", 1, group), self.cluster.nodes[0].device
            self._slowdowns[group] = compute_slowdown([gathering], self.cluster, device)
        return self._slowdowns[group]


def _one(kind: str, nbytes: Bytes, group: Group) -> Collective:
    return Collective(kind=kind, nbytes=nbytes, group=group, name=kind, starts_after=-1, waited_for_by=1)


def _stage_seconds(units: tuple[Seconds, ...], stages: int) -> list[Seconds]:
    seconds = [0.0] * stages
    for stage, unit in zip(stages_of(units, stages), units, strict=True):
        seconds[stage] += unit
    return seconds
