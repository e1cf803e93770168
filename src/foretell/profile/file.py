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
from typing import Any, Final, Literal

from foretell.distribution import LogNormal
from foretell.errors import ProfileError, check_choice, check_number, did_you_mean
from foretell.folders import user_folders
from foretell.graph import Graph
from foretell.limits import read_toml
from foretell.precision import PRECISIONS
from foretell.profile.families import ARITHMETIC, FAMILIES, plain
from foretell.profile.operators import Operators
from foretell.profile.parts import (
    AS_LISTED,
    MAX_FACTOR,
    Card,
    Intervals,
    Links,
    MemoryFactors,
    Purpose,
    check_factors,
)
from foretell.profile.residuals import Residuals
from foretell.units import Seconds

VERSION: Final = 3
READABLE: Final = (1, 2, 3)  # version 1 has no families, links, memory and intervals; version 2 no factors of ranks
SUFFIX: Final = ".toml"
ARRAYS: Final = ".safetensors"
_OF_OPERATORS: Final = f".operators{ARRAYS}"
_PARTS: Final = ("residuals", "operators")  # keys that name a file of arrays
FACTORS: Final = ("device", "host", "communication", "fixed_seconds")


def network_of(graph: Graph) -> str:
    """What steps of one network share, whatever their batch: its name and size."""
    size = graph.facts.parameters
    return graph.name if size is None else f"{graph.name}, {size} parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What makes a forecast fit one machine, cluster or trainer; `foretell.adapt` makes it, a TOML file keeps it.

    Args:
        name: Forecasts that use it say so by that name.
        device: Factor on device time, refined by `families` of operators, `precisions` and measured `networks`.
        host: Factor on the host's time; `communication` on that of collectives, `links` on links themselves; both may have
            another one with so many ranks, in `host_of_ranks` and `communication_of_ranks`.
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
    host_of_ranks: Mapping[str, float] = field(default_factory=dict)  # with so many ranks; on top of `host`
    communication_of_ranks: Mapping[str, float] = field(default_factory=dict)  # the same, on top of `communication`
    links: Links = AS_LISTED
    memory: MemoryFactors = field(default_factory=MemoryFactors)
    intervals: Intervals = field(default_factory=Intervals)
    residuals: Residuals | None = None
    operators: Operators | None = None  # on what the model says of each op, before any factor
    purpose: Purpose = field(default_factory=Purpose)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("a profile needs a name, got ''. Forecasts that use it say so by that name.")
        check_factors(f"profile {self.name!r}", {n: getattr(self, n) for n in FACTORS[:-1]})
        for title, factors, names in (
            ("families", self.families, FAMILIES),
            ("precisions", self.precisions, PRECISIONS),
        ):
            for name in factors:
                check_choice(f"profile {self.name!r}: {title}", name, names, ProfileError)
            check_factors(f"profile {self.name!r}: {title}", factors)
        check_factors(f"profile {self.name!r}: networks", self.networks)
        for what in ("host", "communication"):
            self._check_ranks(f"{what}_of_ranks", getattr(self, f"{what}_of_ranks"))
        allowed = "0 or more seconds per step"
        check_number(
            f"profile {self.name!r}: fixed_seconds", self.fixed_seconds, allowed, ProfileError, most=MAX_FACTOR
        )
        for network, seconds in self.network_seconds.items():
            what = f"profile {self.name!r}: network_seconds of {network}"
            check_number(what, seconds, allowed, ProfileError, most=MAX_FACTOR)

    def device_factor(self, family: str, precision: str) -> float:
        """Of an op of a family in a step of a precision."""
        factor = self.device * self.families.get(family, self.families.get(plain(family), 1.0))
        return factor * self.precisions.get(precision, 1.0) if family in ARITHMETIC else factor

    def of_ranks(self, what: Literal["host", "communication"]) -> dict[int, float]:
        """Number of ranks → the factor that it has beside the one of all steps."""
        factors: Mapping[str, float] = getattr(self, f"{what}_of_ranks")
        return {int(ranks): factor for ranks, factor in factors.items()}

    def for_step(self, network: str, ranks: int) -> Profile:
        """With what was measured of its network and of so many ranks in the plain factors, and in the fixed seconds."""
        if not (self.networks or self.network_seconds or self.host_of_ranks or self.communication_of_ranks):
            return self
        factor, seconds = self.networks.get(network, 1.0), self.network_seconds.get(network, 0.0)
        host, wire = (each.get(str(ranks), 1.0) for each in (self.host_of_ranks, self.communication_of_ranks))
        return dataclasses.replace(
            self, device=self.device * factor, host=self.host * factor * host, communication=self.communication * wire,
            fixed_seconds=self.fixed_seconds + seconds, networks={}, network_seconds={}, host_of_ranks={},
            communication_of_ranks={},
        )  # fmt: skip

    def _check_ranks(self, title: str, factors: Mapping[str, float]) -> None:
        check_factors(f"profile {self.name!r}: {title}", factors)
        for ranks in factors:
            if not (ranks.isascii() and ranks.isdecimal() and not ranks.startswith("0")):
                raise ProfileError(
                    f"profile {self.name!r}: {title} has factors by number of ranks, like '4', and got {ranks!r}."
                )

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
        ("host_of_ranks", "host_of_ranks", None, None),
        ("communication_of_ranks", "communication_of_ranks", None, None),
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
