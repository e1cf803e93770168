"""How unevenly rows fall on ranks that share experts: the rank with the busiest experts sets the pace of all."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from foretell.graph import Signature
from foretell.graph.operators import operator_of
from foretell.program import Role
from foretell.simulate.jitter import slowest_of
from foretell.simulate.step import Floats

LANE: Final = "ep"  # of the collectives that transfer rows to experts and back


def busiest(role: Role, given: float | None) -> float:
    """Rows of the busiest rank over the average: as given, or by chance where every row takes any expert alike.

    The share of n ranks in R rows each varies by √((1 − 1/n)/R) of itself; the largest of the n counts.
    """
    sharing = next((c.group.size for c in role.collectives if c.lane == LANE and c.kind == "all-to-all"), 1)
    if sharing == 1 or given is not None:
        return 1.0 if sharing == 1 else given or 1.0
    forward = (op.signature for op in role.graph.ops if _is_grouped(op.signature) and op.phase == "forward")
    rows = min((signature.inputs[0].shape[0] for signature in forward), default=0)
    return slowest_of(sharing, math.sqrt((1 - 1 / sharing) / rows)) if rows else 1.0


def _is_grouped(signature: Signature) -> bool:
    return operator_of(signature.name).kind == "grouped"


def skewed(role: Role, seconds: Floats, skew: float) -> Floats:
    """Times of ops on the busiest rank: its grouped products have more rows to do."""
    if skew == 1.0:
        return seconds
    factors: Floats = np.array(
        role.graph.calls.each(lambda call: skew if _is_grouped(call.signature) else 1.0), dtype=float
    )
    return seconds * factors
