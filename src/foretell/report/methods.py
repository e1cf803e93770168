"""The comparison of methods, drawn: a table for the terminal, and the tables of docs/methods/, filled in from results.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written here and never by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.errors import InputError
from foretell.report.method_charts import among_others, searched
from foretell.units import show_seconds

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]
_HEADS: Final = ("data", "left out", "target", "method", "mean", "median", "90th", "RMSE", "rows", "fit", "measured for",
                 "a prediction")  # fmt: skip
_PLACE: Final = re.compile(r"(<!-- table: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_PICTURE: Final = re.compile(r"\]\(([a-z-]+)-errors\.svg\)")
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
    if searches := results.get("searches"):
        found = Table(box=None, pad_edge=False, header_style="dim")
        for head in _SEARCH_HEADS:
            found.add_column(head, overflow="fold")
        for row in searches:
            found.add_row(*_search_cells(row))
        parts += [Text(), found]
    return Group(*parts)


def fill_pages(folder: Path, results: Results) -> list[Path]:
    """Write every table that the pages of a folder ask for, and every picture; the pages that changed."""
    changed = []
    for path in sorted(folder.glob("*.md")):
        page = path.read_text()
        filled = _PLACE.sub(lambda m: f"{m[1]}{table_named(m[2], results)}\n{m[4]}", page)
        for name in _PICTURE.findall(page):
            (folder / f"{name}-errors.svg").write_text(_drawn(name, results))
        if filled != page:
            path.write_text(filled)
            changed.append(path)
    return changed


def _drawn(name: str, results: Results) -> str:
    if name == "cherrypick":
        return searched(results.get("searches", ()))
    return among_others(name, [line for line in _ordered(results.get("lines", ())) if line["split"] in _SPLITS])


def table_named(name: str, results: Results) -> str:
    """`methods`, `searches`, `claims`, or `method NAME`: what one method did."""
    kind, _, which = name.partition(" ")
    lines = _ordered(results.get("lines", ()))
    if kind == "methods":
        return _markdown(_HEADS, [_cells(line) for line in lines if line["split"] in _SPLITS])
    if kind == "method":
        return _markdown(_HEADS, [_cells(line) for line in lines if line["method"] == which])
    if kind == "refusals":
        return _markdown(("method", "data", "left out", "why"), sorted({
            (line["method"], line["source"], line["split"], line["why"]) for line in lines if line["why"]}))  # fmt: skip
    if kind == "searches":
        return _markdown(_SEARCH_HEADS, [_search_cells(row) for row in results.get("searches", ())])
    if kind == "claims":
        return _markdown(("claim of the paper", "what came out here"), claims(results))
    raise InputError(f"no table {name!r}. Tables: methods, method NAME, refusals, searches, claims.")


def _ordered(lines: Sequence[Row]) -> list[Row]:
    def place(line: Row) -> tuple[Any, ...]:
        split = _SPLITS.index(line["split"]) if line["split"] in _SPLITS else len(_SPLITS)
        off = line["mean"] if line["mean"] is not None else float("inf")
        return line["source"], split, line["split"], line["target"], off, line["method"]

    return sorted(lines, key=place)


def _cells(line: Row) -> tuple[str, ...]:
    rows = f"{line['answered']:,}" if line["answered"] == line["rows"] else f"{line['answered']:,} of {line['rows']:,}"
    waited = line["milliseconds"]
    return (
        line["source"], line["split"], line["target"].replace("_", " "), line["method"],
        *(_share(line[name]) for name in ("mean", "median", "p90", "rmse")), rows, _seconds(line["fit_seconds"]),
        _seconds(line["measuring_seconds"]), "–" if waited is None else f"{waited:.3g} ms",
    )  # fmt: skip


_SEARCH_HEADS: Final = ("data", "table", "configurations", "search", "runs", "seconds", "worse than the best",
                        "runs to within 5 %", "seconds to within 5 %", "within 5 %")  # fmt: skip


def _search_cells(row: Row) -> tuple[str, ...]:
    return (
        row["source"], row["table"], str(row["configurations"]), row["method"], f"{row['runs']:.3g}", _seconds(row["cost"]),
        _share(row["regret"]), "–" if row["runs_to_near"] is None else f"{row['runs_to_near']:.3g}",
        _seconds(row["cost_to_near"]), _share(row["reached"]),
    )  # fmt: skip


def claims(results: Results) -> list[tuple[str, str]]:
    """What the papers say, beside the same question asked of the results."""
    find = _finder(results)
    return [
        ("ScaleDL, at least 1.5× behind Foretell on unseen architectures",
         _ratio("device time, h200", find("h200", "unseen architecture", "device_time"), "scaledl", "foretell")),
        ("PredictDDL: 9.8× lower error than Ernest",
         _both("predictddl", [("cnn_many_gpus", find("cnn_many_gpus", "unseen architecture", "step_time")),
                              ("box, whole jobs", find("box", "unseen architecture", "job_time"))])),
        ("PredictDDL: 10.3× lower inference time than Ernest, its runs counted",
         _waits(find("cnn_many_gpus", "unseen architecture", "step_time"))),
        ("DNNAbacus: 0.9 % time, 2.8 % memory on 29 classic networks, random split", _classics(results)),
        ("CherryPick: near-optimal in few runs", _searched(results.get("searches", ()))),
    ]  # fmt: skip


Found = Mapping[str, Row]


def _finder(results: Results) -> Callable[[str, str, str], Found]:
    def find(source: str, split: str, target: str) -> Found:
        return {line["method"]: line for line in results.get("lines", ())
                if (line["source"], line["split"], line["target"]) == (source, split, target)}  # fmt: skip

    return find


def _ratio(what: str, found: Found, worse: str, better: str) -> str:
    if any(name not in found or found[name]["mean"] is None for name in (worse, better)):
        return f"{what}: not both were run"
    a, b = found[worse]["mean"], found[better]["mean"]
    return f"{what}: {worse} {a:.1%}, {better} {b:.1%}, {a / b:.2g}×, {found[better]['rows']} rows"


def _both(method: str, found: Sequence[tuple[str, Found]]) -> str:
    return "; ".join(_ratio(what, lines, "ernest", method) for what, lines in found)


def _waits(found: Found) -> str:
    if "ernest" not in found or "predictddl" not in found or found["ernest"]["measuring_seconds"] is None:
        return "not both were run"
    ernest, other = found["ernest"], found["predictddl"]
    return (
        f"a prediction takes {other['milliseconds']:.3g} ms, Ernest's {ernest['milliseconds']:.3g} ms; Ernest first runs the "
        f"workloads for {ernest['measuring_seconds']:.3g} s, {ernest['measuring_seconds'] / ernest['rows']:.3g} s an answer"
    )


def _classics(results: Results) -> str:
    said = [f"{line['split']}, {line['target'].replace('_', ' ')} {line['mean']:.1%}" for line in _ordered(results.get("lines", ()))
            if line["split"].startswith("29 classics:") and line["mean"] is not None]  # fmt: skip
    return "; ".join(said) or "not run"


def _searched(rows: Sequence[Row]) -> str:
    said = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["regret"] is not None]
        if mine:
            regret, runs, near = (sum(row[name] for row in mine) / len(mine) for name in ("regret", "runs", "reached"))
            said.append(f"{method}: {regret:.0%} worse than the best after {runs:.2g} runs, within 5 % in {near:.0%} of searches, "
                        f"{len(mine)} tables")  # fmt: skip
    return "; ".join(said) or "not run"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else show_seconds(value) if value > 0 else "0"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
