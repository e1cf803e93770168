"""The parts of a profile that are not factors of what a step computes: what it is for, its card, links, memory, intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import ProfileError, check_number
from foretell.software import Software

MAX_FACTOR: Final = 1e6  # of a factor, or of seconds
CROWDED: Final = 3.0  # the most by which crowding may differ from a fabric's
WIDEST: Final = 10.0  # of an interval, in e-folds to each side
_FACTOR: Final = f"a factor above 0, {1 / MAX_FACTOR:g} to {MAX_FACTOR:g}"


def check_factors(what: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        check_number(f"{what}: {name}", value, _FACTOR, ProfileError, least=1 / MAX_FACTOR, most=MAX_FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a profile is for, in free text; empty where it does not matter."""

    device: str = ""
    host: str = ""
    cluster: str = ""
    trainer: str = ""
    versions: str = ""  # of libraries, like "torch 2.9, CUDA 12.8"
    software: str = ""  # of which time, like torch-1.12: forecasts with the profile start from it; "": today's

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if not isinstance(value := getattr(self, f.name), str):
                raise ProfileError(f"a profile's {f.name} must be a text, got {value!r}.")
        if self.software:
            object.__setattr__(self, "software", str(Software.parse(self.software)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a profile was fitted on, and its mean relative errors on rows that were left out of the fit."""

    rows: int = 0
    sources: tuple[str, ...] = ()
    form: str = ""  # which numbers were fitted, in words
    error_before: float | None = None
    error_after: float | None = None
    error_measured: float | None = None  # after, of networks whose other steps were not left out
    rows_left_out: int = 0
    start: str = ""  # the profile that it was fitted on top of

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (*self.sources, self.form, self.start)):
            texts = ", ".join(map(repr, (self.sources, self.form, self.start)))
            raise ProfileError(f"a card's sources, form and start must be texts, got {texts}.")
        for name in ("rows", "rows_left_out", "error_before", "error_after", "error_measured"):
            value = getattr(self, name)
            if not (value is None and name.startswith("error")):
                check_number(f"a card's {name}", value, "a number of at least 0", ProfileError, most=1e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How the links of a cluster differ from those of the catalog."""

    bandwidth: float = 1.0  # factor of every link's rate
    latency: float = 1.0  # factor of every link's latency
    crowding: float = (
        0.0  # added to a fabric's `sharing`: as more devices of a node talk, each gets less; below 0, more
    )
    neighbours: float = 1.0  # factor of what moving bytes between nodes takes: the slowest of them, or others' traffic

    def __post_init__(self) -> None:
        check_factors("a profile's links", {n: getattr(self, n) for n in ("bandwidth", "latency", "neighbours")})
        allowed = f"an exponent from {-CROWDED:g} to {CROWDED:g}, 0 being as listed"
        check_number("a profile's links: crowding", self.crowding, allowed, ProfileError, least=-CROWDED, most=CROWDED)


AS_LISTED: Final = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFactors:
    """Of what a step allocates at its peak, and of what the allocator reserves."""

    allocated: float = 1.0
    reserved: float = 1.0

    def __post_init__(self) -> None:
        check_factors("a profile's memory", dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How far steps lie from forecasts with the profile, as a 90 % half-width of log seconds; None: not known."""

    width: float | None = None
    measured: float | None = None  # of networks that the profile was fitted on; None: as of others

    def __post_init__(self) -> None:
        allowed = f"a log half-width from 0 to {WIDEST:g}"
        for name in ("width", "measured"):
            if (value := getattr(self, name)) is not None:
                check_number(f"a profile's intervals: {name}", value, allowed, ProfileError, most=WIDEST)
