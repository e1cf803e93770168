"""What fits of ScaleDL come down to: tables of errors, ratios, and a chart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from foretell_bench.studies.scaledl.fits import CUT, FORETELL, LAYERS, NETWORKS, TARGETS, WHOLE, Array, Data, mre

FIVE = {"ResNet-50": "timm/resnet50", "VGG-16": "torchvision/vgg16", "BERT-base": "hf/bert-base", "GPT-2": "hf/gpt2",
        "ViT-B/16": "timm/vit_base_patch16_224"}  # fmt: skip
Done = dict[str, Any]  # a task's name → what came of it


def errors(predicted: Array, measured: Array) -> dict[str, float]:
    relative = np.abs(predicted / measured - 1)
    return {"mre": float(relative.mean()), "median": float(np.median(relative)), "p90": float(np.quantile(relative, 0.9)),
            "rmse_seconds": float(np.sqrt(((predicted - measured) ** 2).mean())),
            "rmse_relative": float(np.sqrt((relative**2).mean())), "rows": len(relative)}  # fmt: skip


def _split_of(which: int | str) -> str:
    return "architecture" if isinstance(which, int) else "batch" if which == "batch" else "family"


def report(data: Data, done: Done, foretell: dict[str, dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Tables: split × set of steps × method × target → errors. RMSE is in seconds, as in the paper, and relative."""
    folds = [one for name, one in done.items() if name.startswith(("fold: ", "without: ")) and not one.get("seed")]
    predicted: dict[str, dict[str, dict[str, Array]]] = {}
    for split in ("architecture", "batch", "family"):
        predicted[split] = {}
        for part in (f for f in folds if _split_of(f["left out"]) == split):
            for method, values in part["predicted"].items():
                for what in TARGETS:
                    column = predicted[split].setdefault(method, {}).setdefault(what, np.full(len(data.pages), np.nan))
                    column[part["steps"]] = values[what]
        known = foretell.get(split, {})
        if known and predicted[split]:
            predicted[split]["Foretell"] = {
                w: np.array([known.get(name, (np.nan, np.nan))[i] for name in data.names])
                for i, w in enumerate(TARGETS)
            }
    predicted = {split: methods for split, methods in predicted.items() if methods}
    sets = {
        "all": np.ones(len(data.pages), bool), "five": np.isin(data.sources, list(FIVE.values())),
        "training": np.array(data.training), "inference": ~np.array(data.training), "fold 0": np.array(data.folds) == 0,
    }  # fmt: skip
    tables: dict[str, Any] = {}
    for split, methods in predicted.items():
        for name, mask in sets.items():
            covering = _covering(methods, mask)
            there = np.all([~np.isnan(c[w]) for c in covering.values() for w in TARGETS], axis=0)
            rows = mask & there
            if rows.any() and (split == "architecture" or name != "fold 0"):
                tables[f"{split}, {name}"] = {
                    m: {w: errors(c[w][rows], data.measured(w)[rows]) for w in TARGETS} for m, c in covering.items()
                }
    five = [
        {"network": short, "record": data.names[i], "split": split, "measured": {w: float(data.measured(w)[i]) for w in TARGETS},
         "predicted": {m: {w: float(c[w][i]) for w in TARGETS} for m, c in predicted[split].items() if not np.isnan(c["device"][i])}}
        for split in predicted for short, source in FIVE.items() for i in range(len(data.pages))
        if data.sources[i] == source and not np.isnan(predicted[split]["after ScaleDL"]["device"][i])
    ]  # fmt: skip
    tried = {kind: {name.partition(": ")[2]: one[1:] for name, one in done.items() if name.startswith(f"{kind}: ")}
             for kind in ("layers", "network", "foretell")}  # fmt: skip
    spent = [f["seconds"] for f in folds if "seconds" in f]
    return {
        "steps": len(data.pages), "operators": len(data.operators), "architectures": len(set(data.sources)),
        "tried": tried, "chosen": done["chosen"], "trained on": done["on"],
        "settings": {"layers": {n: dataclasses.asdict(s) for n, s in LAYERS.items()},
                     "networks": {n: dataclasses.asdict(s) | {"parts": p} for n, (s, p) in NETWORKS.items()},
                     "foretell": FORETELL},
        "seconds": {k: float(np.mean([one[k] for one in spent])) for k in ("fit", "predict")},
        "measuring_seconds": float(np.sum(data.costs)), "tables": tables, "ratios": ratios(tables),
        "designs": [one for name, one in done.items() if name.startswith("points: ")], "five": five,
        "messages": over_seeds(data, done), "folds": over_folds(data, predicted.get("architecture", {})),
    }  # fmt: skip


def over_folds(data: Data, methods: dict[str, dict[str, Array]]) -> dict[str, list[float]]:
    """The least and the most of what the claims say, over folds of architectures; of step time."""
    claims = {"mre": ("additive, on steps", "mre"), "rmse_seconds": ("additive, on steps", "rmse_seconds"),
             "foretell": ("Foretell", "mre")}  # fmt: skip
    found = {}
    for name, (other, figure) in claims.items():
        if other in methods and "after ScaleDL" in methods:
            pair, ratios_ = [methods[m]["step"] for m in ("after ScaleDL", other)], list[float]()
            for fold_ in sorted(set(data.folds)):
                rows = (np.array(data.folds) == fold_) & ~np.isnan(pair[0]) & ~np.isnan(pair[1])
                if not rows.any():
                    continue
                ours, theirs = (errors(c[rows], data.measured("step")[rows])[figure] for c in pair)
                ratios_.append(ours / theirs if name == "foretell" else theirs / ours)
            found[name] = [min(ratios_), max(ratios_)]
    return found


def over_seeds(data: Data, done: Done) -> list[dict[str, Any]]:
    """Errors with messages and with messages cut, of the same steps and seed."""
    by_seed: dict[tuple[int | str, int], dict[str, dict[str, float]]] = {}
    for name, one in done.items():
        if name.startswith(("fold: ", "without: ")):
            for method in {WHOLE, CUT} & set(one["predicted"]):
                found = {w: mre(one["predicted"][method][w], data.measured(w)[one["steps"]]) for w in TARGETS}
                by_seed.setdefault((one["left out"], one.get("seed", 0)), {})[method] = found
    both = [(key, methods) for key, methods in by_seed.items() if len(methods) == 2]
    return [{"left out": which, "seed": seed, **methods} for (which, seed), methods in both]


def _covering(methods: dict[str, dict[str, Array]], mask: Array) -> dict[str, dict[str, Array]]:
    """Those that predict nearly all of these steps that the method does: some were left out of fewer folds."""
    count = int((mask & ~np.isnan(methods["after ScaleDL"]["device"])).sum())
    return {m: c for m, c in methods.items() if (mask & ~np.isnan(c["device"])).sum() >= 0.9 * count}


def ratios(tables: dict[str, Any]) -> dict[str, Any]:
    """How many times lower than each other method's: MRE, and RMSE in seconds."""
    found: dict[str, Any] = {}
    for name, methods in tables.items():
        for own in ("after ScaleDL", "Foretell"):
            if own in methods:
                found[f"{own}: {name}"] = {
                    other: {w: {e: methods[other][w][e] / methods[own][w][e] for e in ("mre", "rmse_seconds")} for w in TARGETS}
                    for other in methods if other != own
                }  # fmt: skip
    return found


def show(made: dict[str, Any], say: Callable[[str], None]) -> None:
    say(
        f"{made['steps']} steps of {made['architectures']} architectures, {made['operators']} operator points; chosen {made['chosen']}"
    )
    for kind, variants in made["tried"].items():
        for name, values in variants.items():
            shown = ", ".join(f"{v:.1%} of {w} time" for v, w in zip(values[:-1], TARGETS, strict=False))
            say(f"  tried {kind}, {name}: errors {shown}; {values[-1]:.0f} s")
    for name, methods in made["tables"].items():
        rows = next(iter(methods.values()))["device"]["rows"]
        say(f"\n{name} ({rows} steps)\n  {'':22} device: MRE  median  RMSE      step: MRE  median  RMSE")
        for method, by in sorted(methods.items(), key=lambda t: t[1]["device"]["mre"]):
            parts = [
                f"{by[w]['mre']:11.1%} {by[w]['median']:7.1%} {by[w]['rmse_seconds'] * 1e3:6.1f} ms" for w in TARGETS
            ]
            say(f"  {method:22} {'   '.join(parts)}")
    say("\ntimes lower MRE and RMSE than …")
    for name, others in made["ratios"].items():
        each = [f"{o} {r['device']['mre']:.1f}/{r['device']['rmse_seconds']:.1f} device, {r['step']['mre']:.1f}/"
                f"{r['step']['rmse_seconds']:.1f} step" for o, r in others.items()]  # fmt: skip
        say(f"  {name}: " + "; ".join(each))
    for one in made.get("messages", ()):
        shown = ", ".join(f"{one[WHOLE][w]:.1%} and {one[CUT][w]:.1%} of {w} time" for w in TARGETS)
        say(f"  messages, and cut: {shown}; {one['left out']} left out, seed {one['seed']}")
    say("\nat equal seconds of measuring, mean over folds (device, step)")
    for budget in sorted({d["budget"] for d in made["designs"]}):
        for by in ("d-optimal", "random"):
            own = [d for d in made["designs"] if (d["budget"], d["by"]) == (budget, by)]
            if own:
                say(f"  {budget:4.0f} s {by:10} {np.mean([d['points'] for d in own]):5.0f} points  "
                      f"{np.mean([d['device'] for d in own]):6.1%}  {np.mean([d['step'] for d in own]):6.1%}")  # fmt: skip


_COLOURS = {"after ScaleDL": "#2f6fab", "Foretell": "#3a8f5c"}
_LEFT, _WIDTH, _THICK, _GAP = 150, 210, 18, 7


def chart(made: dict[str, Any]) -> str:
    """Mean relative errors, a bar a method; a panel each for device and step time, a row of them for each split."""
    drawn, top = [], 10.0
    for name, title in (("architecture, all", "architectures left out"), ("family, all", "families left out")):
        methods = made["tables"].get(name, {})
        order = sorted(methods, key=lambda m: methods[m]["device"]["mre"])
        for column, what in enumerate(TARGETS):
            left = _LEFT + column * (_WIDTH + 90)
            drawn.append(f'<text x="{left}" y="{top + 16}" font-weight="bold">{what} time, {title}</text>')
            for row, method in enumerate(order):
                y, error = top + 28 + row * (_THICK + _GAP), methods[method][what]["mre"]
                length = _WIDTH * min(error, 1.0)
                if not column:
                    drawn.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{method}</text>')
                drawn.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{_THICK}" fill="{_COLOURS.get(method, "#bbbbbb")}"/>'
                    f'<text x="{left + length + 5:.1f}" y="{y + 13}">{error:.1%}</text>'
                )
        top += 44 + len(order) * (_THICK + _GAP)
    width = _LEFT + 2 * (_WIDTH + 90)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:.0f}" width="{width}" height="{top:.0f}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#444444"><title>Mean relative error on unseen steps</title>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )
