"""How much wider than a normal distribution's an interval is that rests on few units: Student's factor for as many."""

from __future__ import annotations

from typing import Final

from foretell.distribution import TAILS, Z90

SHRINKS: Final = 2  # units that those of other groups together count as beside a group's own


def students_factor(units: int) -> float:
    """Over an interval that would be right if a group's deviation were known; `units` of its own say it, and all others."""
    from scipy.stats import t as student

    return float(student.ppf(TAILS[1], units + SHRINKS)) / Z90
