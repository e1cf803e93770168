"""The comparison of methods, drawn: a table for the terminal, and the tables of docs/accuracy/methods.md and
bench/notes/methods/, filled in from results.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written here and never by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.errors import InputError
from foretell.methods.protocol import DEVICE_TIME, JOB_TIME, MEMORY, STEP_TIME
from foretell.store.importers import Selection
from foretell.units import show_seconds
from foretell_bench.pages import claims
from foretell_bench.pages.method_charts import among_others, searched
from foretell_bench.pages.method_folds import folds_tables
from foretell_bench.pages.method_tables import own_tables
from foretell_bench.tables.results import INPUTS

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]
Studies = Mapping[str, Any]
_HEADS: Final = ("data", "left out", "target", "method", "mean", "median", "90th", "RMSE", "inside 90 %", "rows", "fit",
                 "measuring", "prediction")  # fmt: skip
_PLACE: Final = re.compile(r"(<!-- table: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_PICTURE: Final = re.compile(r"\]\(([a-z-]+)-errors\.svg\)")
FEW: Final = 30  # rows: a line of fewer is marked, its error is a guess
_OLDER: Final = "‡"  # marks what was fitted before all methods had the same inputs
_TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY)  # as tables have them
_SPLITS: Final = ("random", "unseen configuration", "unseen architecture", "unseen device", "unseen scale")


def methods_table(results: Results) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, head in enumerate(_HEADS):
        table.add_column(head, justify="left" if i < 4 else "right", overflow="fold")
    lines = _ordered(results.get("lines", ()))
    for line in lines:
        table.add_row(*_cells(line))
    notes = sorted(
        {f"{line['method']} on {line['source']}, {line['split']}: {line['why']}." for line in lines if line["why"]}
    )
    parts: list[RenderableType] = [table, *(Text(note, style="dim") for note in notes)]
    for row in results.get("rows", ()):
        parts.append(Text(f"{row['source']}: {_taken(row)}.", style="dim"))
    if searches := results.get("searches"):
        found = Table(box=None, pad_edge=False, header_style="dim")
        for head in _SEARCH_HEADS:
            found.add_column(head, overflow="fold")
        for row in searches:
            found.add_row(*_search_cells(row))
        parts += [Text(), found]
    return Group(*parts)


def fill_pages(pages: Path, results: Results, studies: Studies = MappingProxyType({})) -> list[Path]:
    """Write every table that a page, or each page of a folder, asks for, and every picture; the pages that changed.

    `studies` are results of the methods' own benchmarks, by name: what they claim of layers and of transfer.
    """
    changed = []
    for path in sorted(pages.glob("*.md")) if pages.is_dir() else [pages]:
        page = path.read_text()
        filled = _PLACE.sub(lambda m: f"{m[1]}{table_named(m[2], results, studies)}\n{m[4]}", page)
        for name in _PICTURE.findall(page):
            path.with_name(f"{name}-errors.svg").write_text(_drawn(name, results))
        if filled != page:
            path.write_text(filled)
            changed.append(path)
    return changed


def _drawn(name: str, results: Results) -> str:
    if name == "cherrypick":
        return searched(results.get("searches", ()))
    return among_others(name, [line for line in _ordered(results.get("lines", ())) if line["split"] in _SPLITS])


def table_named(name: str, results: Results, studies: Studies = MappingProxyType({})) -> str:
    """`methods`, `folds errors open`, `searches`, `claims`, or `method NAME`: what one method did."""
    kind, _, which = name.partition(" ")
    lines = _ordered(results.get("lines", ()))
    if kind == "methods":
        return _markdown(_HEADS, [_cells(line) for line in lines if line["split"] in _SPLITS and line["answered"]])
    if kind == "method":
        return _markdown(_HEADS, [_cells(line) for line in lines if line["method"] == which and line["answered"]])
    if kind == "refusals":
        return _markdown(
            ("method", "data", "left out", "why"),
            sorted({(line["method"], line["source"], line["split"], line["why"]) for line in lines if line["why"]}),
        )
    if kind == "rows":
        return _markdown(("data", "rows"), [(row["source"], _taken(row)) for row in results.get("rows", ())])
    if kind == "searches":
        return _markdown(_SEARCH_HEADS, [_search_cells(row) for row in results.get("searches", ())])
    if kind == "claims":
        return _markdown(claims.HEADS, claims.rows(results, studies))
    own = own_tables(studies) | (folds_tables(studies["folds"]) if "folds" in studies else {})
    if name in own:
        return _markdown(*own[name]())
    raise InputError(
        f"no table {name!r}. Tables: methods, method NAME, refusals, rows, searches, claims, {', '.join(own)}."
    )


def _taken(row: Row) -> str:
    return str(Selection(items=(None,) * row["asked"], left_out=row["left_out"]))


def _is_older(line: Row) -> bool:
    return line.get("inputs") != INPUTS


def _ordered(lines: Sequence[Row]) -> list[Row]:
    def place(line: Row) -> tuple[Any, ...]:
        split = _SPLITS.index(line["split"]) if line["split"] in _SPLITS else len(_SPLITS)
        error = line["mean"] if line["mean"] is not None else float("inf")
        return line["source"], split, line["split"], _TARGETS.index(line["target"]), error, line["method"]

    return sorted(lines, key=place)


def _cells(line: Row) -> tuple[str, ...]:
    rows = f"{line['answered']:,}" if line["answered"] == line["rows"] else f"{line['answered']:,} of {line['rows']:,}"
    rows += " †" * (line["answered"] < FEW)
    waited = line["milliseconds"]
    return (
        line["source"],
        line["split"],
        line["target"].replace("_", " "),
        line["method"] + f" {_OLDER}" * _is_older(line),
        *(_share(line.get(name)) for name in ("mean", "median", "p90", "rmse", "inside")),
        rows,
        _seconds(line["fit_seconds"]),
        _seconds(line["measuring_seconds"]),
        "–" if waited is None else f"{waited:.3g} ms",
    )


_SEARCH_HEADS: Final = ("data", "table", "configurations", "search", "runs", "seconds", "worse than the best",
                        "runs to within 5 %", "seconds to within 5 %", "within 5 %")  # fmt: skip


def _search_cells(row: Row) -> tuple[str, ...]:
    return (
        row["source"],
        row["table"],
        str(row["configurations"]),
        row["method"],
        f"{row['runs']:.3g}",
        _seconds(row["cost"]),
        _share(row["regret"]),
        "–" if row["runs_to_near"] is None else f"{row['runs_to_near']:.3g}",
        _seconds(row["cost_to_near"]),
        _share(row["reached"]),
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else show_seconds(value) if value > 0 else "0"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
