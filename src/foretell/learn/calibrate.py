"""Steps foretold while their family was left out → how wide intervals must be, and whether they held."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.calibration import LEVEL, Calibration, draw_steps
from foretell.learn.holdout import Foretold

Floats = npt.NDArray[np.float64]
Hit = tuple[str, bool, float]  # architecture, inside, high ÷ low
_FLOOR: Final = 0.01
_UNKNOWN: Final = 0.5  # an op no model knows is off by about this; too few were measured to say more
_MOST: Final = 2.0  # logarithm beyond which an error says no more
_WELL_SEEN: Final = 3.0  # whole architectures' worth of a family of ops that say how far off it is
_DOUBT: Final = 0.3  # architectures' worth of being as far off as the worst of those: what was seen little may be


def calibrate(steps: Sequence[Foretold]) -> Calibration:
    """Every architecture counts the same, however often it was measured."""
    weights = _by_architecture(steps)
    families = _families(steps, weights)
    loose = Calibration(
        families=families, other=max(families.values(), default=0.3), floor=_FLOOR, unknown=_UNKNOWN, device=1.0,
        pairs=(), host=0.0, margin=0.0,
    )  # fmt: skip
    spreads = np.array([_spread(loose, s) for s in steps])
    device = np.array([math.log(s.device / s.device_said) for s in steps]) / spreads
    host = np.array([math.log(s.host / s.host_said) for s in steps])
    pairs = np.c_[device, host]
    margin = []
    for s, spread in zip(steps, spreads, strict=True):
        drawn = draw_steps(s.curve, pairs, float(spread))
        low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        low, high = min(low, s.period_said), max(high, s.period_said)
        margin.append(max(math.log(low / s.period), math.log(s.period / high)))
    return Calibration(
        families=families, other=loose.other, floor=_FLOOR, unknown=_UNKNOWN, device=_quantile(np.abs(device), weights),
        pairs=[(round(a, 4), round(b, 4)) for a, b in pairs.tolist()], host=_quantile(np.abs(host), weights),
        margin=_quantile(np.array(margin), weights),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of intervals on groups that neither the model nor the intervals had seen."""

    what: str  # device or step
    group: str  # "" for all
    architectures: int
    inside: float  # part of the architectures' steps that fell inside
    width: float  # median of high ÷ low
    p_value: float  # exact binomial, both ways, of nine in ten


def coverage(steps: Sequence[Foretold]) -> list[Coverage]:
    """Each group is held against intervals calibrated on the others; nothing is said of one alone."""
    inside: dict[str, dict[str, list[Hit]]] = {"device": {}, "step": {}}
    names = sorted({s.group for s in steps})
    if len(names) < 2:
        return []
    for group in names:
        calibration = calibrate([s for s in steps if s.group != group])
        for what, hits in hits_of([s for s in steps if s.group == group], calibration).items():
            inside[what][group] = hits
    found = []
    for what, groups in inside.items():
        found.append(coverage_of(what, "", [row for rows in groups.values() for row in rows]))
        found += [coverage_of(what, group, rows) for group, rows in sorted(groups.items(), key=lambda t: -len(t[1]))]
    return found


def hits_of(steps: Sequence[Foretold], calibration: Calibration) -> dict[str, list[Hit]]:
    """Of device and step intervals, whether each held what was measured."""
    hits: dict[str, list[Hit]] = {"device": [], "step": []}
    for s in steps:
        spread = _spread(calibration, s)
        for what, true, (low, high) in (
            ("device", s.device, calibration.device_range(s.device_said, spread)),
            ("step", s.period, calibration.step_range(s.curve, spread)),
        ):
            hits[what].append((s.source, low <= true <= high, high / low))
    return hits


def coverage_of(what: str, group: str, rows: Sequence[Hit]) -> Coverage:
    from scipy.stats import binomtest

    by_source: dict[str, list[bool]] = defaultdict(list)
    for source, hit, _ in rows:
        by_source[source].append(hit)
    part = float(np.mean([np.mean(hits) for hits in by_source.values()]))
    count = len(by_source)
    return Coverage(
        what=what, group=group, architectures=count, inside=part, width=float(np.median([w for _, _, w in rows])),
        p_value=float(binomtest(round(part * count), count, LEVEL).pvalue),
    )  # fmt: skip


def _spread(calibration: Calibration, step: Foretold) -> float:
    return calibration.spread({family: said for family, (said, _) in step.parts.items()}, step.unknown)


def _families(steps: Sequence[Foretold], weights: Floats) -> dict[str, float]:
    """Of each family of ops, the spread of its log error in steps, each counting by the part of the step it takes."""
    squares: dict[str, float] = defaultdict(float)
    amounts: dict[str, float] = defaultdict(float)
    for s, weight in zip(steps, weights, strict=True):
        for family, (said, measured) in s.parts.items():
            if said > 0 and measured > 0:
                error = max(-_MOST, min(_MOST, math.log(measured / said)))
                squares[family] += weight * (said / s.device_said) * error**2
                amounts[family] += weight * (said / s.device_said)
    well = [f for f, amount in amounts.items() if amount >= _WELL_SEEN] or list(amounts)
    worst = max((squares[f] / amounts[f] for f in well), default=0.0)
    return {f: round(math.sqrt((squares[f] + _DOUBT * worst) / (amounts[f] + _DOUBT)), 4) for f in amounts}


def _by_architecture(steps: Sequence[Foretold]) -> Floats:
    often = Counter(s.source for s in steps)
    return np.array([1 / often[s.source] for s in steps])


def _quantile(values: Floats, weights: Floats) -> float:
    """The value below which LEVEL of the weight lies, one more unseen architecture counted."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    wanted = LEVEL * (reached[-1] + 1)
    return float(values[order][min(int(np.searchsorted(reached, wanted)), len(values) - 1)])
