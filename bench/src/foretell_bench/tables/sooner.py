"""How much sooner a tailored network of Driple's is as good as one from scratch, and its errors over those of others.

As good: the error of validation stays within 5 % of the least that the one from scratch has, the first of five epochs in a row
whose median does, looked for from the epoch before any update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

Results = Mapping[str, Any]
SCRATCH: Final = "from scratch"
_WITHIN: Final = 1.05
_IN_A_ROW: Final = 5


def needed(curve: Sequence[Sequence[float]], level: float) -> int | None:
    """Epochs until the error stays at most at a level; 0 where it is there before any update."""
    for i in range(len(curve) - _IN_A_ROW + 1):
        if median(error for _, error in curve[i : i + _IN_A_ROW]) <= level:
            return int(curve[i][0])
    return None


def times_fewer(results: Results, way: str) -> list[float]:
    """Of each fit: epochs from scratch over those of a tailored network, at least one each; 0 where it never is as good."""
    found = []
    for key, one in results.get(way, {}).items():
        scratch = results[SCRATCH][key]["curve"]
        level = _WITHIN * min(error for _, error in scratch)
        own, whole = needed(one["curve"], level), needed(scratch, level)
        found.append(0.0 if own is None else max(whole or 1, 1) / max(own, 1))
    return found


def ratios(results: Results, over: str) -> list[float]:
    """Driple's error over another's, fit by fit."""
    return [one["error"]["after Driple"] / one["error"][over] for one in results.get(SCRATCH, {}).values()]
