"""Tables of the methods' own benchmarks, for their pages: ScaleDL and plainer models, PredictDDL and Ernest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

from foretell_bench.tables import variants

Results = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_TARGETS: Final = ("device", "step")
_SETS: Final = (("architecture, all", "architectures left out"), ("architecture, five", "the five among them"),
                ("batch, all", "largest batches left out"), ("batch, five", "the five's largest batches"))  # fmt: skip
_PARTS: Final = {"cnn": "cnn_many_gpus", "timm": "timm_train", "h200": "H200, images", "box": "emulated hosts, whole jobs",
                 "box-cnns": "CNNs on emulated hosts, whole jobs"}  # fmt: skip
_UNSEEN: Final = "unseen architectures"


def own_tables(studies: Mapping[str, Results]) -> dict[str, Callable[[], Table]]:
    """Name → what makes it, of the results that are there."""
    scaledl, predictddl = studies.get("scaledl", {}), studies.get("predictddl", {})
    made: dict[str, Callable[[], Table]] = {
        "scaledl ratios": lambda: _ratios(scaledl),
        "scaledl tried": lambda: _tried(scaledl),
        "scaledl designs": lambda: _designs(scaledl),
        "predictddl errors": lambda: _errors(predictddl),
        "predictddl ernest": lambda: _ernest(predictddl),
        "predictddl validated": lambda: _validated(predictddl),
    }
    named = {"scaledl ablations": ("architecture", "fold 0")} | {
        f"scaledl {split}": (split, "all") for split in ("architecture", "batch", "family")
    }
    if scratch := studies.get("driple-box-gpu", {}).get("until patience", {}).get("from scratch"):
        made["driple patience"] = lambda: _patience(scratch)
    sources = sorted({str(fit["source"]) for fit in studies.get("variants", {}).values()})
    made |= {f"variants {source}": partial(_variants, studies["variants"], source) for source in sources}
    return made | {
        name: lambda split=split, those=those: _compared(scaledl, split, those)
        for name, (split, those) in named.items()
    }


def _patience(fits: Mapping[str, Results]) -> Table:
    """A row a setting, means over seeds: errors beside the ridge's and the constant's, and when a fit was best."""
    by: dict[str, list[Results]] = {}
    for key, one in fits.items():
        by.setdefault(key.partition(" | ")[0], []).append(one)
    names = ("after Driple", "ridge", "median of training")
    rows = []
    for setting, own in sorted(by.items()):
        errors = (fmean(one["error"][name] for one in own) for name in names)
        lower = (sum(one["error"][names[0]] < one["error"][name] for one in own) for name in names[1:])
        best, epochs = ([one[what] for one in own] for what in ("best", "epochs"))
        ended = sum(one["ended"] for one in own)
        rows.append(
            (setting, *(f"{e:.3f}" for e in errors), *(f"{n} of {len(own)}" for n in lower),
             f"{min(best)} to {max(best)}", f"{min(epochs):,} to {max(epochs):,}", f"{ended} of {len(own)}")
        )  # fmt: skip
    return (
        "setting",
        *names,
        "lower than the ridge",
        "than the median",
        "best epoch",
        "epochs",
        "ended by patience",
    ), rows


def _variants(found: Results, source: str) -> Table:
    heads = ("variant", "mean error of step time", "nine tenths of folds and seeds", "over the whole system's", "fits")
    return heads, [row[1:] for row in variants.table(found) if row[0] == source]


def _compared(found: Results, split: str, those: str) -> Table:
    methods = found.get("tables", {}).get(f"{split}, {those}", {})
    steps = next((by["device"]["rows"] for by in methods.values()), 0)
    heads = (f"left out by {split}, {steps} steps", "device: MRE", "median", "RMSE", "step: MRE", "median", "RMSE")
    order = sorted(methods, key=lambda m: methods[m]["device"]["mre"])
    return heads, [(m, *(cell for w in _TARGETS for cell in _three(methods[m][w]))) for m in order]


def _three(errors: Results) -> tuple[str, str, str]:
    return f"{errors['mre']:.1%}", f"{errors['median']:.1%}", f"{1e3 * errors['rmse_seconds']:.1f} ms"


def _ratios(found: Results) -> Table:
    """MRE and RMSE in seconds, how many times lower than each other method's."""
    rows = []
    others: list[str] = []
    for name, about in _SETS:
        ratios = found.get("ratios", {}).get(f"after ScaleDL: {name}")
        if ratios is None:
            continue
        others = others or [
            o for o in ("additive, on steps", "additive, on layers", "FLOP-linear", "roofline") if o in ratios
        ]
        steps = found["tables"][name]["after ScaleDL"]["device"]["rows"]
        rows += [
            (
                f"{about}, {w}",
                str(steps),
                *(f"{ratios[o][w]['mre']:.1f} / {ratios[o][w]['rmse_seconds']:.1f}" for o in others),
            )
            for w in _TARGETS
        ]
    return ("times lower, MRE / RMSE", "steps", *others), rows


def _tried(found: Results) -> Table:
    rows = [
        (kind, name, *(f"{v:.1%}" for v in values[:-1]), *[""] * (3 - len(values)), f"{values[-1]:.0f} s")
        for kind, variants in found.get("tried", {}).items()
        for name, values in variants.items()
    ]
    return ("of", "variant", "error of device time", "error of step time", "seconds"), rows


def _designs(found: Results) -> Table:
    rows = []
    designs = found.get("designs", [])
    for budget in sorted({d["budget"] for d in designs}):
        cells = [f"{budget:.0f} s"]
        for by in ("d-optimal", "random"):
            own = [d for d in designs if (d["budget"], d["by"]) == (budget, by)]
            error = ", ".join(f"{fmean(d[w] for d in own):.1%}" for w in _TARGETS) if own else "–"
            cells.append(f"{error} ({fmean(d['points'] for d in own):.0f} steps)" if own else error)
        rows.append(cells)
    return ("seconds of measuring", "D-optimal: device, step", "random: device, step"), rows


def _columns(found: Results) -> Iterator[tuple[str, Results]]:
    for part, about in _PARTS.items():
        if part in found:
            networks = len(set(found[part]["networks"]))
            yield f"{about}, {len(found[part]['networks'])} rows of {networks}", found[part][_UNSEEN]["errors"]
            if "unseen families" in found[part]:
                yield f"{about}, whole families", found[part]["unseen families"]["errors"]


def _errors(found: Results) -> Table:
    columns = list(_columns(found))
    names = list(dict.fromkeys(name for _, errors in columns for name in errors))
    rows = [
        (name, *(f"{e[name]['mean']:.1%}, {e[name]['median']:.1%}" if name in e else "" for _, e in columns))
        for name in names
    ]
    return ("mean, median error", *(about for about, _ in columns)), rows


def _ernest(found: Results) -> Table:
    rows = []
    for about, one, timing in sampled(found):
        ernest, ours, reused = theirs(one), one["errors"]["PredictDDL"], one["errors"]["Ernest, reused with no run"]
        spent = one["spent"]
        each = seconds_each(spent)
        rows.append(
            (
                about,
                f"{ours['rows']}",
                f"{ours['mean']:.1%}, {ours['median']:.1%}",
                f"{ernest['mean']:.1%}, {ernest['median']:.1%}",
                f"{ernest['mean'] / ours['mean']:.2g} ({ernest['median'] / ours['median']:.2g})",
                f"{reused['mean'] / ours['mean']:.2g}",
                f"{spent['runs']:.0f}, {spent['measuring']:,.0f} s",
                f"{each:.3g} s, {answer_seconds(timing):.2g} s, {answer_seconds(timing, 'forecast'):.2g} s",
                times(each / answer_seconds(timing)),
            )
        )
    return (
        "",
        "rows",
        "PredictDDL: mean, median",
        "Ernest",
        "error lower by (median)",
        "than Ernest without a run by",
        "Ernest's runs",
        "a new workload: Ernest, PredictDDL, Foretell",
        "time less by",
    ), rows


def sampled(found: Results) -> list[tuple[str, Results, Results]]:
    """Where Ernest was given runs: `cnn_many_gpus` by the GPUs it ran on, jobs of emulated hosts and of CNNs."""
    parts = [
        (f"cnn_many_gpus, Ernest's runs on {gpus} GPUs", one, found["cnn"]["timing"])
        for gpus, one in found.get("cnn", {}).get("ernest", {}).items()
    ]
    for name, about in (("box", "jobs of emulated hosts"), ("box-cnns", "jobs of CNNs on 1 to 8 workers")):
        if "ernest" in found.get(name, {}):
            parts.append((about, found[name]["ernest"], found[name]["timing"]))
    return parts


def theirs(one: Results) -> Results:
    """Errors of Ernest with runs of its own."""
    errors: Results = next(
        e for name, e in one["errors"].items() if name.startswith("Ernest,") and "reused" not in name
    )
    return errors


def seconds_each(spent: Results) -> float:
    """Of a workload: its runs, its fit, its answers."""
    return float((spent["measuring"] + spent["fit"] + spent["predict"]) / spent["workloads"])


def times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def answer_seconds(timing: Results, by: str = "predict") -> float:
    """From a network nobody has seen to its answer: its graph is captured, then read."""
    return float(timing.get("capture", 0.0) + timing.get(by, 0.0))


def _validated(found: Results) -> Table:
    """What validation saw of each form, the mean over folds, and how often it chose it."""
    rows, forms = [], ("linear", "polynomial", "svr", "mlp")
    for part, about in _PARTS.items():
        folds = found.get(part, {}).get("validated")
        if folds:
            chosen = [min(fold, key=lambda form: fold[form]) for fold in folds]
            rows.append(
                (about, *(f"{fmean(fold[f] for fold in folds):.1%}, {chosen.count(f)} of {len(folds)}" for f in forms))
            )
    return ("validation's error, times chosen", *forms), rows
