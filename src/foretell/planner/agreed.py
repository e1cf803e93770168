"""What was agreed of a step, for checks in pipelines: a file of steps with their limits, validated against forecasts.

steps:
  - name: vit                 # optional
    source: train.py:vit
    on: 8xh100-sxm
    plan: dp=8,zero=1         # optional
    set: {batch: 256}         # optional
    step_time: 120 ms         # at most; optional, as all limits are
    memory: 60 GiB
    cost: 0.01                # dollars per step
tolerance: 0.05               # by how much a limit may be passed; optional
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.cost.model import CostModel
from foretell.errors import InputError, check_number, did_you_mean
from foretell.forecasting.forecast import DEFAULT_MODEL, forecast
from foretell.forecasting.result import Forecast
from foretell.limits import parse_yaml, read_bytes
from foretell.sources.settings import texts_of
from foretell.units import parse_bytes, parse_seconds, show_bytes, show_dollars, show_seconds

_STEP: Final = ("name", "source", "on", "plan", "set", "step_time", "memory", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """A step and its limits."""

    name: str
    source: str
    on: str
    plan: str | None
    settings: Mapping[str, str]
    step_time: float | None
    memory: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    steps: tuple[Agreed, ...]
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One limit of one step."""

    name: str
    what: str
    limit: float
    forecast: float
    shown: tuple[str, str]  # limit, forecast
    kept: bool


def read_agreement(path: Path) -> Agreement:
    try:
        text = read_bytes(path, "bytes of a configuration")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Give a file like plan.yaml.") from None
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}. Give a file like plan.yaml.") from None
    try:
        data = parse_yaml(text.decode())
    except ValueError as error:
        raise InputError(f"{path} is no YAML: {error}. Correct it.") from None
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list) or not data["steps"]:
        raise InputError(
            f"{path} has no list of steps. Write `steps:` with an entry for each (docs/guide/pipelines.md)."
        )
    _known(path, data, ("steps", "tolerance"))
    tolerance = data.get("tolerance", 0.0)
    check_number(f"{path}: tolerance", tolerance, "a part from 0 to 10, like 0.05", InputError, most=10.0)
    return Agreement(steps=tuple(_step(path, entry) for entry in data["steps"]), tolerance=float(tolerance))


def _known(path: Path, entries: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    for key in entries:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise InputError(f"{path}: {key!r} is not known. {hint}Allowed: {', '.join(known)}.")


def _step(path: Path, entry: Any) -> Agreed:
    if not isinstance(entry, dict):
        raise InputError(f"{path}: a step is a table with source and on, got {entry!r}.")
    entry = {"on" if key is True else key: value for key, value in entry.items()}  # YAML reads a plain `on` as true
    _known(path, entry, _STEP)
    for key in ("source", "on"):
        if not isinstance(entry.get(key), str):
            raise InputError(f"{path}: a step needs {key}, got {entry.get(key)!r}. Add it as a text.")
    settings = entry.get("set") or {}
    if not isinstance(settings, dict):
        raise InputError(f"{path}: set is a table of parameters, like {{batch: 256}}, got {settings!r}.")
    if not any(key in entry for key in ("step_time", "memory", "cost")):
        raise InputError(f"{path}: {entry['source']} on {entry['on']} has no limit. Add step_time, memory or cost.")
    return Agreed(
        name=str(entry.get("name") or f"{entry['source']} on {entry['on']}"),
        source=entry["source"],
        on=entry["on"],
        plan=entry.get("plan"),
        settings=texts_of({str(k): v for k, v in settings.items()}),
        step_time=parse_seconds(entry["step_time"]) if "step_time" in entry else None,
        memory=parse_bytes(entry["memory"]) if "memory" in entry else None,
        cost=_dollars(path, entry["cost"]) if "cost" in entry else None,
    )


def _dollars(path: Path, value: Any) -> float:
    check_number(f"{path}: cost", value, "dollars per step, a number of at least 0", InputError)
    return float(value)


def check(
    agreement: Agreement, *, model: str | CostModel = DEFAULT_MODEL, progress: Callable[[str], None] | None = None
) -> list[Checked]:
    """Every limit of every step against its forecast."""
    found: list[Checked] = []
    for step in agreement.steps:
        if progress:
            progress(f"forecasting {step.name}")
        answer = forecast(step.source, step.on, step.plan, settings=step.settings or None, model=model)
        found += _checked(step, answer, agreement.tolerance)
    return found


def _checked(step: Agreed, answer: Forecast, tolerance: float) -> list[Checked]:
    figures: tuple[tuple[str, float | None, float | None, Callable[[float], str]], ...] = (
        ("step time", step.step_time, answer.step_time.seconds, show_seconds),
        ("memory", step.memory, float(answer.memory.total), show_bytes),
        ("cost per step", step.cost, answer.cost.dollars_per_step, show_dollars),
    )
    found = []
    for what, limit, value, show in figures:
        if limit is None:
            continue
        if value is None:
            raise InputError(
                f"{step.name}: {what} is agreed, and {answer.cluster} has no price. Leave it out, or name an instance."
            )
        kept = value <= limit * (1 + tolerance)
        found.append(
            Checked(name=step.name, what=what, limit=limit, forecast=value, shown=(show(limit), show(value)), kept=kept)
        )
    if step.memory is None and not answer.memory.fits:
        room, total = float(answer.memory.capacity), float(answer.memory.total)
        shown = show_bytes(room), show_bytes(total)
        found.append(
            Checked(name=step.name, what="memory of the device", limit=room, forecast=total, shown=shown, kept=False)
        )
    return found
