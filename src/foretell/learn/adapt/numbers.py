"""The numbers of a profile that steps are fitted with, and the most likely ones for some measured steps.

Robust Gauss-Newton on the logarithms of predicted over measured seconds. A prior pulls towards a profile that changes
nothing: the device's factor is the least sure before anything was measured, then what one kind of operators has to itself,
then one family of them. What steps do not show stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.fitted import Fitted
from foretell.learn.adapt.form import Form, name_of_seconds
from foretell.learn.adapt.trial import Trial
from foretell.profile import CROWDED, Profile
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]

NOISE: Final = 0.1  # by which predicted and measured usually scatter, however well a profile fits
SURE: Final = 4.0  # steps' worth of belief in that
_TAIL: Final = 4.0  # degrees of freedom of the scatter: wild measurements happen
_ODD: Final = 2.0  # degrees of freedom of their priors
_TRUSTING: Final = 3  # first rounds in which no measurement is taken to be wild: several together may tell of a family
_FAR: Final = (
    7.0  # a factor stays within e^7, a thousand times, of 1: a host with a part of a core is a hundredth of a socket
)
_ROUNDS: Final = 12
_GRID: Final = (0.0, 2.0, 4.0, 6.0)  # e-folds of the device
# E-folds of communication: it shows from one on, and is hidden below.
_LINKS_GRID: Final = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
_HIDDEN: Final = 0.5  # of a step's time is the host's, on average
_NEAR: Final = 1e-3  # a round that changes no number by more is the last


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
    trial = Trial(full, responses, unit, before.among(full), [full.names.index(name) for name in form.names])
    if not form.names:
        return Fitted(full, trial.offset, unit)
    starts = _starts(form, trial, measured) if near is None else [{}, near.beyond(before)]
    found = [_search(form, trial, measured, np.array([start.get(n, 0.0) for n in form.names])) for start in starts]
    return Fitted(full, trial.whole(min(found, key=lambda each: each[0])[1]), unit)


def _starts(form: Form, trial: Trial, measured: Floats) -> list[Mapping[str, float]]:
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


def _nearest(form: Form, trial: Trial, measured: Floats, tries: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    def missed(start: Mapping[str, float]) -> float:
        logs = trial.logs(np.array([start.get(name, 0.0) for name in form.names]))[0]
        return float(np.abs(np.log(measured) - logs).mean())

    return min(tries, key=missed)


def _search(form: Form, trial: Trial, measured: Floats, numbers: Floats) -> tuple[float, Floats]:
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


def _bounds(form: Form, trial: Trial, measured: Floats) -> tuple[Floats, Floats, Floats]:
    """The least and the most of each number on top of the offset, and one standard deviation of it."""
    high, wide = np.array([CROWDED if name == "crowding" else _FAR for name in form.names]), form.widths
    low, shortest = -high, dict[str, Seconds]()
    for response, took in zip(trial.responses, measured.tolist(), strict=True):
        name = name_of_seconds(response.network)
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
    return Trial(form, responses, float(np.median(seconds)), none, list(range(len(none)))).logs(none)[1]


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
