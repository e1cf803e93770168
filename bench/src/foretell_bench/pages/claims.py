"""What the papers claim, and what the same question gives here: one row a claim, from results alone.

A ratio is above 1 where the paper's side is better. Its interval is over folds and seeds where a benchmark kept them; else
it is the range over data sets, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, median
from typing import Any, Final

from foretell.methods.protocol import DEVICE_TIME, STEP_TIME
from foretell_bench.pages.method_tables import answer_seconds, sampled, seconds_each, theirs, times
from foretell_bench.tables.paired import Folds, Range
from foretell_bench.tables.planner import loss_of
from foretell_bench.tables.sooner import SCRATCH, ratios, times_fewer
from foretell_bench.tables.variants import nine_tenths

Row = Mapping[str, Any]
HEADS: Final = ("claim of the paper", "here", "interval", "measured on", "why")
_NOT_RUN: Final = "not run"
_DATA: Final = {
    "h200": "300 steps of an H200, architectures left out",
    "box": "jobs of emulated hosts, architectures left out",
    "box-cnns": "jobs of 45 CNNs on one to eight workers, architectures left out",
    "cnn_many_gpus": "240 steps of CNNs on 1 to 4 GPUs, architectures left out",
    "timm_train": "48 steps of timm's networks, architectures left out",
    "h200-sweep": "696 steps of 29 classic networks, networks left out",
    "five": "150 steps of its five networks on an H200, networks left out",
    "five-batches": "150 steps of its five networks on an H200, batches left out",
}
_SHARED: Final = "two workers that share an H200"
_WHY_FIVE: Final = "dense batches of few networks at one precision: what is left is the host's variation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a claim comes to."""

    here: str = _NOT_RUN
    interval: str = "–"
    on: str = "–"


def rows(results: Mapping[str, Sequence[Row]], studies: Mapping[str, Any]) -> list[tuple[str, ...]]:
    predictddl, driple, shared = (studies.get(name, {}) for name in ("predictddl", "driple", "driple-box-gpu"))
    to_the_end, folds = shared.get("until patience", {}), studies.get("folds")
    fits = list(studies.get("variants", {}).values())
    lines = results.get("lines", ())
    every = [
        ("ScaleDL: 6× lower MRE than additive baselines", _lower(folds, "mean"),
         "step times of one device differ by a sixth from one occasion to the next, which no model can predict"),
        ("ScaleDL: 5× lower RMSE than additive baselines", _lower(folds, "rmse"),
         "a few long steps decide it, and so does which of them are drawn"),
        ("ScaleDL: lower MRE than additive baselines, in its own setting", _fold_by_fold(fits, "five-batches", "additive", "ScaleDL"),
         _WHY_FIVE),
        ("ScaleDL: messages between layers matter", _messages(fits),
         "where ops' times add up to the device's, there is nothing for messages to add; they carry collectives"),
        ("PredictDDL: 9.8× lower error than Ernest, row by row", _over_ernest(folds),
         "Ernest runs the very workload, and its few terms describe the effect of scale well"),
        ("PredictDDL: the same, with the runs that Ernest's design asks for", _errors(predictddl),
         "Ernest runs the very workload, and its few terms describe the effect of scale well"),
        ("PredictDDL: 10.3× lower inference time than Ernest", _inference(predictddl),
         "Ernest's runs take seconds, but so does capturing a new network's graph; from a graph, answers take milliseconds"),
        ("Driple: up to 7.3× less time to tailor to a new setting", _tailored(to_the_end, shared),
         "until 20 epochs bring nothing; a tailored network is near where training from scratch then ends before its first epoch"),
        ("Driple: lower error than a ridge on three totals of the graph", _against(to_the_end, "ridge"),
         "six networks of which nothing was seen are predicted from 37, by labels that long steps decide"),
        ("Driple: lower error than the middle of the training rows", _against(to_the_end, "median of training"),
         "the same"),
        ("Driple: the same, of a few dozen rows a setting", _transfer(driple, "jobs of emulated hosts"),
         "training from scratch is short too, and what was frozen does not always fit"),
        ("DNNAbacus: 0.9 % of time, 29 classic networks, random split", _classics(lines, "step_time"),
         "most of these steps wait for the host, whose speed varies: between neighbouring batches, interpolation has 7 %"),
        ("DNNAbacus: 2.8 % of memory, 29 classic networks, random split", _classics(lines, "memory"),
         "counts of ops and totals do not say when memory is freed; of networks seen, the paper's figure is near"),
        ("PredictDDL: its embedding tells networks apart", _embedding(fits),
         "FLOPs, bytes and parameters tell most of what a step takes; with a few dozen networks the rest is learned by heart"),
        ("CherryPick: near-optimal in few runs", _searched(studies.get("planner", ())),
         "half of the configurations crash, which it learns run by run and a forecast of memory knows before"),
    ]  # fmt: skip
    return [(claim, found.here, found.interval, found.on, why) for claim, found, why in every]


def between(low: float, high: float, over: str) -> str:
    least, most = (f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in (low, high))
    return f"{least} to {most} over {over}"


def _outcome(found: Range | None) -> Outcome | None:
    if found is None:
        return None
    over = f"nine tenths of a bootstrap over {found.groups} groups, {found.seeds} seed{'s' * (found.seeds > 1)} of five folds"
    return Outcome(here=f"{found.value:.2g}×", interval=between(found.low, found.high, over), on=f"{found.rows} rows")


def _lower(folds: Folds | None, figure: str) -> Outcome:
    """Times lower than an additive model that knows precisions, on the same rows of an H200."""
    if folds is None or "h200" not in folds.measured:
        return Outcome()
    made = {
        target: (folds.ratio if figure == "mean" else folds.rmse_ratio)("h200", "additive", "scaledl", "opened", target)
        for target in (STEP_TIME, DEVICE_TIME)
    }
    step, device = _outcome(made[STEP_TIME]), made[DEVICE_TIME]
    if step is None:
        return Outcome()
    also = f" (of device time {device.value:.2g}×, {device.low:.2g} to {device.high:.2g})" if device else ""
    return replace(step, here=step.here + also, on=f"{step.on} of an H200, architectures left out")


def _over_ernest(folds: Folds | None) -> Outcome:
    """On rows of workloads that Ernest has runs of, which PredictDDL has not."""
    if folds is None:
        return Outcome()
    found = {
        source: ratio for source in folds.measured
        if (ratio := folds.ratio(source, "ernest", "predictddl", "opened")) is not None
    }  # fmt: skip
    if not found:
        return Outcome()
    cells = [f"{r.value:.2g} ({r.low:.2g} to {r.high:.2g}) on {source}" for source, r in found.items()]
    return Outcome(
        here=f"{geometric_mean([r.value for r in found.values()]):.2g}×", interval="; ".join(cells),
        on=f"{sum(r.rows for r in found.values())} rows that Ernest did not sample",
    )  # fmt: skip


def _tailored(found: Row, shorter: Row) -> Outcome:
    """In epochs, from the first at which a tailored network is as good as one from scratch ever is; of shorter fits, in seconds."""
    way = "transfer, frozen"
    if way not in found:
        return _transfer(shorter, "two workers that share an H200")
    fewer = times_fewer(found, way)
    never = sum(ratio == 0 for ratio in fewer)
    low, high = nine_tenths(fewer)
    return Outcome(
        here=f"{median(fewer):.2g}× fewer epochs in the median, never as good in {never} of {len(fewer)} fits",
        interval=between(low, high, f"nine tenths of {len(fewer)} fits"), on=_SHARED,
    )  # fmt: skip


def _against(found: Row, over: str) -> Outcome:
    found_ratios = ratios(found, over)
    if not found_ratios:
        return Outcome()
    epochs = max(one["epochs"] for one in found[SCRATCH].values())
    lower = sum(ratio < 1 for ratio in found_ratios)
    return Outcome(
        here=f"{1 / geometric_mean(found_ratios):.2f}×, lower in {lower} of {len(found_ratios)} fits",
        interval=between(*nine_tenths([1 / r for r in found_ratios]), f"nine tenths of {len(found_ratios)} fits"),
        on=f"{_SHARED}, up to {epochs:,} epochs from scratch",
    )  # fmt: skip


def _errors(predictddl: Row) -> Outcome:
    """Over Ernest with runs of its own: a geometric mean over data, and how often Ernest ran."""
    parts = sampled(predictddl)
    if not parts:
        return Outcome()
    ratios = [theirs(one)["mean"] / one["errors"]["PredictDDL"]["mean"] for _, one, _ in parts]
    reused = [
        one["errors"]["Ernest, reused with no run"]["mean"] / one["errors"]["PredictDDL"]["mean"] for _, one, _ in parts
    ]
    count = sum(one["errors"]["PredictDDL"]["rows"] for _, one, _ in parts)
    return Outcome(
        here=f"{geometric_mean(ratios):.2g}× (over Ernest without a run {geometric_mean(reused):.2g}×)",
        interval=between(min(ratios), max(ratios), f"{len(parts)} comparisons"),
        on=f"{count} rows of cnn_many_gpus, jobs of emulated hosts and of CNNs that Ernest did not sample",
    )


def _inference(predictddl: Row) -> Outcome:
    """From a new workload to its answer: Ernest's runs, fit and answers; PredictDDL's capture, reading and answers."""
    parts = sampled(predictddl)
    if not parts:
        return Outcome()
    captured = [part for part in parts if "capture" in part[2]]
    parts = captured or parts
    ratios = [seconds_each(one["spent"]) / answer_seconds(timing) for _, one, timing in parts]
    return Outcome(
        here=f"{times(geometric_mean(ratios))}×" + ("" if captured else ", capturing the graph not counted"),
        interval=between(min(ratios), max(ratios), f"{len(parts)} comparisons"),
        on="new workloads of cnn_many_gpus, jobs of emulated hosts and of CNNs",
    )


def _transfer(driple: Row, on: str) -> Outcome:
    """With the paper's frozen groups; a setting that never gets there counts as 0."""
    by = driple.get("times less", {}).get("transfer, frozen")
    if not by:
        return Outcome()
    never = f", never as good in {by['never']} of {by['fits']} fits" if "never" in by else ""
    return Outcome(
        here=f"{by['median']:.2g}× in the median{never}",
        interval=between(
            by["least"], by["most"], f"{by['settings']} settings" + (" and seeds" if "fits" in by else "")
        ),
        on=on,
    )


def _classics(lines: Sequence[Row], target: str) -> Outcome:
    found = {
        line["split"].partition(": ")[2]: line
        for line in lines
        if line["split"].startswith("29 classics:")
        and line["target"] == target
        and line["mean"] is not None
        and line["method"] == "dnnabacus"
    }
    if "random" not in found:
        return Outcome()
    left_out = f" (network left out {found['network left out']['mean']:.1%})" if "network left out" in found else ""
    return Outcome(here=f"{found['random']['mean']:.1%}{left_out}", on=f"{found['random']['rows']} steps of an H200")


def _searched(tables: Sequence[Row]) -> Outcome:
    """Both on the planner's tables, whatever crashes counted as lost: what they lose of the best, after how many runs."""
    if not tables:
        return Outcome()

    def mean(name: str) -> float:
        return fmean(table[name] for table in tables)

    ours, theirs_ = [loss_of(t["regret"]) for t in tables], [t["cherrypick_loss"] for t in tables]
    crashed = sum(table["regret"] is None for table in tables)
    better = sum(their < our for our, their in zip(ours, theirs_, strict=True))
    return Outcome(
        here=f"CherryPick loses {fmean(theirs_):.1%} of the best after {mean('cherrypick_runs'):.0f} runs, "
        f"{mean('cherrypick_crashes'):.0f} of them crashes; Foretell's choice {fmean(ours):.1%} with no run, "
        f"{crashed} of {len(tables)} crashed, and {fmean(loss_of(t['measured_regret']) for t in tables):.1%} after "
        f"{mean('measured_runs'):.1f} runs; CherryPick is better than the choice with no run on {better} of {len(tables)}",
        interval=f"CherryPick {min(theirs_):.1%} to {max(theirs_):.1%} over tables",
        on=f"{len(tables)} tables of plans on H100",
    )


def _ratios(fits: Sequence[Row], source: str, worse: str, better: str) -> list[float]:
    """Errors of two variants, fold by fold and seed by seed; one that has no seeds is the same for all."""
    by = {(f["variant"], f["fold"], f["seed"]): f["mean"] for f in fits if f["source"] == source and f["mean"]}
    seeds = sorted({(fold, seed) for variant, fold, seed in by if variant in (worse, better)})
    pairs = [[by.get((v, *at)) or by.get((v, at[0], 0)) for v in (worse, better)] for at in seeds]
    return [high / low for high, low in pairs if high and low]


def _fold_by_fold(fits: Sequence[Row], source: str, worse: str, better: str) -> Outcome:
    ratios = _ratios(fits, source, worse, better)
    if not ratios:
        return Outcome()
    low, high = nine_tenths(ratios)
    over = f"nine tenths of {len(ratios)} folds and seeds"
    return Outcome(
        here=f"{geometric_mean(ratios):.2g}×", interval=between(low, high, over), on=_DATA.get(source, source)
    )


def _messages(fits: Sequence[Row]) -> Outcome:
    """Where they were cut, over all data that has it; the interval is of the first."""
    cut = "ScaleDL, messages cut"
    sources = [s for s in _DATA if _ratios(fits, s, cut, "ScaleDL")]
    return _over_sources(fits, sources, cut, "ScaleDL")


def _embedding(fits: Sequence[Row]) -> Outcome:
    without = "PredictDDL, no embedding"
    return _over_sources(fits, [s for s in _DATA if _ratios(fits, s, without, "PredictDDL")], without, "PredictDDL")


def _over_sources(fits: Sequence[Row], sources: Sequence[str], worse: str, better: str) -> Outcome:
    if not sources:
        return Outcome()
    means = {s: geometric_mean(_ratios(fits, s, worse, better)) for s in sources}
    every = [ratio for s in sources for ratio in _ratios(fits, s, worse, better)]
    return Outcome(
        here=f"without: {', '.join(f'{ratio:.2g}× on {s}' for s, ratio in means.items())}",
        interval=between(*nine_tenths(every), f"nine tenths of {len(every)} folds and seeds"),
        on="architectures left out in five folds; batches in five-batches",
    )
