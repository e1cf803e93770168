"""A step priced and timed on one device: the one way from graph, device and model to step seconds.

Forecasts, intervals, fits and evaluations all go through here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

from foretell.cost.host import HostCosts
from foretell.cost.model import Priced
from foretell.cost.older_software import OlderSoftware, device_seconds, host_seconds
from foretell.cost.roofline import Price
from foretell.graph import Graph, Signature
from foretell.graph.facts import HostWork
from foretell.hardware import Device, Host
from foretell.hardware import host as known_host
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.profile import Operators
from foretell.program import Role
from foretell.simulate.step import Durations, Floats, simulate
from foretell.software import Software
from foretell.units import Seconds

SLOWER: Final = (0.6, 1.0, 1.6)  # device speeds at which a step is simulated; between and beyond them a line does
Curve = list[tuple[float, Seconds]]  # how many times slower the device is, and the step's time there


class Pricing(Protocol):
    """What prices a step: a CostModel, or a variant of one that is being evaluated."""

    @property
    def host(self) -> HostCosts: ...

    @property
    def older_software(self) -> OlderSoftware: ...

    def price(self, graph: Graph, device: Device) -> Priced: ...


@dataclass(frozen=True, kw_only=True)
class RoleStep:
    """What each op of a role takes on a device and its host; what many ask for is summed up once."""

    role: Role
    priced: Priced
    durations: Durations

    @cached_property
    def device_seconds(self) -> Seconds:
        return self._sum(self.durations.device)

    @cached_property
    def host_seconds(self) -> Seconds:
        return self._sum(self.durations.host)

    @property
    def unknown(self) -> float:
        """The part of the device time that no model knows."""
        busy = self._sum(self.priced.seconds)
        return sum(self.priced.unknown.values()) / busy if busy else 0.0

    @cached_property
    def families(self) -> dict[str, Seconds]:
        """Device time by family of operators."""
        parts: dict[str, Seconds] = defaultdict(float)
        for call, seconds in enumerate(self.of_calls):
            parts[self.priced.families.get(call, "")] += seconds
        return dict(parts)

    @cached_property
    def of_calls(self) -> list[Seconds]:
        """Device time by call, of all its runs."""
        return self.priced.calls.sums(self.durations.device * self.role.graph.weights)

    @property
    def step_seconds(self) -> Seconds:
        """Of steps that follow one another."""
        return simulate(self.role, self.durations, draw=False).period

    def curve(self, step_seconds: Seconds | None = None) -> Curve:
        """The step time were the device slower or faster, and the host as it is; one that is known is not simulated again."""
        known = {} if step_seconds is None else {1.0: step_seconds}
        return [(factor, known.get(factor) or self._slower(factor).step_seconds) for factor in SLOWER]

    def _slower(self, factor: float) -> RoleStep:
        d = self.durations
        return replace(self, durations=replace(d, device=d.device * factor, gap=d.gap * factor))

    def _sum(self, seconds: Floats) -> Seconds:
        return float(seconds @ self.role.graph.weights)


def one_device_step(
    graph: Graph, device: Device, model: Pricing, host: Host | None = None, software: str | None = None
) -> RoleStep:
    """A graph on one device; without a host, on the one the device is usually sold with."""
    role = parallelize(graph, Plan(dp=1)).roles[0]
    return role_step(role, device, host or known_host(device.host), model, software=software)


def role_step(
    role: Role,
    device: Device,
    host: Host,
    model: Pricing,
    timed: Operators | None = None,
    software: str | None = None,
) -> RoleStep:
    """A role's ops on one of its devices, where some ops may have been timed, under today's software or another's.

    Its collectives take nothing yet. The last answer is kept: a step is asked about under many conditions.
    """
    rests_on = (device, host, software)
    known = role.found.get("step")
    if known is None or known[0] is not model or known[1] is not timed or known[2] != rests_on:
        known = role.found["step"] = model, timed, rests_on, _role_step(role, device, host, model, timed, software)
    step: RoleStep = known[-1]
    return step


def _role_step(
    role: Role, device: Device, host: Host, model: Pricing, timed: Operators | None, software: str | None
) -> RoleStep:
    priced = model.price(role.graph, device)
    priced = priced if timed is None else _as_timed(priced, timed)
    alone = device.kind == "cpu"  # the host runs its ops itself, so it waits for each of them
    copied_in_turn = (
        role.graph.facts.host or HostWork()
    ).waits  # the batch, once the device is done with the step before
    waits = priced.waits | alone
    if copied_in_turn and len(waits):
        waits[0] = True
    durations = Durations(
        device=priced.seconds,
        host=model.host.seconds(role.graph, host),
        waits=waits,
        collectives=[0.0] * len(role.collectives),
        gap=model.host.gap_in(role.graph),
    )
    if software is not None:
        durations = _under(Software.parse(software), durations, role.graph, device, host, model)
    return RoleStep(role=role, priced=priced, durations=durations)


def _under(
    software: Software, durations: Durations, graph: Graph, device: Device, host: Host, model: Pricing
) -> Durations:
    return replace(
        durations,
        device=device_seconds(durations.device, graph, device, software, model.older_software),
        host=host_seconds(durations.host, graph, host, software, model.host),
    )


def _as_timed(priced: Priced, timed: Operators) -> Priced:
    """With what ops take where some were timed."""

    def price(signature: Signature, listed: Price) -> Price:
        if not listed.work.kernel or not listed.seconds:
            return listed
        log_factor = timed.log_factor(signature, listed.work.flops, listed.work.traffic, listed.seconds)
        return replace(listed, seconds=listed.seconds * math.exp(log_factor))

    calls = zip(priced.calls.distinct, priced.of_calls, strict=True)
    return replace(priced, of_calls=[price(call.signature, listed) for call, listed in calls])
