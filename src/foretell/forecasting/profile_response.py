"""How a step answers to a profile: seconds under trial factors, by simulating again what was priced once.

A step whose durations are all doubled takes twice as long, so its time over the device's depends on two numbers alone: how
many times slower the host is than the device, and communication. It is simulated at the knots of a lattice of their
logarithms, when they are asked for, and interpolated in between. Other links make all of a step's communication longer or
shorter by what they do to its sum.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from foretell.cost.model import CostModel
from foretell.forecasting.communication import Collectives
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.run import place, scaled_durations, slower
from foretell.forecasting.step_features import family_seconds, step_features
from foretell.hardware import Cluster
from foretell.profile import AS_LISTED, CROWDED, FAMILIES, Links, Operators, Profile, network_of
from foretell.program import Program
from foretell.simulate.jitter import slowest_of
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations, simulate
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
KNOTS: Final = 0.1  # apart, in e-folds: where device and host change places, a step has a corner
FAR: Final = 60  # knots: a hundred times faster or slower
LINK_KNOTS: Final = 0.5  # apart, of crowding and of the logarithm of neighbours


class Slopes(NamedTuple):
    """The logarithm of a step's seconds, and how it changes with log factors."""

    log: float
    host: float
    communication: float

    @property
    def device(self) -> float:
        return 1.0 - self.host - self.communication


class LinkSlopes(NamedTuple):
    """The log factor of a step's communication over links that differ, and how it changes with their numbers."""

    log: float
    crowding: float
    neighbours: float


class ProfileResponse:
    """A step on a cluster, priced once; with a profile's times of single ops, where there are some."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        model: CostModel,
        timed: Operators | None = None,
        software: str | None = None,
    ) -> None:
        conditions = Conditions(software=software)
        self._program, self._cluster, self._jitter = program, cluster, conditions.jitter
        ops_alone = None if timed is None else Profile(name="times of ops", operators=timed)
        self._placed, collectives = place(program, cluster, model, conditions, ops_alone)
        self._hand_over = collectives.hand_over(program)
        self._known: dict[tuple[int, int], float] = {}
        self._over_links: dict[tuple[int, int], float] = {}
        slowest = max((p for options in self._placed for p in options), key=lambda p: p.device_seconds)
        parts = family_seconds(slowest)
        gaps = slowest.durations.gap * int(slowest.role.graph.runs[slowest.durations.device > 0].sum())
        self.device = np.array([*(parts.get(family, 0.0) for family in FAMILIES), gaps])  # seconds by family, then gaps
        self._communicating = slowest.role
        self.communication: Seconds = sum(slowest.durations.collectives) + sum(self._hand_over)
        self.precision, self.ranks = program.whole.precision.arithmetic, program.ranks
        self.network = network_of(program.whole)
        self.features = step_features(program, slowest, collectives)
        self.memory = max((p.memory for options in self._placed for p in options), key=lambda m: m.total / m.capacity)

    def seconds(self, profile: Profile) -> Seconds:
        """About what `forecast` says with it; exactly so where it has one factor for all, on a knot."""
        profile = profile.for_step(self.network, self.ranks)
        factors = [*(profile.device_factor(f, self.precision) for f in FAMILIES), profile.device]
        scaled = float(self.device @ np.array(factors))
        device = math.log(scaled / self.device.sum()) if scaled else 0.0
        wire = math.log(profile.communication) + (self._over(profile.links) if profile.links != AS_LISTED else 0.0)
        log = self.at(device, math.log(profile.host), wire).log
        further = profile.residuals.log_factor(self.features) if profile.residuals else 0.0
        return math.exp(log + further) + profile.fixed_seconds

    def at(self, device: float, host: float, communication: float) -> Slopes:
        """Under log factors."""
        h, hs = _between_knots(host - device)
        c, cs = _between_knots(communication - device if self.communication else 0.0)
        low = self.knot(h, c), self.knot(h + 1, c)
        high = (self.knot(h, c + 1), self.knot(h + 1, c + 1)) if self.communication else low
        log, by_host, by_wire = _bilinear(low, high, hs, cs)
        return Slopes(device + log, by_host / KNOTS, by_wire / KNOTS)

    def over_links(self, crowding: float, neighbours: float) -> LinkSlopes:
        """Under links that are crowded by so much more, and the log factor of what lies between nodes."""
        if not self.communication:
            return LinkSlopes(0.0, 0.0, 0.0)
        (c, cs), (n, ns) = (_between_knots(x, LINK_KNOTS) for x in (crowding, neighbours))
        near, far = ((self.link_knot(i, n), self.link_knot(i, n + 1)) for i in (c, c + 1))
        log, by_neighbours, by_crowding = _bilinear(near, far, ns, cs)
        return LinkSlopes(log, by_crowding / LINK_KNOTS, by_neighbours / LINK_KNOTS)

    def link_knot(self, crowding: int, neighbours: int) -> float:
        key = crowding, neighbours
        if key not in self._over_links:
            at = max(-CROWDED, min(CROWDED, crowding * LINK_KNOTS))
            self._over_links[key] = self._over(Links(crowding=at, neighbours=math.exp(neighbours * LINK_KNOTS)))
        return self._over_links[key]

    def _over(self, links: Links) -> float:
        """The log factor of all of its communication."""
        return math.log(max(self._wired(links), 1e-30) / max(self._wired(AS_LISTED), 1e-30))

    def _wired(self, links: Links) -> Seconds:
        collectives = Collectives(self._cluster, links=links)
        own = sum(map(collectives.seconds, self._communicating.collectives))
        return own + sum(collectives.hand_over(self._program))

    def knot(self, host: int, communication: int) -> float:
        key = host, communication
        if key not in self._known:
            self._known[key] = math.log(self._simulated(math.exp(host * KNOTS), math.exp(communication * KNOTS)))
        return self._known[key]

    def _simulated(self, host: float, communication: float) -> Seconds:
        """With uneven ranks, as a forecast counts them; undrawn."""
        program, jitter = self._program, self._jitter if self.ranks > 1 else 0.0
        if program.pipeline is None:
            times = slowest_of(program.ranks, jitter) if jitter else 1.0
            options = self._placed[0]
            return max(
                simulate(p.role, _scaled(p.durations, host, communication, times), draw=False).period for p in options
            )
        stages = [max(options, key=lambda p: p.device_seconds + p.host_seconds) for options in self._placed]
        durations = {
            id(p.durations): _scaled(p.durations, host, communication, slowest_of(p.role.count, jitter)) for p in stages
        }
        hand_over = [s * communication for s in self._hand_over]
        return simulate_pipeline(program, [durations[id(p.durations)] for p in stages], hand_over, draw=False).period


def _bilinear(
    low: tuple[float, float], high: tuple[float, float], along: float, up: float
) -> tuple[float, float, float]:
    """The value between four corners, and how it changes along and up. A fit asks a million times: plain numbers."""
    at_low, at_high = (pair[0] + along * (pair[1] - pair[0]) for pair in (low, high))
    by_along = (1 - up) * (low[1] - low[0]) + up * (high[1] - high[0])
    return at_low + up * (at_high - at_low), by_along, at_high - at_low


def _between_knots(x: float, apart: float = KNOTS) -> tuple[int, float]:
    """The knot below, and how far beyond it."""
    at = max(-FAR, min(FAR - 1, math.floor(x / apart)))
    return at, x / apart - at


def _scaled(durations: Durations, host: float, communication: float, times: float) -> Durations:
    faster = scaled_durations(durations, host, communication)
    return faster if times == 1.0 else slower(faster, times)
