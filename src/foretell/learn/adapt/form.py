"""Which numbers a profile is fitted with: levels of growing detail, each with a number or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.profile_response import ProfileResponse
from foretell.precision import PRECISIONS
from foretell.profile import FAMILIES, KINDS

Floats = npt.NDArray[np.float64]

_KIND_OF: Final = {family: kind for kind, families in KINDS.items() for family in families}
PARTS: Final = (*FAMILIES, "gaps")  # what a device's time is made of: ops, and what lies between two of them
LINKS: Final = ("crowding", "neighbours")
_NOWHERE: Final = -1  # the place of a number that a form does not have
LEVELS: Final = (
    "device",
    "host",
    "communication",
    "fixed",
    "links",
    "kinds",
    "precisions",
    "families",
    "ranks",
    "networks",
    "seconds",
)
# One standard deviation of each number before anything was measured: of log factors, of fixed seconds to the median step, of
# a network's own seconds to its shortest, of the exponent of crowding, and of what steps of as many ranks share.
_WIDTHS: Final = {
    "device": 0.5,
    "host": 0.5,
    "communication": 1.0,
    "fixed": 0.05,
    "links": 1.5,
    "kinds": 0.25,
    "precisions": 0.5,
    "families": 0.15,
    "ranks": 0.5,
    "networks": 0.3,
    "seconds": 0.3,
}
_NAMES: Final = {
    "links": LINKS,
    "kinds": tuple(KINDS),
    "families": FAMILIES,
    "precisions": PRECISIONS,
}  # of levels with many
_TAILED: Final = ("device", "host", "kinds", "families", "networks", "ranks")
RANKS: Final = "ranks"
OF_RANKS: Final = ("host", "communication")  # what has a factor of its own with so many ranks
_OFTEN: Final = 4  # steps of as many ranks that have numbers of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Which numbers are fitted."""

    levels: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()  # that have factors, or seconds of their own
    ranks: tuple[int, ...] = ()  # numbers of them, whose host and communication have factors

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.places]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The level and the name of each number."""
        return [(level, name) for level in self.levels for name in self._names(level)]

    @property
    def widths(self) -> Floats:
        return np.array([_WIDTHS[level] for level, _ in self.places])

    @property
    def tailed(self) -> npt.NDArray[np.bool_]:
        return np.array([level in _TAILED for level, _ in self.places], dtype=bool)

    def _names(self, level: str) -> tuple[str, ...]:
        if level in _OF_NETWORKS:
            return tuple(map(_OF_NETWORKS[level], self.networks))
        if level == RANKS:
            return tuple(name_of_ranks(what, ranks) for ranks in self.ranks for what in OF_RANKS)
        return _NAMES.get(level, (level,))

    def knowing(self, responses: Sequence[ProfileResponse]) -> Form:
        """With numbers for each of their networks and for how many ranks they have, where the form has those."""
        have = any(level in _OF_NETWORKS for level in self.levels)
        networks = tuple(sorted({r.network for r in responses})) if have else ()
        return replace(self, networks=networks, ranks=worlds(responses) if RANKS in self.levels else ())

    @staticmethod
    def union(forms: Sequence[Form]) -> Form:
        """The numbers that any of them has."""
        return Form(
            levels=tuple(level for level in LEVELS if any(level in form.levels for form in forms)),
            networks=tuple(sorted({network for form in forms for network in form.networks})),
            ranks=tuple(sorted({ranks for form in forms for ranks in form.ranks})),
        )

    def by_part(self) -> Floats:
        """Part of the device's time × number: which numbers multiply it."""
        chosen = [[name in ("device", part, _KIND_OF.get(part)) for name in self.names] for part in PARTS]
        return np.array(chosen, dtype=float).reshape(len(PARTS), len(self.names))


def name_of_network(network: str) -> str:
    return f"network {network}"


def name_of_seconds(network: str) -> str:
    return f"seconds of {network}"


_OF_NETWORKS: Final = {"networks": name_of_network, "seconds": name_of_seconds}


def name_of_ranks(what: str, ranks: int) -> str:
    return f"{what} of {ranks} ranks"


def worlds(responses: Sequence[ProfileResponse]) -> tuple[int, ...]:
    """Numbers of ranks that several steps have; with one such number a factor for all steps says the same."""
    count = Counter(r.ranks for r in responses if r.ranks > 1)
    found = tuple(sorted(ranks for ranks, steps in count.items() if steps >= _OFTEN))
    return found if len(found) > 1 else ()
