"""What a form's numbers make of steps: logarithms of seconds, and how they change with each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.many_responses import ManyResponses
from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.form import LINKS, OF_RANKS, PARTS, Form, name_of_network, name_of_ranks, name_of_seconds
from foretell.precision import PRECISIONS
from foretell.profile import ARITHMETIC
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
_IS_ARITHMETIC: Final = np.array([part in ARITHMETIC for part in PARTS])
_NOWHERE: Final = -1  # the place of a number that a form does not have


class Trial:
    """Logarithms of predicted seconds, and how they change with the chosen ones of a form's numbers, on top of an offset."""

    def __init__(
        self, full: Form, responses: Sequence[ProfileResponse], unit: Seconds, offset: Floats, chosen: list[int]
    ) -> None:
        self.responses, self.unit, self.by_part = ManyResponses.of(responses), unit, full.by_part()
        self.offset, self.chosen = offset, chosen
        self.place = {name: i for i, name in enumerate(full.names)}
        networks = [r.network for r in responses]
        self.network, self.own = (
            np.array([self.place.get(of(network), _NOWHERE) for network in networks], dtype=np.intp)
            for of in (name_of_network, name_of_seconds)
        )
        self.host_of_ranks, self.wire_of_ranks = (
            np.array([self.place.get(name_of_ranks(what, r.ranks), _NOWHERE) for r in self.responses], dtype=np.intp)
            for what in OF_RANKS
        )
        precisions = [r.precision for r in responses]
        self.precision = np.array([self.place.get(p, _NOWHERE) for p in precisions], dtype=np.intp)
        self.of_precision = {p: np.array([own == p for own in precisions]) for p in PRECISIONS if p in self.place}
        seconds = self.responses.device
        self.shares = seconds / np.maximum(seconds.sum(1, keepdims=True), 1e-30)

    def whole(self, numbers: Floats) -> Floats:
        """All of the form's numbers."""
        found = self.offset.copy()
        found[self.chosen] += numbers
        return found

    def logs(self, numbers: Floats) -> tuple[Floats, Floats]:
        logs, slopes = self._logs(self.whole(numbers))
        return logs, slopes[:, self.chosen]

    def _logs(self, numbers: Floats) -> tuple[Floats, Floats]:
        def value(name: str) -> float:
            return float(numbers[self.place[name]]) if name in self.place else 0.0

        def each(places: Places) -> Floats:
            return np.where(places == _NOWHERE, 0.0, numbers[places]) if len(numbers) else np.zeros(len(places))

        scaled = self.shares * np.exp(self.by_part @ numbers + each(self.precision)[:, None] * _IS_ARITHMETIC)
        total = np.maximum(scaled.sum(1), 1e-30)
        of_network = each(self.network)
        links = self.responses.over_links(*(value(name) for name in LINKS))
        found = self.responses.at(
            np.log(total) + of_network,
            value("host") + of_network + each(self.host_of_ranks),
            value("communication") + links.log + each(self.wire_of_ranks),
        )
        seconds = np.exp(found.log)
        fixed = self.unit * (value("fixed") + each(self.own))
        slopes = found.device[:, None] * (scaled / total[:, None]) @ self.by_part
        columns = {
            "host": found.host, "communication": found.communication,
            **{name: found.communication * getattr(links, name) for name in LINKS},
        }  # fmt: skip
        for name, column in columns.items():
            if name in self.place:
                slopes[:, self.place[name]] = column
        arithmetic = found.device * (scaled / total[:, None])[:, _IS_ARITHMETIC].sum(1)
        for name, rows in self.of_precision.items():
            slopes[:, self.place[name]] = np.where(rows, arithmetic, 0.0)
        _put(slopes, self.network, 1.0 - found.communication)
        _put(slopes, self.host_of_ranks, found.host)
        _put(slopes, self.wire_of_ranks, found.communication)
        slopes *= (seconds / (seconds + fixed))[:, None]
        if "fixed" in self.place:
            slopes[:, self.place["fixed"]] = self.unit / (seconds + fixed)
        _put(slopes, self.own, self.unit / (seconds + fixed))
        return np.log(seconds + fixed), slopes


def _put(slopes: Floats, places: Places, column: Floats) -> None:
    """Each row's value in its own place, where it has one."""
    rows = np.flatnonzero(places != _NOWHERE)
    slopes[rows, places[rows]] = column[rows]
