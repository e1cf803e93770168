"""Steps that ran for seconds → what the parts of a board draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from foretell.cost.power import Power, Use

LIMIT: Final = 0.985  # of its limit, what a board draws that lowers its clock to keep it
# 59 steps of an H200 with a kernel running for a tenth of the time at most drew 0.195 of its limit, 0.025 of it for their kernels.
IDLE: Final = 0.17


def fit_power(steps: Sequence[tuple[Use, float]]) -> Power:
    """Least squares over relative errors; no part draws less than nothing.

    Steps at the limit say only that their parts would draw more, and are left out.
    """
    from scipy.optimize import nnls

    below = [(use, share) for use, share in steps if share < LIMIT]
    units = list(below[0][0].units)
    table = np.array([[use.busy, *(use.units[unit] for unit in units), use.memory] for use, _ in below])
    share = np.array([share - IDLE * (1 - use.busy) for use, share in below])
    measured = np.array([share for _, share in below])
    (busy, *parts, memory), _ = nnls(table / measured[:, None], share / measured)
    return Power(
        idle=IDLE, busy=float(busy), units=dict(zip(units, map(float, parts), strict=True)), memory=float(memory), most=LIMIT
    )  # fmt: skip
