"""A law: what no forecast may break, over what, how far it may be off and why, and the check itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.laws.answers import Answer, Answers, Case
    from foretell.laws.scope import Scope

ROUNDING: Final = 1e-9  # of sums of numbers that are equal on paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far beyond its limit a number may be, as a part of it, and the reason."""

    part: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A number that must be at most its limit, and where both are from."""

    where: str
    number: float
    limit: float

    @property
    def beyond(self) -> float:
        """How far the number is beyond its limit, as a part of it; negative where it is not."""
        if self.limit == 0:
            return 0.0 if self.number <= 0 else float("inf")
        return (self.number - self.limit) / abs(self.limit)


Compare = Callable[["Scope", "Answers"], Iterator[Compared]]
CompareOne = Callable[["Case", "Answer"], Iterator[Compared]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What no forecast may break.

    Attributes:
        says: The law, in a sentence.
        over: What it is checked over.
        tolerance: How far it may be broken, with the reason.
        compare: Asks for answers, and compares numbers of them.
        of_one: Whether it is checked of every answer, those that other laws asked for too.
    """

    name: str
    says: str
    over: str
    tolerance: Tolerance
    compare: Compare
    of_one: bool = False

    def is_broken(self, compared: Compared) -> bool:
        return not compared.beyond <= max(self.tolerance.part, ROUNDING)  # NaN breaks every law

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """By name: other processes have the same laws, and functions made of functions cannot be pickled."""
        return _named, (self.name,)


LAWS: Final[dict[str, Law]] = {}
_EXACT: Final = Tolerance(part=0.0, why="none: both are sums of the same numbers")


def law(says: str, over: str, tolerance: Tolerance = _EXACT) -> Callable[[Compare], Compare]:
    """Register a law between answers, named for its function."""

    def register(compare: Compare) -> Compare:
        _add(Law(name=_name(compare), says=says, over=over, tolerance=tolerance, compare=compare))
        return compare

    return register


def law_of_one(says: str, tolerance: Tolerance = _EXACT) -> Callable[[CompareOne], CompareOne]:
    """Register a law that each answer obeys by itself, named for its function."""

    def register(compare: CompareOne) -> CompareOne:
        def every(scope: Scope, answers: Answers) -> Iterator[Compared]:
            for case, answer in answers.known():
                yield from compare(case, answer)

        _add(Law(name=_name(compare), says=says, over="every answer", tolerance=tolerance, compare=every, of_one=True))
        return compare

    return register


def _add(found: Law) -> None:
    if found.name in LAWS:
        raise ValueError(f"the law {found.name!r} is there already. Choose another name.")
    LAWS[found.name] = found


def _name(compare: Callable[..., object]) -> str:
    return compare.__name__.replace("_", "-")


def equal(where: str, one: float, other: float) -> Iterator[Compared]:
    """Two numbers that must be the same."""
    yield Compared(where=where, number=one, limit=other)
    yield Compared(where=where, number=other, limit=one)


def _named(name: str) -> Law:
    return LAWS[name]
