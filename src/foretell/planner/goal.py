"""What a search is for: a deadline, a budget, or neither, and how surely they are kept."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.errors import InputError, check_number
from foretell.planner.result import Choice
from foretell.units import Dollars, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a job must keep to, and how sure that shall be.

    Attributes:
        deadline: Seconds that it may take; None: any.
        budget: Dollars that it may cost; None: any.
        confidence: The probability of keeping to both, and of fitting into memory, that a choice needs.

    Examples:
        >>> foretell.Goal(deadline=36 * 3600.0, budget=5000.0).confidence
        0.9
    """

    deadline: Seconds | None = None
    budget: Dollars | None = None
    confidence: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("deadline", self.deadline), ("budget", self.budget)):
            if value is not None:
                check_number(name, value, "more than 0", InputError, least=1e-9)
        check_number(
            "confidence", self.confidence, "a probability from 0.5 to 0.999", InputError, least=0.5, most=0.999
        )

    def odds(self, choice: Choice) -> dict[str, float | None]:
        """The probability with which a choice keeps each requirement; None where there is no such requirement."""
        return {
            "memory": choice.fit_probability,
            "deadline": choice.deadline_probability,
            "budget": choice.budget_probability,
        }

    def missed_by(self, choice: Choice) -> list[str]:
        """The requirements that a choice does not surely keep."""
        missed = [name for name, p in self.odds(choice).items() if p is not None and p < self.confidence]
        if self.budget is not None and choice.cost is None:
            missed.append("budget")
        return missed
