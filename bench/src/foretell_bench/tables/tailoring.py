"""The figures of `foretell bench transfer`: errors and bars, and what it takes to be as good as training from scratch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from foretell.units import Seconds
from foretell_bench.research.few_rows import LEARNED
from foretell_bench.sources.adapted import BARS
from foretell_bench.tables.figures import Figure
from foretell_bench.tables.transfer import OURS, RANDOM, ZERO_SHOT, Line

STEPS: Final = 50  # that are run for one step time


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The fewest step times from which on the error stays at most at a level, and the seconds to run and to fit them."""

    number: int
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tailored:
    """Against the best that learns from scratch, at the error which that ends with."""

    setting: str
    rival: str
    level: float
    ours: Need | None  # None: not reached
    scratch: Need

    @property
    def ratio(self) -> float | None:
        """How many times as many step times from scratch; None where ours needs none at all."""
        return self.scratch.number / self.ours.number if self.ours is not None and self.ours.number else None

    @property
    def time_ratio(self) -> float | None:
        """How many times as long from scratch, with what is run for each step time and the fit; None likewise."""
        return self.scratch.seconds / self.ours.seconds if self.ours is not None and self.ours.seconds else None


def settings(lines: Sequence[Line]) -> Iterator[tuple[str, str, list[Line]]]:
    for source, name in dict.fromkeys((line.source, line.name) for line in lines):
        yield source, name, [line for line in lines if (line.source, line.name) == (source, name)]


def curve(lines: Sequence[Line], method: str, drawn: str = RANDOM) -> dict[int, Line]:
    """Number of step times → the line, in order; a forecast needs none to begin with."""
    first = [line for line in lines if method == OURS and line.method == ZERO_SHOT and line.number == 0]
    own = [line for line in lines if line.method == method and line.drawn == drawn]
    return {line.number: line for line in sorted([*first, *own], key=lambda line: line.number)}


def tailored(lines: Sequence[Line]) -> list[Tailored]:
    found = []
    for source, name, own in settings(lines):
        ends = {method: last for method in LEARNED if (last := list(curve(own, method).values())[-1:])}
        if not ends:
            continue
        rival = min(ends, key=lambda method: ends[method][0].mean)
        level = ends[rival][0].mean
        scratch = _need(curve(own, rival), level)
        assert scratch is not None
        ours = _need(curve(own, OURS), level)
        found.append(Tailored(setting=f"{source}: {name}", rival=rival, level=level, ours=ours, scratch=scratch))
    return found


def _need(curve: dict[int, Line], level: float) -> Need | None:
    enough: Line | None = None
    for line in curve.values():
        if line.mean > level:
            enough = None  # an error must stay there
        elif enough is None:
            enough = line
    if enough is None:
        return None
    return Need(number=enough.number, seconds=STEPS * (enough.measured_seconds or 0.0) + (enough.fit_seconds or 0.0))


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Of each setting ours first, then rivals on the same rows, then intervals."""
    found = []
    for source, name, own in settings(lines):
        title, zero = f"{source}: {name}", curve(own, OURS)[0]
        for line in own:
            named = f"{line.method}, {line.number} {line.drawn} step times" if line.number else line.method
            ours = line.method == OURS
            bar = BARS[source].get(line.number) if ours else None
            found.append(
                Figure(
                    source=title, measure=f"{named}, mean error", value=line.mean, bar=bar, rows=line.rows,
                    zero_shot=zero.mean if ours else None,
                )
            )  # fmt: skip
            if line.blind is not None and ours:
                found.append(
                    Figure(source=title, measure=f"{named}, mean error of blind rows", value=line.blind, zero_shot=zero.blind)
                )  # fmt: skip
            if line.inside is not None:
                inside = f"{named}, inside the 90% interval, {line.width:.1f} × wide"
                found.append(Figure(source=title, measure=inside, value=line.inside, at_least=True, rows=line.rows))
    return found + [_ratio(each) for each in tailored(lines)]


def _ratio(each: Tailored) -> Figure:
    ours = "is never as good" if each.ours is None else f"needs {each.ours.number}"
    note = f"{each.rival} needs {each.scratch.number} step times for {each.level:.1%}, a profile {ours}"
    return Figure(source=each.setting, measure="error at which training from scratch ends", value=each.level, note=note)
