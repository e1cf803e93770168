"""What the papers claim, and what the same question gives here: one row a claim, from results alone.

A ratio is above 1 where the paper's side is better. Its interval is over folds and seeds where a benchmark kept them; else
it is the range over data sets, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median
from typing import Any, Final

from foretell_bench.pages.method_tables import sampled, seconds_each, theirs

Row = Mapping[str, Any]
HEADS: Final = ("claim of the paper", "here", "interval", "measured on", "why")
_NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a claim comes to."""

    here: str = _NOT_RUN
    interval: str = "–"
    on: str = "–"


def rows(results: Mapping[str, Sequence[Row]], beside: Mapping[str, Row]) -> list[tuple[str, ...]]:
    scaledl, predictddl, driple = (beside.get(name, {}) for name in ("scaledl", "predictddl", "driple"))
    lines = results.get("lines", ())
    told = [
        ("ScaleDL: 6× lower MRE than additive baselines", _lower(scaledl, "mre"),
         "step times of one device differ by a sixth from one occasion to the next, which no model can predict"),
        ("ScaleDL: 5× lower RMSE than additive baselines", _lower(scaledl, "rmse_seconds"),
         "a few long steps decide it, and an additive model is near on those"),
        ("Foretell at least 1.5× lower than after-ScaleDL on unseen architectures (our bar)", _ours(scaledl),
         "kernel times are learned better by trees bounded by a roofline; of step time both are near the host's own variation"),
        ("PredictDDL: 9.8× lower error than Ernest", _errors(predictddl),
         "Ernest runs the very workload, and its few terms describe the effect of scale well"),
        ("PredictDDL: 10.3× lower inference time than Ernest", _inference(predictddl),
         "Ernest's runs take seconds; without them it answers in microseconds"),
        ("Driple: up to 7.3× less time to tailor to a new setting", _transfer(driple),
         "a few dozen rows a setting: training from scratch is short too"),
        ("DNNAbacus: 0.9 % of time, 29 classic networks, random split", _classics(lines, "step_time"),
         "most of these steps wait for the host, whose speed varies: between neighbouring batches, interpolation has 7 %"),
        ("DNNAbacus: 2.8 % of memory, 29 classic networks, random split", _classics(lines, "memory"),
         "counts of ops and totals do not say when memory is freed; of networks seen, the paper's figure is near"),
        ("CherryPick: near-optimal in few runs", _searched(results.get("searches", ())),
         "tables are small and have steps where runs crash; its stopping rule ends searches early"),
    ]  # fmt: skip
    return [(claim, found.here, found.interval, found.on, why) for claim, found, why in told]


def between(low: float, high: float, over: str) -> str:
    least, most = (f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in (low, high))
    return f"{least} to {most} over {over}"


def _lower(scaledl: Row, figure: str) -> Found:
    """Times lower than an additive model fitted on the same steps; unseen architectures, step time."""
    ratio = scaledl.get("ratios", {}).get("after ScaleDL: architecture, all", {}).get("additive, on steps")
    if not ratio:
        return Found()
    steps = scaledl["tables"]["architecture, all"]["after ScaleDL"]["step"]["rows"]
    folds = scaledl.get("folds", {}).get(figure)
    return Found(
        here=f"{ratio['step'][figure]:.2g}× (of device time {ratio['device'][figure]:.2g}×)",
        interval=between(folds[0], folds[1], "8 folds") if folds else "–",
        on=f"{steps} steps of an H200, architectures left out",
    )


def _ours(scaledl: Row) -> Found:
    table = scaledl.get("tables", {}).get("architecture, all", {})
    if "Foretell" not in table:
        return Found()
    ratio = {w: table["after ScaleDL"][w]["mre"] / table["Foretell"][w]["mre"] for w in ("step", "device")}
    errors = " and ".join(f"{table[name]['step']['mre']:.1%}" for name in ("after ScaleDL", "Foretell"))
    folds = scaledl.get("folds", {}).get("foretell")
    return Found(
        here=f"{ratio['step']:.2f}× ({errors}; of device time {ratio['device']:.2f}×)",
        interval=between(folds[0], folds[1], "8 folds") if folds else "–",
        on=f"{table['Foretell']['step']['rows']} steps of an H200, architectures left out",
    )


def _errors(predictddl: Row) -> Found:
    """Over Ernest with runs of its own: a geometric mean over data, and how often Ernest ran."""
    parts = sampled(predictddl)
    if not parts:
        return Found()
    ratios = [theirs(one)["mean"] / one["errors"]["PredictDDL"]["mean"] for _, one, _ in parts]
    reused = [
        one["errors"]["Ernest, reused with no run"]["mean"] / one["errors"]["PredictDDL"]["mean"] for _, one, _ in parts
    ]
    count = sum(one["errors"]["PredictDDL"]["rows"] for _, one, _ in parts)
    return Found(
        here=f"{geometric_mean(ratios):.2g}× (over Ernest without a run {geometric_mean(reused):.2g}×)",
        interval=between(min(ratios), max(ratios), f"{len(parts)} comparisons"),
        on=f"{count} rows of cnn_many_gpus and jobs in a box that Ernest did not sample",
    )


def _inference(predictddl: Row) -> Found:
    """From a new workload to its answer: Ernest's runs, fit and answers; PredictDDL's capture, reading and answers."""
    parts = sampled(predictddl)
    if not parts:
        return Found()
    captured = [part for part in parts if "capture" in part[2]]
    parts = captured or parts  # jobs in a box run networks that no SOURCE names
    ratios = [seconds_each(one["spent"]) / (timing.get("capture", 0.0) + timing["predict"]) for _, one, timing in parts]
    return Found(
        here=f"{geometric_mean(ratios):.0f}×" + ("" if captured else ", capturing the graph not counted"),
        interval=between(min(ratios), max(ratios), f"{len(parts)} comparisons"),
        on="new workloads of cnn_many_gpus and jobs in a box",
    )


def _transfer(driple: Row) -> Found:
    """With the paper's frozen groups; a setting that never gets there counts as 0."""
    by = driple.get("times less", {}).get("transfer, frozen")
    if not by:
        return Found()
    never = f", never as good in {by['never']} of {by['fits']} fits" if "never" in by else ""
    return Found(
        here=f"{by['median']:.2g}× in the median{never}",
        interval=between(
            by["least"], by["most"], f"{by['settings']} settings" + (" and seeds" if "fits" in by else "")
        ),
        on="jobs of hosts in a box",
    )


def _classics(lines: Sequence[Row], target: str) -> Found:
    found = {
        line["split"].partition(": ")[2]: line
        for line in lines
        if line["split"].startswith("29 classics:")
        and line["target"] == target
        and line["mean"] is not None
        and line["method"] == "dnnabacus"
    }
    if "random" not in found:
        return Found()
    left_out = f" (network left out {found['network left out']['mean']:.1%})" if "network left out" in found else ""
    return Found(here=f"{found['random']['mean']:.1%}{left_out}", on=f"{found['random']['rows']} steps of an H200")


def _searched(rows: Sequence[Row]) -> Found:
    """Both on the same tables: those whose workload has a graph. Regrets where neither crashed, crashes of both beside."""
    ours = {row["table"]: row for row in rows if row["method"] != "CherryPick" and row["runs_to_near"] is not None}
    theirs_ = {row["table"]: row for row in rows if row["method"] == "CherryPick" and row["table"] in ours}
    ran = [t for t in theirs_ if ours[t]["regret"] is not None and theirs_[t]["regret"] is not None]
    if not ran:
        return Found()
    texts = []
    for name, by in (("CherryPick", theirs_), ("Foretell's ranking", ours)):
        regrets = [by[t]["regret"] for t in ran]
        crashed = sum(by[t].get("crashed", float(by[t]["regret"] is None)) for t in theirs_)
        texts.append(
            f"{name} {fmean(regrets):.0%} worse than the best on average, {median(regrets):.0%} in the median, after "
            f"{fmean(by[t]['runs'] for t in theirs_):.2g} runs, {crashed:.2g} of {len(theirs_)} crashed"
        )
    return Found(here="; ".join(texts), on=f"{len(ran)} tables with a graph where neither crashed")
