"""Settings that a forecast is adapted to: step times of one device or cluster, drawn from and tested on.

What is drawn and what is tested share no part, which is an architecture, a shape or a model size. Parts whose name has an
odd hash are blind: nothing was chosen by them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Final

from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.units import Seconds

NUMBERS: Final = (5, 10, 20, 50)  # of step times that are drawn
MOST_DRAWN: Final = 54  # rows of a setting that may be drawn
MOST_OPEN: Final = 16  # rows that are tested, of parts by which things may be chosen
MOST_BLIND: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured step, as a question to `forecast`."""

    key: str
    load: Callable[[], Graph | None]  # None: today's libraries no longer build it
    cluster: Cluster
    plan: Plan
    seconds: Seconds
    part: str  # what is drawn or tested together
    network: str
    software: str | None = None  # of which time, where it is known

    @property
    def blind(self) -> bool:
        return is_blind(self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    drawn: Sequence[Row]
    tested: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A line of the table. `others` are rows of another device, which pre-training may use."""

    source: str
    name: str
    folds: Sequence[Fold]
    others: Sequence[Row] = ()
    numbers: Sequence[int] = NUMBERS  # of step times
    left_out: Mapping[str, int]

    @property
    def rows(self) -> list[Row]:
        return [*self.others, *(row for fold in self.folds for row in (*fold.drawn, *fold.tested))]


def is_blind(part: str) -> bool:
    return int(_hash(part)[-1], 16) % 2 == 1


def is_tested(part: str) -> bool:
    """Whether profiles are judged by it, and fitted on none of its steps."""
    return is_blind(part) or int(_hash(part)[-2], 16) % 3 == 0


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_hash(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (_hash(row.part), _hash(row.key)))


def halves(rows: Iterable[Row]) -> Fold:
    """Two thirds of the parts that are not blind are drawn from; their other third and blind ones are tested."""
    drawn, tested, blind = list[Row](), list[Row](), list[Row]()
    for row in _by_hash(rows):
        (blind if row.blind else tested if is_tested(row.part) else drawn).append(row)
    return Fold(drawn=drawn[:MOST_DRAWN], tested=tested[:MOST_OPEN] + blind[:MOST_BLIND])


def left_out_in_turn(rows: Sequence[Row], drawn: int, tested: int) -> list[Fold]:
    """For few parts: two groups of them with about as many rows, each tested with what the other has."""
    counts = Counter(row.part for row in rows)
    groups: tuple[list[str], list[str]] = ([], [])
    for part in sorted(counts, key=lambda part: (-counts[part], _hash(part))):
        min(groups, key=lambda group: sum(counts[p] for p in group)).append(part)
    return [
        Fold(
            drawn=some((row for row in rows if row.part not in parts), drawn),
            tested=some((row for row in rows if row.part in parts), tested),
        )
        for parts in groups
    ]


def some(rows: Iterable[Row], most: int) -> list[Row]:
    """As many of each network where there are enough, whatever the order of rows."""
    networks: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: _hash(row.key)):
        networks.setdefault(row.network, []).append(row)
    turns = zip_longest(*networks.values())
    return list(islice((row for turn in turns for row in turn if row is not None), most))
