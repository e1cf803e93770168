"""`steps.csv`: measured step times as most people have them, a row each."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from foretell.errors import ForetellError, InputError, did_you_mean
from foretell.hardware import Cluster
from foretell.learn.adapt.steps import Step
from foretell.limits import read_bytes
from foretell.plans import Plan
from foretell.units import Bytes

COLUMNS: Final = ("source", "settings", "cluster", "plan", "seconds", "allocated", "reserved", "software")
_NEEDED: Final = ("source", "seconds")


def read_steps(path: Path, device: str = "") -> list[Step]:
    """The steps of a file; `device` is the cluster of rows that name none. One wrong row is an error that names its line."""
    try:
        text = read_bytes(path, "bytes of a table of steps").decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a table of steps: {error}.") from None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = rows.fieldnames or ()
        for name in columns:
            if name not in COLUMNS:
                raise InputError(
                    f"{path}: unknown column {name!r}. {did_you_mean(name, COLUMNS)}Allowed: {', '.join(COLUMNS)}."
                )
        if missing := [name for name in _NEEDED if name not in columns]:
            raise InputError(
                f"{path} has no column {' and no column '.join(missing)}. Its first line names the columns: {','.join(COLUMNS)}."
            )
        steps = [_step(path, rows.line_num, row, device) for row in rows]
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: no CSV: {error}.") from None
    if not steps:
        raise InputError(f"{path} has no rows. Give a row for each measured step: {','.join(COLUMNS)}.")
    return steps


def _step(path: Path, line: int, row: Mapping[str, str | None], device: str) -> Step:
    try:
        if None in row or None in row.values():
            raise InputError("it has more or fewer cells than the first line. Put a cell with commas in quotes.")
        cell = {name: (row.get(name) or "").strip() for name in COLUMNS}
        on = cell["cluster"] or device
        if not cell["source"] or not on:
            raise InputError(
                "it names no source."
                if not cell["source"]
                else "it names no cluster. Fill the column, or give --device."
            )
        Cluster.parse(on)
        return Step(
            workload=cell["source"], on=on, plan=Plan.parse(cell["plan"]) if cell["plan"] else None,
            settings=_settings(cell["settings"]), seconds=_number("seconds", cell["seconds"]),
            allocated=_bytes(cell, "allocated"), reserved=_bytes(cell, "reserved"), software=cell["software"] or None,
        )  # fmt: skip
    except ForetellError as error:
        raise InputError(f"{path}, line {line}: {error}") from None


def _bytes(cell: Mapping[str, str], name: str) -> Bytes | None:
    return round(_number(name, cell[name])) if cell[name] else None


def _settings(text: str) -> dict[str, str]:
    """`batch=64 precision=amp-bf16`, with spaces, commas or semicolons in between."""
    found = {}
    for item in filter(None, re.split(r"[\s,;]+", text)):
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(f"settings are like batch=64 precision=amp-bf16, got {text!r}.")
        found[name] = value
    return found


def _number(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise InputError(f"{name} must be a number, got {text!r}.")
