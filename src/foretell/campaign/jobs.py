"""What a campaign is to measure: points and where each is wanted, read from a file for people or one for programs.

For people, TOML, in which lists multiply out; for programs, one line of JSON per point. Both have the same fields.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from foretell.errors import InputError, PlanError, did_you_mean
from foretell.measure.record import MEASURED, Point
from foretell.plans import Plan

_FIELDS: Final = ("source", "settings", "kind", "plan", "device", "repeat")
_HEADING: Final = re.compile(r"^[ \t]*\[\[\s*points\s*\]\]", flags=re.MULTILINE)
_EXAMPLE: Final = '{"source": "torchvision/resnet18", "settings": {"batch": 8}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A point, where it is wanted, and how often."""

    point: Point
    device: str = ""  # name in the catalog, or text that the device's own name holds; "": whatever is there
    repeat: int = 1

    def to_line(self) -> str:
        """One line of JSON, without what is the default."""
        point = self.point
        fields: dict[str, Any] = {
            "source": point.source,
            "settings": dict(point.settings),
            "kind": point.kind,
            "plan": point.plan,
        }
        fields |= {"device": self.device, "repeat": self.repeat}
        usual = {"settings": {}, "kind": "step", "plan": "", "device": "", "repeat": 1}
        return json.dumps({name: v for name, v in fields.items() if v != usual.get(name)}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Jobs in the order they were written; the same question asked twice is one job.

    Args:
        name: Of the campaign.
        jobs: A point, the device it is wanted on and how often, each.

    Raises:
        InputError: A file that `load` cannot read.

    Examples:
        >>> point = foretell.Point(source="timm/resnet18", settings={"batch": "8"})
        >>> len(foretell.Campaign.of([point, point]).jobs)
        1
    """

    name: str
    jobs: tuple[Job, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(job.point for job in self.jobs)

    @property
    def devices(self) -> frozenset[str]:
        """Where its jobs are wanted."""
        return frozenset(job.device.lower() for job in self.jobs)

    @classmethod
    def of(cls, points: Iterable[Point], *, name: str = "campaign", device: str = "", repeat: int = 1) -> Self:
        return cls(name=name, jobs=_merged(Job(point=p, device=device, repeat=repeat) for p in points))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        path = Path(path)
        if path.suffix not in _READERS:
            raise InputError(
                f"campaign {str(path)!r} must end in {_known_suffixes()}, got {path.suffix or 'no ending'!r}."
            )
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            near = [str(p) for p in path.parent.glob("*") if p.suffix in _READERS] if path.parent.is_dir() else []
            raise InputError(
                f"no campaign file {str(path)!r}. {did_you_mean(str(path), near)}Check the path."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the campaign file {str(path)!r} cannot be read: {error}.") from None
        tables = _READERS[path.suffix](path, text)
        jobs = _merged(job for where, table in tables for job in _jobs(where, table))
        if not jobs:
            raise InputError(
                f"{path} holds no points. Write some, in TOML under [[points]], in JSON lines as {_EXAMPLE}."
            )
        return cls(name=path.stem, jobs=jobs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON lines, which `load` reads back."""
        if Path(path).suffix not in _LINES:
            raise InputError(f"a campaign is saved as JSON lines, so {str(path)!r} must end in {' or '.join(_LINES)}.")
        try:
            Path(path).write_text("".join(f"{job.to_line()}\n" for job in self.jobs), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"the campaign cannot be saved to {path}: {error.strerror}. Choose another file."
            ) from None


Table = tuple[str, Mapping[str, Any]]  # where it stands, and what it says


def _read_toml(path: Path, text: str) -> Iterator[Table]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}.") from None
    for name in data:
        if name != "points":
            raise InputError(f"{path}: unknown table {name!r}. A campaign has [[points]] alone.")
    tables = data.get("points", [])
    if not isinstance(tables, list):
        raise InputError(f"{path}: points must be a list of tables. Write [[points]], with two brackets.")
    lines = [text.count("\n", 0, match.start()) + 1 for match in _HEADING.finditer(text)]
    for number, table in enumerate(tables):
        where = f"{path}:{lines[number]}" if len(lines) == len(tables) else f"{path}, point {number + 1}"
        yield where, _checked_table(where, table)


def _read_lines(path: Path, text: str) -> Iterator[Table]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                yield where, _checked_table(where, json.loads(line))
            except ValueError as error:
                raise InputError(f"{where} is not JSON ({error}). Write one point a line, like {_EXAMPLE}.") from None


_LINES: Final = (".jsonl", ".ndjson")
_READERS: Final = {".toml": _read_toml, **dict.fromkeys(_LINES, _read_lines)}


def _known_suffixes() -> str:
    return f".toml, or {' or '.join(_LINES)} for JSON lines"


def _checked_table(where: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: a point is a table like {_EXAMPLE}, got {table!r}.")
    for name in table:
        if name not in _FIELDS:
            raise InputError(
                f"{where}: unknown field {name!r}. {did_you_mean(name, _FIELDS)}"
                f"Allowed: {', '.join(_FIELDS)}; what --set sets goes into settings."
            )
    return table


def _jobs(where: str, table: Mapping[str, Any]) -> Iterator[Job]:
    """Every combination of the table's values, the last list varying fastest."""
    if "source" not in table:
        raise InputError(f"{where}: the point has no source. Give what you would give `foretell predict`.")
    settings = table.get("settings", {})
    if not isinstance(settings, Mapping):
        raise InputError(f"{where}: settings must be a table like {{ batch = [8, 16] }}, got {settings!r}.")
    usual = {"source": "", "kind": "step", "plan": "", "device": ""}
    texts = {name: _texts(where, name, table.get(name, default)) for name, default in usual.items()}
    values = [_values(where, f"settings.{name}", value) for name, value in settings.items()]
    repeat = _repeat(where, table.get("repeat", 1))
    for source, kind, plan, device in itertools.product(*texts.values()):
        _check(where, source, kind, plan)
        for chosen in itertools.product(*values):
            point = Point(source=source, settings=dict(zip(settings, chosen, strict=True)), kind=kind, plan=plan)
            yield Job(point=point, device=device, repeat=repeat)


def _check(where: str, source: str, kind: str, plan: str) -> None:
    if not source:
        raise InputError(f"{where}: the source is empty. Give what you would give `foretell predict`.")
    if kind not in MEASURED:
        raise InputError(
            f"{where}: unknown kind {kind!r}. {did_you_mean(kind, MEASURED)}Allowed: {', '.join(MEASURED)}."
        )
    try:
        Plan.parse(plan)
    except PlanError as error:
        raise InputError(f"{where}: {error}") from None


def _texts(where: str, name: str, value: Any) -> list[str]:
    texts = _values(where, name, value)
    if not all(isinstance(v, str) for v in (value if isinstance(value, list) else [value])):
        raise InputError(f"{where}: {name} must be text or a list of texts, got {value!r}.")
    return texts


def _values(where: str, name: str, value: Any) -> list[str]:
    """The values to go through, each as the command line would have it."""
    if isinstance(value, list):
        if not value:
            raise InputError(f"{where}: {name} is an empty list, which leaves no point. Give a value or leave it out.")
        return [_text(where, name, item) for item in value]
    return [_text(where, name, value)]


def _text(where: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InputError(f"{where}: {name} must be text, a number, true or false, or a list of these, got {value!r}.")


def _repeat(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: repeat must be a whole number of at least 1, got {value!r}.")
    return value


def _merged(jobs: Iterable[Job]) -> tuple[Job, ...]:
    kept: dict[tuple[str, str], Job] = {}
    for job in jobs:
        known = kept.get(key := (job.point.key, job.device.lower()))
        if known is None or known.repeat < job.repeat:
            kept[key] = job
    return tuple(kept.values())
