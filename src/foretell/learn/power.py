"""Steps that ran for seconds → what the parts of a board draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from foretell.cost.power import Power, Use

LIMIT: Final = 0.985  # of its limit, what a board draws that lowers its clock to keep it
# 59 steps of an H200 with a kernel running for a tenth of the time at most drew 0.195 of its limit, 0.025 of it for their kernels.
IDLE: Final = 0.17


class AtLimit(NamedTuple):
    """A step that would draw more than the limit: parts of its time at full clock, and how many times longer it takes at the
    clock that the limit allows."""

    kind: str  # products alone are one kind, however many sizes ran
    use: Use
    longer: float


def fit_power(steps: Sequence[tuple[Use, float]], above: Sequence[AtLimit] = (), follows: float = 0.0) -> Power:
    """Least squares over relative errors; no part draws less than nothing.

    Steps at the limit say only that their parts would draw more, and are left out; but where it is known how many times longer
    they took, what they would draw `follows` from it.
    """
    from scipy.optimize import nnls

    known = [(use, share, 1.0) for use, share in steps if share < LIMIT]
    units, kinds = list(known[0][0].units), Counter(step.kind for step in above)
    for step in above if follows else ():
        known.append((step.use, LIMIT * step.longer ** (1 / follows), 1 / kinds[step.kind]))
    table = np.array([[use.busy, *(use.units[unit] for unit in units), use.memory] for use, _, _ in known])
    share = np.array([share - IDLE * (1 - use.busy) for use, share, _ in known])
    weight = np.array([counts / share for _, share, counts in known])
    (busy, *parts, memory), _ = nnls(table * weight[:, None], share * weight)
    return Power(
        idle=IDLE, busy=float(busy), units=dict(zip(units, map(float, parts), strict=True)), memory=float(memory), most=LIMIT,
        follows=follows,
    )  # fmt: skip


def fit_follows(limits: Sequence[tuple[float, float]]) -> float:
    """By which power of a lowered limit steps take longer: from pairs of how many times lower and how many times longer."""
    lower, longer = np.log(np.array(limits)).T
    return float(lower @ longer / (lower @ lower))
