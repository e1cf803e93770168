"""What a store holds: counts for `store ls`, one step in full for `store show`, and any table an SQL question gives."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from foretell.measure.record import OpRow, Record
from foretell.report.measured import measured
from foretell.report.terminal import grid, section
from foretell.store.folder import PUBLIC
from foretell.store.store import Store
from foretell.store.tables import ROWS
from foretell.units import show_bytes

_MANY_SEGMENTS = 200
_CELL = 60  # characters of a long value


def summary(store: Store) -> dict[str, Any]:
    """What `store ls --json` prints."""
    snapshot = store.snapshot()
    public = [table for table in snapshot.files if table.startswith(PUBLIC)]

    def ask(sql: str) -> list[dict[str, Any]]:
        return plain_rows(store.query(sql))

    def counts(column: str, origin: str = "steps") -> dict[str, int]:
        rows = ask(f"SELECT {column} AS name, count(*) AS count FROM {origin} GROUP BY ALL ORDER BY count DESC, name")
        return {row["name"]: row["count"] for row in rows}

    return {
        "schema_version": 1,
        "store": str(store.path),
        "bytes": store.size(),
        "segments": sum(len(snapshot.segments(table)) for table in snapshot.files),
        "rows": {table: ask(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in ROWS},
        "devices": ask(
            """SELECT coalesce(nullif(device, ''), device_name) AS device, count(*) AS steps,
                      count(*) FILTER (outcome = 'ok') AS ok, count(DISTINCT source) AS architectures,
                      count(DISTINCT occasion) AS occasions, left(min(date), 16) AS first, left(max(date), 16) AS last
               FROM steps GROUP BY 1 ORDER BY steps DESC, device"""
        ),
        "outcomes": counts("outcome"),
        "kinds": counts("kind"),
        "marks": counts("mark", "(SELECT split_part(unnest(marks), ':', 1) AS mark FROM steps)"),
        "architectures": counts("source"),
        "occasions": counts("occasion"),
        "public": [
            {"table": table}
            | ask(
                f"""SELECT count(*) AS rows, count(DISTINCT origin) AS files, any_value(source) AS source,
                           any_value(licence) AS licence, bool_or(evaluation_only) AS evaluation_only FROM {table}"""
            )[0]
            for table in public
        ],
        "damaged": {str(path): reason for path, reason in store.damaged().items()},
    }


def summary_table(facts: Mapping[str, Any]) -> RenderableType:
    rows = facts["rows"]
    parts: list[RenderableType] = [
        Text.assemble(
            (facts["store"], "bold"),
            f"  {rows['steps']:,} steps, {rows['ops']:,} ops, {rows['graphs']:,} graphs"
            f" · {show_bytes(facts['bytes'])} in {facts['segments']:,} segments",
        )
    ]
    if facts["devices"]:
        parts.append(section("Devices", _of(facts["devices"])))
    for title, key in (("Outcomes", "outcomes"), ("Marks", "marks")):
        if facts[key]:
            parts.append(section(title, Text(_counted(facts[key]))))
    for title, key in (("Architectures", "architectures"), ("Occasions", "occasions")):
        if facts[key]:
            parts.append(section(title, Text(_counted(facts[key], most=8)), f"{len(facts[key]):,}"))
    if facts["public"]:
        parts.append(
            section(
                "Public tables", _of(facts["public"], names=("table", "rows", "files", "licence", "evaluation_only"))
            )
        )
    if facts["segments"] > _MANY_SEGMENTS:
        parts.append(
            Text("\nMany small segments make queries slow. Merge them with: foretell store merge", style="dim")
        )
    return Group(*parts)


def step_dict(record: Record, top: int) -> dict[str, Any]:
    """What `store show ID --json` prints."""
    return {
        "schema_version": 1,
        "id": record.step.id,
        "step": asdict(record.step),
        "ops": len(record.ops),
        "top_ops": [asdict(op) for op in _slowest(record, top)],
        "series": [asdict(series) for series in record.series],
        "allocations": len(record.allocations.action) if record.allocations else 0,
    }


def step_table(record: Record, top: int) -> RenderableType:
    """As `measure` showed it, and every series with its samples."""
    series = [
        {"resource": s.resource, "counter": s.counter, "samples": len(s.values), "unit": s.unit}
        | {"mean": sum(s.values) / len(s.values), "peak": max(s.values)}
        for s in record.series
        if s.values
    ]
    shown = measured(record, top=top)
    return Group(shown, section("Resources over time", _of(series))) if series else shown


def answer_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> RenderableType:
    """The rows of any SQL answer."""
    return Group(_of(rows, names=names), Text(f"\n{len(rows):,} row{'' if len(rows) == 1 else 's'}.", style="dim"))


def plain_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table as JSON can hold them: no bytes, no NaN, no dates."""
    return [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    return float(value) if type(value).__name__ == "Decimal" else str(value)


def _slowest(record: Record, top: int) -> list[OpRow]:
    timed = [op for op in record.ops if op.device_seconds is not None]
    return sorted(timed, key=lambda op: -(op.device_seconds or 0.0))[:top]


def _counted(counts: Mapping[str, int], most: int | None = None) -> str:
    shown = [f"{name or '(none)'} {count:,}" for name, count in list(counts.items())[:most]]
    return " · ".join(shown) + (" · …" if most is not None and len(counts) > most else "")


def _of(rows: Sequence[Mapping[str, Any]], *, names: Sequence[str] | None = None) -> RenderableType:
    names = list(rows[0]) if names is None else names
    words = [name.replace("_", " ") for name in names if any(isinstance(row[name], str) for row in rows)]
    titles = [name.replace("_", " ") for name in names]
    table = grid(*titles, left=words, wraps=titles)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
