"""What makes a forecast fit one machine, cluster or trainer: a `Profile`, kept as a TOML file a person can read.

Factors multiply what the model says of every op, launch and collective before the step is simulated, so overlap,
pipelines and exposed communication follow; `fixed_seconds` are added to each step. `foretell.learn.adapt` fits them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from foretell.distribution import LogNormal
from foretell.errors import ProfileError, check_choice, check_number, did_you_mean
from foretell.folders import user_folders
from foretell.graph import Graph
from foretell.limits import read_toml
from foretell.precision import PRECISIONS
from foretell.profile.families import ARITHMETIC, FAMILIES, plain
from foretell.profile.operators import Operators
from foretell.profile.residuals import Residuals
from foretell.software import Software
from foretell.units import Seconds

VERSION: Final = 2
READABLE: Final = (1, 2)  # version 1 has no families, links, memory and intervals
SUFFIX: Final = ".toml"
ARRAYS: Final = ".safetensors"
_OF_OPERATORS: Final = f".operators{ARRAYS}"
_PARTS: Final = ("residuals", "operators")  # keys that name a file of arrays
FACTORS: Final = ("device", "host", "communication", "fixed_seconds")
_MAX_FACTOR: Final = 1e6  # of a factor, or of seconds
CROWDED: Final = 3.0  # the most by which crowding may differ from a fabric's
WIDEST: Final = 10.0  # of an interval, in e-folds to each side
_FACTOR: Final = f"a factor above 0, {1 / _MAX_FACTOR:g} to {_MAX_FACTOR:g}"


def network_of(graph: Graph) -> str:
    """What steps of one network share, whatever their batch: its name and size."""
    size = graph.facts.parameters
    return graph.name if size is None else f"{graph.name}, {size} parameters"


def _check_factors(what: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        check_number(f"{what}: {name}", value, _FACTOR, ProfileError, least=1 / _MAX_FACTOR, most=_MAX_FACTOR)


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
        _check_factors("a profile's links", {n: getattr(self, n) for n in ("bandwidth", "latency", "neighbours")})
        allowed = f"an exponent from {-CROWDED:g} to {CROWDED:g}, 0 being as listed"
        check_number("a profile's links: crowding", self.crowding, allowed, ProfileError, least=-CROWDED, most=CROWDED)


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
    measured: float | None = None  # of networks that the profile was fitted on; None: as of others

    def __post_init__(self) -> None:
        allowed = f"a log half-width from 0 to {WIDEST:g}"
        for name in ("width", "measured"):
            if (value := getattr(self, name)) is not None:
                check_number(f"a profile's intervals: {name}", value, allowed, ProfileError, most=WIDEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What makes a forecast fit one machine, cluster or trainer; `foretell.adapt` makes it, a TOML file keeps it.

    Args:
        name: Forecasts that use it say so by that name.
        device: Factor on device time, refined by `families` of operators, `precisions` and measured `networks`.
        host: Factor on the host's time; `communication` on that of collectives, `links` on links themselves.
        fixed_seconds: Added to every step; `network_seconds` to those of measured networks.
        memory: Factors on allocated and reserved bytes; `intervals`: how wide they are.
        residuals: A model of what is left; `operators`: one of single ops.
        purpose: What it is for; `card`: rows, sources, errors before and after.

    Raises:
        InputError: A factor out of range, or an unknown family or precision.

    Examples:
        >>> slow = foretell.Profile(name="mine", host=1.2)
        >>> foretell.forecast("torchvision/resnet18", on="h200", profile=slow).profile
        'mine'
    """

    name: str
    device: float = 1.0
    host: float = 1.0
    communication: float = 1.0
    fixed_seconds: Seconds = 0.0
    families: Mapping[str, float] = field(default_factory=dict)  # of operators; on top of `device`
    precisions: Mapping[str, float] = field(
        default_factory=dict
    )  # of steps; on their products and convolutions, on top
    networks: Mapping[str, float] = field(
        default_factory=dict
    )  # of those that were measured; on all they compute, on top
    network_seconds: Mapping[str, Seconds] = field(default_factory=dict)  # of those; added to each of their steps
    links: Links = AS_LISTED
    memory: MemoryFactors = MemoryFactors()
    intervals: Intervals = Intervals()
    residuals: Residuals | None = None
    operators: Operators | None = None  # on what the model says of each op, before any factor
    purpose: Purpose = Purpose()
    card: Card = Card()

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("a profile needs a name, got ''. Forecasts that use it say so by that name.")
        _check_factors(f"profile {self.name!r}", {n: getattr(self, n) for n in FACTORS[:-1]})
        for title, factors, names in (
            ("families", self.families, FAMILIES),
            ("precisions", self.precisions, PRECISIONS),
        ):
            for name in factors:
                check_choice(f"profile {self.name!r}: {title}", name, names, ProfileError)
            _check_factors(f"profile {self.name!r}: {title}", factors)
        _check_factors(f"profile {self.name!r}: networks", self.networks)
        allowed = "0 or more seconds per step"
        check_number(
            f"profile {self.name!r}: fixed_seconds", self.fixed_seconds, allowed, ProfileError, most=_MAX_FACTOR
        )
        for network, seconds in self.network_seconds.items():
            what = f"profile {self.name!r}: network_seconds of {network}"
            check_number(what, seconds, allowed, ProfileError, most=_MAX_FACTOR)

    def device_factor(self, family: str, precision: str) -> float:
        """Of an op of a family in a step of a precision."""
        factor = self.device * self.families.get(family, self.families.get(plain(family), 1.0))
        return factor * self.precisions.get(precision, 1.0) if family in ARITHMETIC else factor

    def for_network(self, network: str) -> Profile:
        """With what was measured of a network in the factors of all it computes, and in the fixed seconds."""
        if not self.networks and not self.network_seconds:
            return self
        factor, seconds = self.networks.get(network, 1.0), self.network_seconds.get(network, 0.0)
        return dataclasses.replace(
            self, device=self.device * factor, host=self.host * factor, fixed_seconds=self.fixed_seconds + seconds,
            networks={}, network_seconds={},
        )  # fmt: skip

    def step_time(self, seconds: Seconds, network: str) -> LogNormal | None:
        """Of a step of a network that was forecast with this profile; None where its errors are not known."""
        width = self.intervals.width
        if network in self.networks and self.intervals.measured is not None:
            width = self.intervals.measured
        return None if width is None else LogNormal.symmetric(seconds, width)

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
        residuals, operators = (_file_named(path, read, part) for part in _PARTS)
        _refuse_unknown(path, "", read, tuple(_TABLES))
        tables = {title: _table(path, read, title, allowed) for title, (_, allowed) in _TABLES.items()}
        try:
            return cls(
                name=name, residuals=None if residuals is None else Residuals.load(residuals),
                operators=None if operators is None else Operators.load(operators), **_made(tables),
            )  # fmt: skip
        except TypeError as error:
            raise ProfileError(f"{path}: {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write the file that `load` reads, and its residual model and operators beside it."""
        to = Path(path)
        arrays = {
            name: (part, to.with_suffix(suffix))
            for name, part, suffix in (("residuals", self.residuals, ARRAYS), ("operators", self.operators, _OF_OPERATORS))
            if part is not None
        }  # fmt: skip
        lines = [f"version = {VERSION}", f"name = {_written(self.name)}"]
        lines += [f"{name} = {_written(file.name)}" for name, (_, file) in arrays.items()]
        for title, table in self._tables():
            lines += ["", f"[{title}]", *(f"{_key(key)} = {_written(value)}" for key, value in table.items())]
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            for part, file in arrays.values():
                part.save(file)
            to.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"the profile cannot be saved to {to}: {error.strerror}. Choose another file.") from None
        return to

    def _tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of the file, without what says nothing."""
        for title, (attribute, allowed) in _TABLES.items():
            if attribute is None:
                yield title, {key: getattr(self, key) for key in allowed or ()}
                continue
            part = getattr(self, attribute)
            says = dict(part) if isinstance(part, Mapping) else dataclasses.asdict(part)
            if part != (type(part)() if not isinstance(part, Mapping) else {}):
                yield title, {key: value for key, value in says.items() if value not in (None, "", ())}


# A table of the file: the attribute it becomes, or None where each key is one of its own; and the keys it may have, or None
# for any.
_TABLES: Final[Mapping[str, tuple[str | None, tuple[str, ...] | None]]] = {
    title: (attribute, allowed if kind is None else tuple(f.name for f in dataclasses.fields(kind)))
    for title, attribute, kind, allowed in (
        ("for", "purpose", Purpose, ()),
        ("factors", None, None, FACTORS),
        ("families", "families", None, FAMILIES),
        ("precisions", "precisions", None, PRECISIONS),
        ("networks", "networks", None, None),
        ("network_seconds", "network_seconds", None, None),
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


def files_of(path: Path) -> list[Path]:
    """A profile's file and those beside it that it names."""
    try:
        read = read_toml(path)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} is no profile: {error}. A profile is a TOML file.") from error
    return [path, *(file for part in _PARTS if (file := _file_named(path, read, part)) is not None)]


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


def _file_named(path: Path, read: dict[str, Any], part: str) -> Path | None:
    name = read.pop(part, None)
    if name is not None and not (isinstance(name, str) and name == Path(name).name):
        raise ProfileError(f"{path}: {part} must name a file beside it, got {name!r}.")
    return None if name is None else path.parent / name


def _table(path: Path, read: dict[str, Any], name: str, allowed: tuple[str, ...] | None) -> dict[str, Any]:
    found = read.get(name, {})
    if not isinstance(found, dict):
        raise ProfileError(f"{path}: {name} must be a table, got {found!r}.")
    if allowed is not None:
        _refuse_unknown(path, name, found, allowed)
    return found


def _refuse_unknown(path: Path, table: str, found: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in found:
        if key not in allowed:
            where = f"[{table}] {key}" if table else key
            raise ProfileError(
                f"{path}: {where} is not known. {did_you_mean(key, allowed)}Allowed: {', '.join(allowed)}."
            )


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _written(name)


def _written(value: Any) -> str:
    """JSON's texts, numbers and lists are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
