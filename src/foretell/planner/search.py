"""How a search is done: where, with or without what earlier ones found, and whether plans are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError, check_count, check_number
from foretell.planner.pool import Runner
from foretell.plans import Plan
from foretell.units import Seconds

Run = Callable[[Plan, int], Seconds | None]  # a step's seconds with a plan and a micro-batch; None: it failed
GAIN: Final = 0.03  # expected improvement, as a part of the best, below which no other plan is run


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a search is done.

    Attributes:
        workers: Processes of this machine; or a `runner` of another place.
        cache: Whether captures and outcomes of earlier searches are used.
        measure: `measure(plan, batch)` runs a few steps and returns the seconds of one, or None where it fails: at most
            `runs` of the plans on the recommended cluster are tried, until none promises to be better by `gain`.

    Examples:
        >>> foretell.Search(measure=lambda plan, batch: 0.25).runs
        10
    """

    workers: int = 1
    runner: Runner | None = None
    cache: bool = True
    measure: Run | None = None
    runs: int = 10
    gain: float = GAIN

    def __post_init__(self) -> None:
        check_count("workers", self.workers, InputError)
        check_count("runs", self.runs, InputError)
        check_number("gain", self.gain, "a part of a step's time from 0 to 1, like 0.03", InputError, most=1.0)
