"""A step priced and timed on one device: the one way from graph, device and model to step seconds.

Forecasts, intervals, fits and evaluations all go through here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final, Protocol

from foretell.cost.host import HostCosts
from foretell.cost.model import Priced
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
from foretell.units import Seconds

SLOWER: Final = (0.6, 1.0, 1.6)  # device speeds at which a step is simulated; between and beyond them a line does
Curve = list[tuple[float, Seconds]]  # how many times slower the device is, and the step's time there


class Pricing(Protocol):
    """What prices a step: a CostModel, or a variant of one that is being evaluated."""

    @property
    def host(self) -> HostCosts: ...

    def price(self, graph: Graph, device: Device) -> Priced: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """What each op of a role takes on a device and its host."""

    role: Role
    priced: Priced
    durations: Durations

    @property
    def device_seconds(self) -> Seconds:
        return self._sum(self.durations.device)

    @property
    def host_seconds(self) -> Seconds:
        return self._sum(self.durations.host)

    @property
    def unknown(self) -> float:
        """The part of the device time that no model knows."""
        busy = self._sum(self.priced.seconds)
        return sum(self.priced.unknown.values()) / busy if busy else 0.0

    @property
    def alike(self) -> float:
        """How likely two seconds of the device are of one call, whose error does not even out."""
        each, busy = self.of_calls, self.device_seconds
        return sum((seconds / busy) ** 2 for seconds in each) if busy else 0.0

    @property
    def families(self) -> dict[str, Seconds]:
        """Device time by family of operators."""
        parts: dict[str, Seconds] = defaultdict(float)
        for call, seconds in enumerate(self.of_calls):
            parts[self.priced.families.get(call, "")] += seconds
        return dict(parts)

    @property
    def of_calls(self) -> list[Seconds]:
        """Device time by call, of all its runs."""
        return self.priced.calls.sums(self.durations.device * self.role.graph.runs)

    @property
    def doubts(self) -> dict[str, float]:
        """The square of the error to expect of the device time, as a logarithm, by the operator it comes from.

        An op that runs often is as far off each time; errors of different ops have nothing to do with each other.
        """
        seconds_of: dict[int, Seconds] = defaultdict(float)
        spread_of: dict[int, tuple[str, float]] = {}
        for number, (call, seconds) in enumerate(zip(self.priced.calls.distinct, self.of_calls, strict=True)):
            seconds_of[id(call.signature)] += seconds
            if spread := self.priced.spreads.get(number, 0.0):
                spread_of[id(call.signature)] = call.signature.name, spread
        doubts: dict[str, float] = defaultdict(float)
        busy = self.device_seconds
        for key, (name, spread) in spread_of.items():
            if busy:
                doubts[name] += (spread * seconds_of[key] / busy) ** 2
        return dict(doubts)

    @property
    def spread(self) -> float:
        """The error to expect of the device time, as a logarithm."""
        return math.sqrt(sum(self.doubts.values()))

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
        return float(seconds @ self.role.graph.runs)


def one_device_step(graph: Graph, device: Device, model: Pricing, host: Host | None = None) -> RoleStep:
    """A graph on one device; without a host, on the one the device is usually sold with."""
    role = parallelize(graph, Plan(dp=1)).roles[0]
    return role_step(role, device, host or known_host(device.host), model)


def role_step(role: Role, device: Device, host: Host, model: Pricing, timed: Operators | None = None) -> RoleStep:
    """A role's ops on one of its devices, where some ops may have been timed; its collectives take nothing yet."""
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
        gap=model.host.gap,
    )
    return RoleStep(role=role, priced=priced, durations=durations)


def _as_timed(priced: Priced, timed: Operators) -> Priced:
    """With what ops take where some were timed."""

    def price(signature: Signature, said: Price) -> Price:
        if not said.work.kernel or not said.seconds:
            return said
        log_factor = timed.log_factor(signature, said.work.flops, said.work.traffic, said.seconds)
        return replace(said, seconds=said.seconds * math.exp(log_factor))

    calls = zip(priced.calls.distinct, priced.of_calls, strict=True)
    return replace(priced, of_calls=[price(call.signature, said) for call, said in calls])
