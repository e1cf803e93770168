"""What makes a forecast fit one machine, cluster or trainer: a `Profile`, kept as a TOML file a person can read.

Factors multiply what the model says of every op, launch and collective before the step is simulated, so overlap,
pipelines and exposed communication follow; `fixed_seconds` are added to each step. `foretell.learn.adapt` fits them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from foretell.errors import ProfileError, check_choice, check_number, did_you_mean
from foretell.folders import user_folders
from foretell.graph.operators import Family
from foretell.limits import read_toml
from foretell.units import Seconds

VERSION: Final = 2
READABLE: Final = (1, 2)  # version 1 has no families, links, memory and intervals
SUFFIX: Final = ".toml"
FACTORS: Final = ("device", "host", "communication", "fixed_seconds")
FAMILIES: Final[tuple[str, ...]] = get_args(Family)
_MOST: Final = 1e6  # of a factor, or of seconds
_WIDEST: Final = 10.0  # of an interval, in e-folds to each side
_FACTOR: Final = f"a factor above 0, {1 / _MOST:g} to {_MOST:g}"


def _check_factors(what: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        check_number(f"{what}: {name}", value, _FACTOR, ProfileError, least=1 / _MOST, most=_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a profile is for, in free text; empty where it does not matter."""

    device: str = ""
    host: str = ""
    cluster: str = ""
    trainer: str = ""
    versions: str = ""  # of libraries, like "torch 2.9, CUDA 12.8"

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if not isinstance(value := getattr(self, f.name), str):
                raise ProfileError(f"a profile's {f.name} must be a text, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a profile was fitted on, and its mean relative errors on rows that were left out of the fit."""

    rows: int = 0
    sources: tuple[str, ...] = ()
    form: str = ""  # which numbers were fitted, in words
    error_before: float | None = None
    error_after: float | None = None
    rows_left_out: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (*self.sources, self.form)):
            raise ProfileError(f"a card's sources and form must be texts, got {self.sources!r} and {self.form!r}.")
        for name in ("rows", "rows_left_out", "error_before", "error_after"):
            value = getattr(self, name)
            if not (value is None and name.startswith("error")):
                check_number(f"a card's {name}", value, "a number of at least 0", ProfileError, most=1e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How the links of a cluster differ from those of the catalog."""

    bandwidth: float = 1.0  # factor of every link's rate
    latency: float = 1.0  # factor of every link's latency
    crowding: float = 0.0  # exponent added to a fabric's `sharing`: as more devices of a node talk, each gets less
    neighbours: float = 1.0  # factor of what moving bytes between nodes takes: the slowest of them, or others' traffic

    def __post_init__(self) -> None:
        _check_factors("a profile's links", {n: getattr(self, n) for n in ("bandwidth", "latency", "neighbours")})
        allowed = "an exponent from 0, no crowding, to 2"
        check_number("a profile's links: crowding", self.crowding, allowed, ProfileError, most=2.0)


AS_LISTED: Final = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFactors:
    """Of what a step allocates at its peak, and of what the allocator reserves."""

    allocated: float = 1.0
    reserved: float = 1.0

    def __post_init__(self) -> None:
        _check_factors("a profile's memory", dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How far steps lie from forecasts with the profile, as a 90 % half-width of log seconds; None: not known."""

    width: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None:
            allowed = f"a log half-width from 0 to {_WIDEST:g}"
            check_number("a profile's intervals: width", self.width, allowed, ProfileError, most=_WIDEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    device: float = 1.0
    host: float = 1.0
    communication: float = 1.0
    fixed_seconds: Seconds = 0.0
    families: Mapping[str, float] = field(default_factory=dict)  # of operators; on top of `device`
    links: Links = AS_LISTED
    memory: MemoryFactors = MemoryFactors()
    intervals: Intervals = Intervals()
    purpose: Purpose = Purpose()
    card: Card = Card()

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("a profile needs a name, got ''. Forecasts that use it say so by that name.")
        _check_factors(f"profile {self.name!r}", {n: getattr(self, n) for n in FACTORS[:-1]})
        for family in self.families:
            check_choice(f"profile {self.name!r}: family", family, FAMILIES, ProfileError)
        _check_factors(f"profile {self.name!r}: families", self.families)
        allowed = "0 or more seconds per step"
        check_number(f"profile {self.name!r}: fixed_seconds", self.fixed_seconds, allowed, ProfileError, most=_MOST)

    def device_factor(self, family: str) -> float:
        """Of an op of a family."""
        return self.device * self.families.get(family, 1.0)

    def within(self, seconds: Seconds) -> tuple[Seconds, Seconds] | None:
        """The 90 % interval around a forecast with this profile."""
        width = self.intervals.width
        return None if width is None else (seconds * math.exp(-width), seconds * math.exp(width))

    @classmethod
    def load(cls, where: str | Path) -> Profile:
        """From a file, or by name from $FORETELL_PROFILES or ~/.config/foretell/profiles."""
        path = _find(where)
        try:
            read = read_toml(path)
        except (OSError, ValueError) as error:
            raise ProfileError(f"{path} is no profile: {error}. A profile is a TOML file.") from error
        version = read.pop("version", None)
        if version not in READABLE or isinstance(version, bool | float):
            raise ProfileError(
                f"{path} is a profile of version {version!r}; this Foretell reads versions up to {VERSION}. "
                "Update Foretell, or make the profile again."
            )
        name = read.pop("name", path.stem)
        if not isinstance(name, str):
            raise ProfileError(f"{path}: name must be a text, got {name!r}.")
        _refuse_unknown(path, "", read, tuple(_TABLES))
        tables = {title: _table(path, read, title, allowed) for title, (_, allowed) in _TABLES.items()}
        try:
            return cls(name=name, **_made(tables))
        except TypeError as error:
            raise ProfileError(f"{path}: {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write the file that `load` reads."""
        lines = [f"version = {VERSION}", f"name = {_written(self.name)}"]
        for title, table in self._tables():
            lines += ["", f"[{title}]", *(f"{key} = {_written(value)}" for key, value in table.items())]
        to = Path(path)
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"the profile cannot be saved to {to}: {error.strerror}. Choose another file.") from None
        return to

    def _tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of the file, without what says nothing."""
        for title, (attribute, allowed) in _TABLES.items():
            if attribute is None:
                yield title, {key: getattr(self, key) for key in allowed}
                continue
            part = getattr(self, attribute)
            says = dict(part) if isinstance(part, Mapping) else dataclasses.asdict(part)
            if part != (type(part)() if not isinstance(part, Mapping) else {}):
                yield title, {key: value for key, value in says.items() if value not in (None, "", ())}


# A table of the file: the attribute it becomes, or None where each key is one of its own; and the keys it may have.
_TABLES: Final[Mapping[str, tuple[str | None, tuple[str, ...]]]] = {
    title: (attribute, allowed if kind is None else tuple(f.name for f in dataclasses.fields(kind)))
    for title, attribute, kind, allowed in (
        ("for", "purpose", Purpose, ()),
        ("factors", None, None, FACTORS),
        ("families", "families", None, FAMILIES),
        ("links", "links", Links, ()),
        ("memory", "memory", MemoryFactors, ()),
        ("intervals", "intervals", Intervals, ()),
        ("card", "card", Card, ()),
    )
}
_KINDS: Final = {"purpose": Purpose, "links": Links, "memory": MemoryFactors, "intervals": Intervals, "card": Card}


def _made(tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Arguments of a Profile, from the tables of its file."""
    tables["card"]["sources"] = tuple(tables["card"].get("sources", ()))
    made: dict[str, Any] = {}
    for title, (attribute, _) in _TABLES.items():
        if attribute is None:
            made |= tables[title]
        else:
            made[attribute] = _KINDS[attribute](**tables[title]) if attribute in _KINDS else tables[title]
    return made


def folders() -> tuple[Path, ...]:
    """Where profiles are looked for by name."""
    return user_folders("FORETELL_PROFILES", "profiles")


def profile_files() -> dict[str, Path]:
    """Those that are found by name; an earlier folder goes first."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.stem, path)
    return found


def _find(where: str | Path) -> Path:
    path = Path(where)
    try:
        if isinstance(where, Path) or path.suffix == SUFFIX or path.is_file():
            return path
        for folder in folders():
            if (named := folder / f"{where}{SUFFIX}").is_file():
                return named
    except OSError as error:
        raise ProfileError(f"no profile {str(where)[:100]!r}: {error.strerror}. Give a {SUFFIX} file.") from None
    known = sorted(profile_files())
    raise ProfileError(
        f"no profile {str(where)!r}. {did_you_mean(str(where), known)}Give a {SUFFIX} file, or a name out of "
        f"{', '.join(map(str, folders()))}: {', '.join(known) or 'none there'}."
    )


def _table(path: Path, read: dict[str, Any], name: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    found = read.get(name, {})
    if not isinstance(found, dict):
        raise ProfileError(f"{path}: {name} must be a table, got {found!r}.")
    _refuse_unknown(path, name, found, allowed)
    return found


def _refuse_unknown(path: Path, table: str, found: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in found:
        if key not in allowed:
            where = f"[{table}] {key}" if table else key
            raise ProfileError(
                f"{path}: {where} is not known. {did_you_mean(key, allowed)}Allowed: {', '.join(allowed)}."
            )


def _written(value: Any) -> str:
    """JSON's texts, numbers and lists are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
