"""What makes a forecast fit one machine, cluster or trainer: a `Profile`, kept as a TOML file a person can read.

Factors multiply what the model says of every op, launch and collective before the step is simulated, so overlap,
pipelines and exposed communication follow; `fixed_seconds` are added to each step. `foretell.learn.adapt` fits them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.errors import ProfileError, did_you_mean
from foretell.folders import user_folders
from foretell.limits import read_toml
from foretell.units import Seconds

VERSION: Final = 1
SUFFIX: Final = ".toml"
_MOST: Final = 1e6  # of a factor, or of seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a profile is for, in free text; empty where it does not matter."""

    device: str = ""
    cluster: str = ""
    trainer: str = ""

    def __post_init__(self) -> None:
        for name in ("device", "cluster", "trainer"):
            if not isinstance(value := getattr(self, name), str):
                raise ProfileError(f"a profile's {name} must be a text, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a profile was fitted on, and its mean relative errors on rows that were left out of the fit."""

    rows: int = 0
    sources: tuple[str, ...] = ()
    error_before: float | None = None
    error_after: float | None = None
    rows_left_out: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(source, str) for source in self.sources):
            raise ProfileError(f"a card's sources must be texts, got {self.sources!r}.")
        for name in ("rows", "rows_left_out", "error_before", "error_after"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value <= 1e12) and not (value is None and name.startswith("error")):
                raise ProfileError(f"a card's {name} must be a number of at least 0, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    device: float = 1.0
    host: float = 1.0
    communication: float = 1.0
    fixed_seconds: Seconds = 0.0
    purpose: Purpose = Purpose()
    card: Card = Card()

    def __post_init__(self) -> None:
        if not self.name:
            raise ProfileError("a profile needs a name, got ''. Forecasts that use it say so by that name.")
        for factor in ("device", "host", "communication"):
            if not (_is_number(value := getattr(self, factor)) and 0 < value <= _MOST and value >= 1 / _MOST):
                raise ProfileError(
                    f"profile {self.name!r}: {factor} is a factor above 0, got {value!r}. Allowed: {1 / _MOST:g} to {_MOST:g}."
                )
        if not (_is_number(self.fixed_seconds) and 0 <= self.fixed_seconds <= _MOST):
            raise ProfileError(
                f"profile {self.name!r}: fixed_seconds must be 0 or more seconds per step, got {self.fixed_seconds!r}."
            )

    @classmethod
    def load(cls, where: str | Path) -> Profile:
        """From a file, or by name from $FORETELL_PROFILES or ~/.config/foretell/profiles."""
        path = _find(where)
        try:
            read = read_toml(path)
        except (OSError, ValueError) as error:
            raise ProfileError(f"{path} is no profile: {error}. A profile is a TOML file.") from error
        version = read.pop("version", None)
        if version != VERSION:
            raise ProfileError(
                f"{path} is a profile of version {version!r}; this Foretell reads version {VERSION}. "
                "Update Foretell, or make the profile again."
            )
        tables = {name: _table(path, read, name, kind) for name, kind in (("for", Purpose), ("card", Card))}
        factors = _table(path, read, "factors", cls)
        try:
            card = Card(**{**tables["card"], "sources": tuple(tables["card"].get("sources", ()))})
            name = read.pop("name", path.stem)
            if not isinstance(name, str):
                raise ProfileError(f"{path}: name must be a text, got {name!r}.")
            _refuse_unknown(path, "", read, ("version", "name", "for", "factors", "card"))
            return cls(name=name, **factors, purpose=Purpose(**tables["for"]), card=card)
        except TypeError as error:
            raise ProfileError(f"{path}: {error}.") from error

    def save(self, path: str | Path) -> Path:
        """Write the file that `load` reads."""
        numbers = {name: getattr(self, name) for name in FACTORS}
        tables = {"for": dataclasses.asdict(self.purpose), "factors": numbers, "card": dataclasses.asdict(self.card)}
        lines = [f"version = {VERSION}", f"name = {_written(self.name)}"]
        for title, table in tables.items():
            kept = {key: value for key, value in table.items() if value is not None and value != "" and value != ()}
            lines += ["", f"[{title}]", *(f"{key} = {_written(value)}" for key, value in kept.items())]
        to = Path(path)
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"the profile cannot be saved to {to}: {error.strerror}. Choose another file.") from None
        return to


FACTORS: Final = ("device", "host", "communication", "fixed_seconds")


def folders() -> tuple[Path, ...]:
    """Where profiles are looked for by name."""
    return user_folders("FORETELL_PROFILES", "profiles")


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
    known = sorted(path.stem for folder in folders() for path in folder.glob(f"*{SUFFIX}"))
    raise ProfileError(
        f"no profile {str(where)!r}. {did_you_mean(str(where), known)}Give a {SUFFIX} file, or a name out of "
        f"{', '.join(map(str, folders()))}: {', '.join(known) or 'none there'}."
    )


def _table(path: Path, read: dict[str, Any], name: str, kind: type) -> dict[str, Any]:
    found = read.pop(name, {})
    if not isinstance(found, dict):
        raise ProfileError(f"{path}: {name} must be a table, got {found!r}.")
    _refuse_unknown(path, name, found, FACTORS if kind is Profile else [f.name for f in dataclasses.fields(kind)])
    return found


def _refuse_unknown(path: Path, table: str, found: dict[str, Any], allowed: Any) -> None:
    for key in found:
        if key not in allowed:
            where = f"[{table}] {key}" if table else key
            raise ProfileError(
                f"{path}: {where} is not known. {did_you_mean(key, allowed)}Allowed: {', '.join(allowed)}."
            )


def _written(value: Any) -> str:
    """JSON's texts, numbers and lists are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
