"""The numbers of a profile that steps are fitted with, and the most likely ones for some measured steps.

Robust Gauss-Newton on the logarithms of predicted over measured seconds. A prior pulls towards a profile that changes
nothing: the device's factor is the least sure before anything was measured, then what one kind of operators has to itself,
then one family of them. What steps do not show stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.response import Response
from foretell.profile import ARITHMETIC, FAMILIES, KINDS, Profile
from foretell.units import Seconds
from foretell.workload import PRECISIONS

Floats = npt.NDArray[np.float64]

_KIND_OF: Final = {family: kind for kind, families in KINDS.items() for family in families}
_DEVICE: Final = (*FAMILIES, "gaps")  # what a device's time is made of: ops, and what lies between two of them
_IS_ARITHMETIC: Final = np.array([part in ARITHMETIC for part in _DEVICE])
LEVELS: Final = ("device", "host", "communication", "fixed", "kinds", "precisions", "families")
# One standard deviation of each number before anything was measured: of log factors, and of fixed seconds to the median step.
_WIDTHS: Final = {
    "device": 0.5,
    "host": 0.5,
    "communication": 1.0,
    "fixed": 0.05,
    "kinds": 0.25,
    "precisions": 0.5,
    "families": 0.15,
}
NOISE: Final = 0.1  # by which predicted and measured usually scatter, however well a profile fits
_SURE: Final = 4.0  # steps' worth of belief in that
_TAIL: Final = 4.0  # degrees of freedom of the scatter: wild measurements happen
_FAR: Final = 4.0  # a factor stays within e^4, fifty times, of 1
_SEEN: Final = 5e-4  # by which a factor must differ from 1 to be written
_ROUNDS: Final = 12
_HIDDEN: Final = 0.5  # of a step's time is the host's, on average
_NEAR: Final = 1e-3  # a round that changes no number by more is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Which numbers are fitted, and how wide their priors are, in usual widths."""

    levels: tuple[str, ...] = ()
    loose: float = 1.0

    @property
    def names(self) -> list[str]:
        further = {"kinds": list(KINDS), "families": list(FAMILIES), "precisions": list(PRECISIONS)}
        return [name for level in self.levels for name in further.get(level, [level])]

    @property
    def widths(self) -> Floats:
        further = {"kinds": len(KINDS), "families": len(FAMILIES), "precisions": len(PRECISIONS)}
        return np.array([
            _WIDTHS[level] * (self.loose if level in further else 1.0)
            for level in self.levels for _ in range(further.get(level, 1))
        ])  # fmt: skip

    def by_part(self) -> Floats:
        """Part of the device's time × number: which numbers multiply it."""
        chosen = [[name in ("device", part, _KIND_OF.get(part)) for name in self.names] for part in _DEVICE]
        return np.array(chosen, dtype=float).reshape(len(_DEVICE), len(self.names))


class Fitted:
    """Numbers of a form that were found."""

    def __init__(self, form: Form, numbers: Floats, unit: Seconds) -> None:
        self.form, self.numbers, self.unit = form, numbers, unit

    def profile(self, name: str) -> Profile:
        value = dict(zip(self.form.names, self.numbers.tolist(), strict=True))
        device, host, communication = (float(np.exp(value.get(n, 0.0))) for n in ("device", "host", "communication"))
        own = np.exp(self.form.by_part()[: len(FAMILIES)] @ self.numbers) / device
        families = {f: round(float(x), 4) for f, x in zip(FAMILIES, own, strict=True) if abs(x - 1) > _SEEN}
        precisions = {p: round(float(np.exp(value[p])), 4) for p in PRECISIONS if abs(value.get(p, 0.0)) > _SEEN}
        return Profile(
            name=name, device=device, host=host, communication=communication, fixed_seconds=self.fixed, families=families,
            precisions=precisions,
        )  # fmt: skip

    @property
    def fixed(self) -> Seconds:
        """Seconds that are added to each step."""
        names = self.form.names
        return float(self.numbers[names.index("fixed")]) * self.unit if "fixed" in names else 0.0

    def logs(self, responses: Sequence[Response]) -> Floats:
        return _Trial(self.form, responses, self.unit).logs(self.numbers)[0]


def fit(form: Form, responses: Sequence[Response], measured: Floats) -> Fitted:
    """The most likely numbers, from several starts: as it is, all times longer alike, and with nothing hidden."""
    trial = _Trial(form, responses, float(np.median(measured)))
    if not form.names:
        return Fitted(form, np.zeros(0), trial.unit)
    shift = float(np.median(np.log(measured) - trial.logs(np.zeros(len(form.names)))[0]))
    starts = [{}, {"device": shift, "host": shift, "communication": shift}]
    if "host" in trial.place and np.mean(trial.logs(np.zeros(len(form.names)))[1][:, trial.place["host"]]) > _HIDDEN:
        starts.append({"device": shift, "host": shift - 2.0, "communication": shift})
    if any(r.communication for r in responses):
        starts.append({"communication": 3.0})  # hidden as well, and links of a catalog are often far off
    found = [_search(form, trial, measured, np.array([start.get(n, 0.0) for n in form.names])) for start in starts]
    return Fitted(form, min(found, key=lambda each: each[0])[1], trial.unit)


def _search(form: Form, trial: _Trial, measured: Floats, numbers: Floats) -> tuple[float, Floats]:
    """Gauss and Newton from a start: how unlikely the best numbers are, and they."""
    wanted, weight = np.log(measured), 1 / form.widths**2
    fixed = trial.place.get("fixed")
    high = np.full(len(numbers), _FAR)
    low = -high
    if fixed is not None:
        low[fixed], high[fixed] = 0.0, 0.9 * float(measured.min()) / trial.unit
    best = np.inf, numbers
    for _ in range(_ROUNDS):
        logs, slopes = trial.logs(numbers)
        errors = wanted - logs
        noise = _scatter(errors)
        best = min(best, (_unlikely(errors, noise) + float(weight @ numbers**2), numbers), key=lambda each: each[0])
        counts = (1 + (errors / noise) ** 2 / _TAIL) ** -1 / noise**2
        way = _solved(slopes, errors, counts, weight, numbers, fixed)
        numbers = np.clip(numbers + np.clip(way, -1.0, 1.0), low, high)
        if np.abs(way).max() < _NEAR:
            break
    return best


def _scatter(errors: Floats) -> float:
    """By how much steps scatter: as they do, but for the furthest, and as is usual where there are few."""
    noise = max(NOISE, 1.5 * float(np.median(np.abs(errors))))
    for _ in range(3):
        some = np.minimum(errors**2, (3 * noise) ** 2)
        noise = float(np.sqrt((_SURE * NOISE**2 + some.sum()) / (_SURE + len(errors))))
    return noise


def _unlikely(errors: Floats, noise: float) -> float:
    """Minus twice the log likelihood: Student's, with tails that let a wild measurement be one."""
    return float(
        ((_TAIL + 1) * np.log1p((errors / noise) ** 2 / _TAIL)).sum() + 2 * len(errors) * np.log(noise / NOISE)
    )


def slopes(form: Form, responses: Sequence[Response]) -> Floats:
    """How log seconds change with each number, from a profile that changes nothing."""
    seconds = [float(np.exp(r.at(0.0, 0.0, 0.0).log)) for r in responses]
    return _Trial(form, responses, float(np.median(seconds))).logs(np.zeros(len(form.names)))[1]


def _solved(
    slopes: Floats, errors: Floats, counts: Floats, weight: Floats, numbers: Floats, fixed: int | None
) -> Floats:
    """The step of Gauss and Newton; fixed seconds that would fall below none go to none."""
    matrix = (slopes * counts[:, None]).T @ slopes + np.diag(weight)
    right = (slopes * counts[:, None]).T @ errors - weight * numbers
    way = np.linalg.solve(matrix, right)
    if fixed is not None and numbers[fixed] + way[fixed] < 0:
        others = np.arange(len(numbers)) != fixed
        way = np.full(len(numbers), -numbers[fixed])
        rest = right[others] + matrix[others, fixed] * numbers[fixed]
        way[others] = np.linalg.solve(matrix[np.ix_(others, others)], rest)
    return np.asarray(way, dtype=np.float64)


class _Trial:
    """Logarithms of predicted seconds, and how they change with each number of a form."""

    def __init__(self, form: Form, responses: Sequence[Response], unit: Seconds) -> None:
        self.responses, self.unit, self.by_part = responses, unit, form.by_part()
        self.place = {name: i for i, name in enumerate(form.names)}
        seconds = np.array([r.device for r in responses])
        self.shares = seconds / np.maximum(seconds.sum(1, keepdims=True), 1e-30)

    def logs(self, numbers: Floats) -> tuple[Floats, Floats]:
        def value(name: str) -> float:
            return float(numbers[self.place[name]]) if name in self.place else 0.0

        own = np.array([value(r.precision) for r in self.responses])
        scaled = self.shares * np.exp(self.by_part @ numbers + own[:, None] * _IS_ARITHMETIC)
        total = np.maximum(scaled.sum(1), 1e-30)
        host, wire = value("host"), value("communication")
        found = [r.at(d, host, wire) for r, d in zip(self.responses, np.log(total).tolist(), strict=True)]
        seconds = np.exp([s.log for s in found])
        fixed = value("fixed") * self.unit
        slopes = np.array([s.device for s in found])[:, None] * (scaled / total[:, None]) @ self.by_part
        for name, column in (("host", [s.host for s in found]), ("communication", [s.communication for s in found])):
            if name in self.place:
                slopes[:, self.place[name]] = column
        arithmetic = np.array([s.device for s in found]) * (scaled / total[:, None])[:, _IS_ARITHMETIC].sum(1)
        for name in PRECISIONS:
            if name in self.place:
                slopes[:, self.place[name]] = np.where([r.precision == name for r in self.responses], arithmetic, 0.0)
        slopes *= (seconds / (seconds + fixed))[:, None]
        if "fixed" in self.place:
            slopes[:, self.place["fixed"]] = self.unit / (seconds + fixed)
        return np.log(seconds + fixed), slopes
