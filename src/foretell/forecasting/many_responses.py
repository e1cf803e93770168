"""Many steps under trial factors at once: what each of them says alone, looked up in arrays. A fit asks a million times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from foretell.forecasting.profile_response import FAR, KNOTS, LINK_KNOTS, ProfileResponse

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
_ACROSS: Final = 2 * FAR + 2


class ManySlopes(NamedTuple):
    """Logarithms of seconds, and how they change with log factors: a row a step."""

    log: Floats
    host: Floats
    communication: Floats

    @property
    def device(self) -> Floats:
        return 1.0 - self.host - self.communication


class ManyLinkSlopes(NamedTuple):
    log: Floats
    crowding: Floats
    neighbours: Floats


class _Lattice:
    """What was asked of each step at knots; of what nobody asked a machine spends no memory."""

    def __init__(self, steps: int) -> None:
        self.found = np.zeros((steps, _ACROSS, _ACROSS))
        self.known = np.zeros((steps, _ACROSS, _ACROSS), dtype=bool)

    def at(self, rows: Places, one: Places, other: Places, ask: Callable[[int, int, int], float]) -> Floats:
        place = rows, one + FAR, other + FAR
        for i in np.flatnonzero(~self.known[place]):
            at = rows[i], one[i] + FAR, other[i] + FAR
            self.found[at], self.known[at] = ask(int(rows[i]), int(one[i]), int(other[i])), True
        found: Floats = self.found[place]
        return found


class ManyResponses(Sequence[ProfileResponse]):
    """Some of the steps of a fit; `take` gives fewer of them, which share what was simulated."""

    def __init__(self, steps: Sequence[ProfileResponse]) -> None:
        self._every = list(steps)
        self._knots, self._link_knots = _Lattice(len(self._every)), _Lattice(len(self._every))
        self._choose(np.arange(len(self._every)))

    @classmethod
    def of(cls, steps: Sequence[ProfileResponse]) -> ManyResponses:
        return steps if isinstance(steps, ManyResponses) else cls(steps)

    def take(self, rows: Places) -> Self:
        some = object.__new__(type(self))
        some._every, some._knots, some._link_knots = self._every, self._knots, self._link_knots
        some._choose(self._rows[rows])
        return some

    def _choose(self, rows: Places) -> None:
        self._rows = rows
        self._communicates = np.array([bool(self._every[i].communication) for i in rows], dtype=bool)
        self.device = np.array([self._every[i].device for i in rows])

    @overload
    def __getitem__(self, place: int) -> ProfileResponse: ...
    @overload
    def __getitem__(self, place: slice) -> list[ProfileResponse]: ...
    def __getitem__(self, place: int | slice) -> ProfileResponse | list[ProfileResponse]:
        if isinstance(place, slice):
            return [self._every[i] for i in self._rows[place]]
        step: ProfileResponse = self._every[self._rows[place]]
        return step

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ProfileResponse]:
        return (self._every[i] for i in self._rows)

    def at(self, device: Floats, host: Floats, communication: Floats) -> ManySlopes:
        """Each under its own log factors."""
        h, hs = _between_knots(host - device, KNOTS)
        c, cs = _between_knots(np.where(self._communicates, communication - device, 0.0), KNOTS)
        above = np.where(self._communicates, c + 1, c)

        def ask(row: int, one: int, other: int) -> float:
            return self._every[row].knot(one, other)

        low = [self._knots.at(self._rows, places, c, ask) for places in (h, h + 1)]
        high = [self._knots.at(self._rows, places, above, ask) for places in (h, h + 1)]
        log, by_host, by_wire = _bilinear(low, high, hs, cs)
        return ManySlopes(device + log, by_host / KNOTS, by_wire / KNOTS)

    def over_links(self, crowding: float, neighbours: float) -> ManyLinkSlopes:
        """All over links that are crowded by so much more, and with this log factor of what lies between nodes."""
        if not self._communicates.any():
            none = np.zeros(len(self))
            return ManyLinkSlopes(none, none, none)
        size = len(self)
        (c, cs), (n, ns) = (_between_knots(np.full(size, x), LINK_KNOTS) for x in (crowding, neighbours))

        def ask(row: int, one: int, other: int) -> float:
            step = self._every[row]
            return step.link_knot(one, other) if step.communication else 0.0

        near, far = ([self._link_knots.at(self._rows, i, j, ask) for j in (n, n + 1)] for i in (c, c + 1))
        log, by_neighbours, by_crowding = _bilinear(near, far, ns, cs)
        return ManyLinkSlopes(log, by_crowding / LINK_KNOTS, by_neighbours / LINK_KNOTS)


def _between_knots(x: Floats, apart: float) -> tuple[Places, Floats]:
    at = np.clip(np.floor(x / apart), -FAR, FAR - 1).astype(np.intp)
    return at, x / apart - at


def _bilinear(
    low: Sequence[Floats], high: Sequence[Floats], along: Floats, up: Floats
) -> tuple[Floats, Floats, Floats]:
    at_low, at_high = (pair[0] + along * (pair[1] - pair[0]) for pair in (low, high))
    by_along = (1 - up) * (low[1] - low[0]) + up * (high[1] - high[0])
    return at_low + up * (at_high - at_low), by_along, at_high - at_low
