"""The numbers of a profile that steps are fitted with, and the most likely ones for some measured steps.

Robust Gauss-Newton on the logarithms of predicted over measured seconds. A prior pulls towards a profile that changes
nothing: the device's factor is the least sure before anything was measured, then what one kind of operators has to itself,
then one family of them. What steps do not show stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.many_responses import ManyResponses
from foretell.forecasting.profile_response import ProfileResponse
from foretell.precision import PRECISIONS
from foretell.profile import ARITHMETIC, CROWDED, FAMILIES, KINDS, Links, Profile, plain
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]

_KIND_OF: Final = {family: kind for kind, families in KINDS.items() for family in families}
_DEVICE: Final = (*FAMILIES, "gaps")  # what a device's time is made of: ops, and what lies between two of them
_IS_ARITHMETIC: Final = np.array([part in ARITHMETIC for part in _DEVICE])
LINKS: Final = ("crowding", "neighbours")
_NOWHERE: Final = -1  # the place of a number that a form does not have
LEVELS: Final = (
    "device",
    "host",
    "communication",
    "fixed",
    "links",
    "kinds",
    "precisions",
    "families",
    "networks",
    "seconds",
)
# One standard deviation of each number before anything was measured: of log factors, of fixed seconds to the median step, of
# a network's own seconds to its shortest, and of the exponent of crowding.
_WIDTHS: Final = {
    "device": 0.5,
    "host": 0.5,
    "communication": 1.0,
    "fixed": 0.05,
    "links": 1.5,
    "kinds": 0.25,
    "precisions": 0.5,
    "families": 0.15,
    "networks": 0.3,
    "seconds": 0.3,
}
_NAMES: Final = {
    "links": LINKS,
    "kinds": tuple(KINDS),
    "families": FAMILIES,
    "precisions": PRECISIONS,
}  # of levels with many
NOISE: Final = 0.1  # by which predicted and measured usually scatter, however well a profile fits
SURE: Final = 4.0  # steps' worth of belief in that
_TAIL: Final = 4.0  # degrees of freedom of the scatter: wild measurements happen
_TAILED: Final = ("device", "host", "kinds", "families", "networks")
_ODD: Final = 2.0  # degrees of freedom of their priors
_TRUSTING: Final = 3  # first rounds in which no measurement is taken to be wild: several together may tell of a family
_FAR: Final = (
    7.0  # a factor stays within e^7, a thousand times, of 1: a host with a part of a core is a hundredth of a socket
)
_SEEN: Final = 5e-4  # by which a factor must differ from 1 to be written
_SHORT: Final[Seconds] = 1e-6  # that are none
_ROUNDS: Final = 12
_GRID: Final = (0.0, 2.0, 4.0, 6.0)  # e-folds of the device
# E-folds of communication: it shows from one on, and is hidden below.
_LINKS_GRID: Final = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
_HIDDEN: Final = 0.5  # of a step's time is the host's, on average
_NEAR: Final = 1e-3  # a round that changes no number by more is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Which numbers are fitted."""

    levels: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()  # that have factors, or seconds of their own

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.places]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The level and the name of each number."""
        return [(level, name) for level in self.levels for name in self._names(level)]

    @property
    def widths(self) -> Floats:
        return np.array([_WIDTHS[level] for level, _ in self.places])

    @property
    def tailed(self) -> npt.NDArray[np.bool_]:
        return np.array([level in _TAILED for level, _ in self.places], dtype=bool)

    def _names(self, level: str) -> tuple[str, ...]:
        if level in _OF_NETWORKS:
            return tuple(map(_OF_NETWORKS[level], self.networks))
        return _NAMES.get(level, (level,))

    def knowing(self, responses: Sequence[ProfileResponse]) -> Form:
        """With a number for each of their networks, where the form has those."""
        have = any(level in _OF_NETWORKS for level in self.levels)
        return replace(self, networks=tuple(sorted({r.network for r in responses})) if have else ())

    @staticmethod
    def union(forms: Sequence[Form]) -> Form:
        """The numbers that any of them has."""
        return Form(
            levels=tuple(level for level in LEVELS if any(level in form.levels for form in forms)),
            networks=tuple(sorted({network for form in forms for network in form.networks})),
        )

    def by_part(self) -> Floats:
        """Part of the device's time × number: which numbers multiply it."""
        chosen = [[name in ("device", part, _KIND_OF.get(part)) for name in self.names] for part in _DEVICE]
        return np.array(chosen, dtype=float).reshape(len(_DEVICE), len(self.names))


def _of_network(network: str) -> str:
    return f"network {network}"


def _seconds_of(network: str) -> str:
    return f"seconds of {network}"


_OF_NETWORKS: Final = {"networks": _of_network, "seconds": _seconds_of}


class Fitted:
    """Numbers of a form that were found."""

    def __init__(self, form: Form, numbers: Floats, unit: Seconds) -> None:
        self.form, self.numbers, self.unit = form, numbers, unit

    @classmethod
    def mean(cls, those: Sequence[Fitted], weights: Floats) -> Fitted:
        """Of forms that were fitted on the same steps; a number that a form does not have changes nothing there."""
        full = Form.union([each.form for each in those])
        found = sum(weight * each.among(full) for each, weight in zip(those, weights.tolist(), strict=True))
        return cls(full, np.asarray(found, dtype=np.float64), those[0].unit)

    @classmethod
    def of(cls, profile: Profile, unit: Seconds) -> Fitted:
        """What a profile says in numbers; what it has of kinds is in its families, and a residual model stays behind."""
        networks = tuple(sorted({*profile.networks, *profile.network_seconds}))
        logs = {
            "device": profile.device, "host": profile.host, "communication": profile.communication,
            "neighbours": profile.links.neighbours, **profile.precisions,
            **{family: profile.families.get(family, profile.families.get(plain(family), 1.0)) for family in FAMILIES},
            **{_of_network(network): factor for network, factor in profile.networks.items()},
        }  # fmt: skip
        plainly = {
            "fixed": profile.fixed_seconds / unit, "crowding": profile.links.crowding,
            **{_seconds_of(network): profile.network_seconds.get(network, 0.0) / unit for network in networks},
        }  # fmt: skip
        levels = tuple(level for level in LEVELS if level != "kinds")
        form = Form(levels=levels, networks=networks)
        found = [plainly[n] if n in plainly else float(np.log(logs.get(n, 1.0))) for n in form.names]
        return cls(form, np.array(found), unit)

    def among(self, full: Form) -> Floats:
        """The same numbers in the places of a form that has more."""
        place = {name: i for i, name in enumerate(full.names)}
        numbers = np.zeros(len(place))
        numbers[[place[name] for name in self.form.names]] = self.numbers
        return numbers

    def beyond(self, before: Fitted) -> dict[str, float]:
        """By how much each number differs from those before."""
        known = dict(zip(before.form.names, before.numbers.tolist(), strict=True))
        return {n: value - known.get(n, 0.0) for n, value in zip(self.form.names, self.numbers.tolist(), strict=True)}

    def profile(self, name: str) -> Profile:
        value = dict(zip(self.form.names, self.numbers.tolist(), strict=True))
        device, host, communication = (float(np.exp(value.get(n, 0.0))) for n in ("device", "host", "communication"))
        own = np.exp(self.form.by_part()[: len(FAMILIES)] @ self.numbers) / device
        families: dict[str, float] = {}
        for family, factor in zip(FAMILIES, own.tolist(), strict=True):
            if abs(factor - families.get(plain(family), 1.0)) > _SEEN:
                families[family] = round(factor, 4)
        precisions: dict[str, float] = {
            p: round(float(np.exp(value[p])), 4) for p in PRECISIONS if abs(value.get(p, 0.0)) > _SEEN
        }
        return Profile(
            name=name, device=device, host=host, communication=communication, fixed_seconds=self.fixed, families=families,
            precisions=precisions, links=self._links(value), networks=self._networks(value),
            network_seconds={n: s for n in self.form.networks if (s := value.get(_seconds_of(n), 0.0) * self.unit) > _SHORT},
        )  # fmt: skip

    def _networks(self, value: Mapping[str, float]) -> dict[str, float]:
        """Of every network that was measured, so that it is known to be one."""
        return {n: round(float(np.exp(value.get(_of_network(n), 0.0))), 4) for n in self.form.networks}

    def _links(self, value: Mapping[str, float]) -> Links:
        crowding, neighbours = (value.get(name, 0.0) for name in LINKS)
        return Links(crowding=round(crowding, 4), neighbours=round(float(np.exp(neighbours)), 4))

    @property
    def fixed(self) -> Seconds:
        """Seconds that are added to each step."""
        names = self.form.names
        return float(self.numbers[names.index("fixed")]) * self.unit if "fixed" in names else 0.0

    def fixed_of(self, responses: Sequence[ProfileResponse]) -> Floats:
        """Seconds that are added to each of these steps: of all alike, and of its network."""
        value = dict(zip(self.form.names, self.numbers.tolist(), strict=True))
        own = [value.get(_seconds_of(r.network), 0.0) for r in responses]
        return self.fixed + self.unit * np.array(own)

    def logs(self, responses: Sequence[ProfileResponse]) -> Floats:
        return _Trial(self.form, responses, self.unit, self.numbers, []).logs(np.zeros(0))[0]


def fit(
    form: Form, responses: Sequence[ProfileResponse], measured: Floats, start: Profile | None = None,
    near: Fitted | None = None,
) -> Fitted:  # fmt: skip
    """The most likely numbers, from several starts: as it is, all times longer alike, and with nothing hidden.

    With a profile to start from they come on top of its numbers, towards which the prior pulls. What was found on nearly the
    same steps is `near`: then a search begins there, and as it is, and nowhere else.
    """
    form, unit = form.knowing(responses), float(np.median(measured))
    before = Fitted(Form(), np.zeros(0), unit) if start is None else Fitted.of(start, unit)
    full = Form.union([form, before.form])
    trial = _Trial(full, responses, unit, before.among(full), [full.names.index(name) for name in form.names])
    if not form.names:
        return Fitted(full, trial.offset, unit)
    starts = _starts(form, trial, measured) if near is None else [{}, near.beyond(before)]
    found = [_search(form, trial, measured, np.array([start.get(n, 0.0) for n in form.names])) for start in starts]
    return Fitted(full, trial.whole(min(found, key=lambda each: each[0])[1]), unit)


def _starts(form: Form, trial: _Trial, measured: Floats) -> list[Mapping[str, float]]:
    as_it_is, slopes = trial.logs(np.zeros(len(form.names)))
    shift = float(np.median(np.log(measured) - as_it_is))
    starts: list[Mapping[str, float]] = [{}, {"device": shift, "host": shift, "communication": shift}]
    if "host" in form.names and np.mean(slopes[:, form.names.index("host")]) > _HIDDEN:
        starts.append({"device": shift, "host": shift - 2.0, "communication": shift})
    if any(r.communication for r in trial.responses):  # hidden as well, and links of a catalog are often far off
        starts.append(_nearest(form, trial, measured, [{"communication": far} for far in _LINKS_GRID]))
    # A share of a core is a hundred times slower while its links are as listed, and between there and factors near 1 lies a hill.
    rough = [{"device": far, "host": far * alike} for far in _GRID for alike in (0.0, 1.0)]
    return [*starts, _nearest(form, trial, measured, rough)]


def _nearest(form: Form, trial: _Trial, measured: Floats, tries: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    def missed(start: Mapping[str, float]) -> float:
        logs = trial.logs(np.array([start.get(name, 0.0) for name in form.names]))[0]
        return float(np.abs(np.log(measured) - logs).mean())

    return min(tries, key=missed)


def _search(form: Form, trial: _Trial, measured: Floats, numbers: Floats) -> tuple[float, Floats]:
    """Gauss and Newton from a start: how unlikely the best numbers are, and they."""
    wanted = np.log(measured)
    low, high, wide = _bounds(form, trial, measured)
    seconds = np.array([level in ("fixed", "seconds") for level, _ in form.places], dtype=bool)
    best = np.inf, numbers
    for number in range(_ROUNDS):
        logs, slopes = trial.logs(numbers)
        errors = wanted - logs
        noise = _scatter(errors)
        weight, unlikely = _pull(form.tailed, numbers / wide)
        weight = weight / wide**2
        best = min(best, (_unlikely(errors, noise) + unlikely, numbers), key=lambda each: each[0])
        tail = _TAIL if number >= _TRUSTING else np.inf
        counts = (1 + (errors / noise) ** 2 / tail) ** -1 / noise**2
        way = _solved(slopes, errors, counts, weight, numbers, np.where(seconds, low, -np.inf))
        numbers = np.clip(numbers + np.clip(way, -1.0, 1.0), low, high)
        if np.abs(way).max() < _NEAR:
            break
    return best


def _bounds(form: Form, trial: _Trial, measured: Floats) -> tuple[Floats, Floats, Floats]:
    """The least and the most of each number on top of the offset, and one standard deviation of it."""
    high, wide = np.array([CROWDED if name == "crowding" else _FAR for name in form.names]), form.widths
    low, shortest = -high, dict[str, Seconds]()
    for response, took in zip(trial.responses, measured.tolist(), strict=True):
        name = _seconds_of(response.network)
        shortest[name] = min(took, shortest.get(name, took))
    for i, (level, name) in enumerate(form.places):
        if level == "fixed":
            low[i], high[i] = 0.0, 0.9 * float(measured.min()) / trial.unit
        elif level == "seconds":
            low[i], high[i] = 0.0, 0.9 * shortest[name] / trial.unit
            wide[i] *= shortest[name] / trial.unit
    before = trial.offset[trial.chosen]
    return low - before, high - before, wide


def _pull(tailed: npt.NDArray[np.bool_], deviations: Floats) -> tuple[Floats, float]:
    """How strongly the prior pulls each number, and how unlikely it finds them.

    Most kinds and families of operators are as they are believed to be, and a few are several times off: tails.
    """
    far = deviations**2
    weight = np.where(tailed, (_ODD + 1) / (_ODD + far), 1.0)
    return weight, float(np.where(tailed, (_ODD + 1) * np.log1p(far / _ODD), far).sum())


def _scatter(errors: Floats) -> float:
    """By how much steps scatter: as they do, but for the furthest, and as is usual where there are few."""
    noise = max(NOISE, 1.5 * float(np.median(np.abs(errors))))
    for _ in range(3):
        some = np.minimum(errors**2, (3 * noise) ** 2)
        noise = float(np.sqrt((SURE * NOISE**2 + some.sum()) / (SURE + len(errors))))
    return noise


def _unlikely(errors: Floats, noise: float) -> float:
    """Minus twice the log likelihood: Student's, with tails that let a wild measurement be one."""
    return float(
        ((_TAIL + 1) * np.log1p((errors / noise) ** 2 / _TAIL)).sum() + 2 * len(errors) * np.log(noise / NOISE)
    )


def slopes(form: Form, responses: Sequence[ProfileResponse]) -> Floats:
    """How log seconds change with each number, from a profile that changes nothing."""
    seconds = [float(np.exp(r.at(0.0, 0.0, 0.0).log)) for r in responses]
    none = np.zeros(len(form.names))
    return _Trial(form, responses, float(np.median(seconds)), none, list(range(len(none)))).logs(none)[1]


def _solved(slopes: Floats, errors: Floats, counts: Floats, weight: Floats, numbers: Floats, least: Floats) -> Floats:
    """The step of Gauss and Newton; numbers that would fall below their least go there, and the others follow."""
    matrix = (slopes * counts[:, None]).T @ slopes + np.diag(weight)
    right = (slopes * counts[:, None]).T @ errors - weight * numbers
    way, free = np.linalg.solve(matrix, right), np.ones(len(numbers), dtype=bool)
    while (below := free & (numbers + way < least)).any():
        free &= ~below
        way[~free] = least[~free] - numbers[~free]
        rest = right[free] - matrix[np.ix_(free, ~free)] @ way[~free]
        way[free] = np.linalg.solve(matrix[np.ix_(free, free)], rest)
    return np.asarray(way, dtype=np.float64)


class _Trial:
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
            for of in _OF_NETWORKS.values()
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

        def each(places: npt.NDArray[np.intp]) -> Floats:
            return np.where(places == _NOWHERE, 0.0, numbers[places]) if len(numbers) else np.zeros(len(places))

        scaled = self.shares * np.exp(self.by_part @ numbers + each(self.precision)[:, None] * _IS_ARITHMETIC)
        total = np.maximum(scaled.sum(1), 1e-30)
        of_network = each(self.network)
        links = self.responses.over_links(*(value(name) for name in LINKS))
        found = self.responses.at(
            np.log(total) + of_network, value("host") + of_network, value("communication") + links.log
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
        slopes *= (seconds / (seconds + fixed))[:, None]
        if "fixed" in self.place:
            slopes[:, self.place["fixed"]] = self.unit / (seconds + fixed)
        _put(slopes, self.own, self.unit / (seconds + fixed))
        return np.log(seconds + fixed), slopes


def _put(slopes: Floats, places: npt.NDArray[np.intp], column: Floats) -> None:
    """Each row's value in its own place, where it has one."""
    rows = np.flatnonzero(places != _NOWHERE)
    slopes[rows, places[rows]] = column[rows]
