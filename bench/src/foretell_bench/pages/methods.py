"""The comparison of methods, drawn: a table for the terminal, and the tables of docs/accuracy/methods/, filled in from results.

A page holds `<!-- table: NAME -->` and `<!-- end -->`; what stands between is written here and never by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from types import MappingProxyType
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.errors import InputError
from foretell.store.importers import Taken
from foretell.units import show_seconds
from foretell_bench.pages.method_charts import among_others, searched
from foretell_bench.pages.method_tables import own_tables, sampled, seconds_each, theirs

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]
Beside = Mapping[str, Mapping[str, Any]]
_HEADS: Final = ("data", "left out", "target", "method", "mean", "median", "90th", "RMSE", "inside 90 %", "rows", "fit",
                 "measuring", "prediction")  # fmt: skip
_PLACE: Final = re.compile(r"(<!-- table: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_PICTURE: Final = re.compile(r"\]\(([a-z-]+)-errors\.svg\)")
_NOT_RUN: Final = "not run"
_LINES: Final = "<br>"  # between the lines of a cell
_OURS: Final = "foretell"
_NEARLY: Final = 0.9  # of the rows: two methods are compared where one answers so much of what the other does
_PLAINER: Final = ("additive, on steps", "FLOP-linear")
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


def fill_pages(folder: Path, results: Results, beside: Beside = MappingProxyType({})) -> list[Path]:
    """Write every table that the pages of a folder ask for, and every picture; the pages that changed.

    `beside` are results of the methods' own benchmarks, by name: what they claim of layers and of transfer.
    """
    changed = []
    for path in sorted(folder.glob("*.md")):
        page = path.read_text()
        filled = _PLACE.sub(lambda m: f"{m[1]}{table_named(m[2], results, beside)}\n{m[4]}", page)
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


def table_named(name: str, results: Results, beside: Beside = MappingProxyType({})) -> str:
    """`methods`, `summary`, `searches`, `claims`, or `method NAME`: what one method did."""
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
    if kind == "summary":
        return _markdown(*_beside_ours(lines))
    if kind == "claims":
        return _markdown(("claim of the paper", "result here", "why"), claims(results, beside))
    own = own_tables(beside)
    if name in own:
        return _markdown(*own[name]())
    raise InputError(
        f"no table {name!r}. Tables: methods, summary, method NAME, refusals, rows, searches, claims, {', '.join(own)}."
    )


def _taken(row: Row) -> str:
    return str(Taken(items=(None,) * row["asked"], left_out=row["left_out"]))


def _beside_ours(lines: Sequence[Row]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Each method's mean error over ours: a geometric mean over data, splits and targets where it answers nearly as much."""
    ours = {
        _asked(line): line for line in lines if line["method"] == _OURS and line["mean"] and line["split"] in _SPLITS
    }
    ratios: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        own = ours.get(_asked(line))
        if own and line["method"] != _OURS and line["mean"] and line["answered"] >= _NEARLY * own["answered"]:
            row = ratios.setdefault(line["method"], {split: [] for split in _SPLITS})
            row[line["split"]].append(line["mean"] / own["mean"])
    rows = []
    for method, by in sorted(ratios.items(), key=lambda t: geometric_mean([r for rs in t[1].values() for r in rs])):
        every = [ratio for those in by.values() for ratio in those]
        cells = (f"{geometric_mean(those):.2f} ({len(those)})" if those else "" for those in by.values())
        rows.append((method, f"{geometric_mean(every):.2f}", f"{sum(r < 1 for r in every)} of {len(every)}", *cells))
    return ("method", "its error over Foretell's", "lower than Foretell's in", *_SPLITS), rows


def _asked(line: Row) -> tuple[str, str, str]:
    return line["source"], line["split"], line["target"]


def _ordered(lines: Sequence[Row]) -> list[Row]:
    def place(line: Row) -> tuple[Any, ...]:
        split = _SPLITS.index(line["split"]) if line["split"] in _SPLITS else len(_SPLITS)
        error = line["mean"] if line["mean"] is not None else float("inf")
        return line["source"], split, line["split"], line["target"], error, line["method"]

    return sorted(lines, key=place)


def _cells(line: Row) -> tuple[str, ...]:
    rows = f"{line['answered']:,}" if line["answered"] == line["rows"] else f"{line['answered']:,} of {line['rows']:,}"
    waited = line["milliseconds"]
    return (
        line["source"],
        line["split"],
        line["target"].replace("_", " "),
        line["method"],
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


def claims(results: Results, beside: Beside) -> list[tuple[str, str, str]]:
    """What the papers claim, the same figure from our results, and why they differ."""
    scaledl, predictddl, driple = (beside.get(name, {}) for name in ("scaledl", "predictddl", "driple"))
    return [
        ("ScaleDL: 6× lower MRE and 5× lower RMSE than additive baselines", _lower(scaledl),
         "kernel times of one device add up, so its network finds little to explain there; steps differ by a sixth from one "
         "occasion to the next, which no model can predict"),
        ("Foretell at least 1.5× better than after-ScaleDL on unseen architectures (our bar)", _ours(scaledl),
         "of device time the rest is the models'; of step time both are near the variation of the host itself"),
        ("PredictDDL: 9.8× lower error than Ernest", _predictddl(predictddl, _error_ratio),
         "Ernest runs the very workload, and its few terms describe the effect of scale well; the paper's ratio is of jobs they "
         "do not fit"),
        ("PredictDDL: 10.3× lower inference time than Ernest", _predictddl(predictddl, _time_ratio),
         "Ernest's runs are counted, reading a graph is too, capturing it is not; without its runs Ernest answers in microseconds"),
        ("Driple: up to 7.3× less time to tailor to a new setting", _transfer(driple),
         "a few dozen rows per setting: training from scratch is short too, and ends where little more can be learned"),
        ("DNNAbacus: 0.9 % time, 2.8 % memory on 29 classic networks, random split", _classics(results),
         "a network has a few steps here, each at another batch, precision and optimizer; the paper's rows have near neighbours"),
        ("CherryPick: near-optimal in few runs", _searched(results.get("searches", ())),
         "tables are small and have steps where runs crash; its stopping rule ends searches early"),
    ]  # fmt: skip


def _lower(scaledl: Mapping[str, Any]) -> str:
    """MRE and RMSE, times lower than each plainer model's."""
    texts = []
    for split, about in (("architecture", "architectures left out"), ("batch", "largest batches left out")):
        for those, which in (("all", ""), ("five", ", the five")):
            ratios = scaledl.get("ratios", {}).get(f"after ScaleDL: {split}, {those}")
            for what in ("device", "step") if ratios else ():
                lower = (
                    f"{ratios[o][what]['mre']:.1f} and {ratios[o][what]['rmse_seconds']:.1f} over {o}" for o in _PLAINER
                )
                texts.append(f"{about}{which}, {what}: {', '.join(lower)}")
    return _LINES.join(texts) or _NOT_RUN


def _ours(scaledl: Mapping[str, Any]) -> str:
    texts = []
    for split, about in (("architecture", "architectures left out"), ("family", "families left out")):
        table = scaledl.get("tables", {}).get(f"{split}, all", {})
        for what in ("device", "step") if "Foretell" in table else ():
            theirs, ours = table["after ScaleDL"][what], table["Foretell"][what]
            texts.append(
                f"{about}, {what} time {theirs['mre']:.1%} and {ours['mre']:.1%}, {theirs['mre'] / ours['mre']:.2f}× (median "
                f"{theirs['median'] / ours['median']:.2f}×), {ours['rows']} steps"
            )
    return _LINES.join(texts) or _NOT_RUN


def _predictddl(found: Mapping[str, Any], say: Callable[[Row, Row], str]) -> str:
    return _LINES.join(f"{what}: {say(one, timing)}" for what, one, timing in sampled(found)) or _NOT_RUN


def _error_ratio(one: Row, timing: Row) -> str:
    ernest, ours, reused = theirs(one), one["errors"]["PredictDDL"], one["errors"]["Ernest, reused with no run"]
    return (
        f"{ernest['mean'] / ours['mean']:.2g}× ({ours['mean']:.1%}, Ernest {ernest['mean']:.1%}), {reused['mean'] / ours['mean']:.2g}× "
        f"lower than Ernest without a run, {ours['rows']} rows"
    )


def _time_ratio(one: Row, timing: Row) -> str:
    each = seconds_each(one["spent"])
    return f"{each / timing['predict']:.0f}× ({1e3 * timing['predict']:.0f} ms, Ernest {each:.3g} s per workload)"


def _transfer(driple: Mapping[str, Any]) -> str:
    return (
        _LINES.join(
            f"{way}: {_times(by['median'])} in the median of {by['settings']} settings, {_times(by['least'])} to {_times(by['most'])}"
            for way, by in driple.get("times less", {}).items()
        )
        or _NOT_RUN
    )


def _times(value: float) -> str:
    return "never equal" if not value else f"{value:.2g}×"


def _classics(results: Results) -> str:
    texts = [
        f"{line['split'].partition(': ')[2]}, {line['target'].replace('_', ' ')} {line['mean']:.1%}"
        for line in _ordered(results.get("lines", ()))
        if line["split"].startswith("29 classics:") and line["mean"] is not None
    ]
    return _LINES.join(texts) or _NOT_RUN


def _searched(rows: Sequence[Row]) -> str:
    """Both on the tables whose workload has a graph; CherryPick on the others too."""
    ranked = {row["table"] for row in rows if row["method"] != "CherryPick" and row["runs_to_near"] is not None}
    texts = []
    for method in dict.fromkeys(row["method"] for row in rows):
        for which, is_ranked in (("tables with a graph", True), ("others", False)):
            own = [row for row in rows if row["method"] == method and (row["table"] in ranked) == is_ranked]
            regrets = [row["regret"] for row in own if row["regret"] is not None]
            if not regrets:
                continue
            runs, cost, near = (fmean(row[name] for row in own) for name in ("runs", "cost", "reached"))
            crashed = f", {len(own) - len(regrets)} crashed" if len(regrets) < len(own) else ""
            texts.append(
                f"{method}, {len(own)} {which}: {median(regrets):.0%} worse than the best in the median, {fmean(regrets):.0%} on "
                f"average{crashed}, after {runs:.2g} runs of {_seconds(cost)}; within 5 % in {near:.0%} of searches"
            )
    return _LINES.join(texts) or _NOT_RUN


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else show_seconds(value) if value > 0 else "0"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
