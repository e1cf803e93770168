"""After Driple on the project's own measurements: error by target on unseen architectures, and what transfer saves.

    python benchmarks/methods_driple.py [--groups 24] [--rounds 4] [--epochs 100] [--only SETTING] [--h200 ROWS]
    python benchmarks/methods_driple.py --show [--picture docs/methods/driple.svg]

One architecture of each family is never trained on, in any setting. Every setting is fitted from scratch; the network of
SOURCE is tailored to each other setting, with the paper's frozen groups and without. Results are kept after every
setting, in benchmarks/results/driple.json, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import torch

from foretell.bench.box import BOX_TARGETS, H200_TARGETS, box_runs, h200_resources
from foretell.cost.collectives import collective_seconds
from foretell.cost.model import ROOFLINE, load_model
from foretell.methods.driple import GROUPS_OF_PARAMETERS, TUNED, Driple, DripleSettings, setting_of
from foretell.methods.protocol import STEP_TIME, Example, Prediction, Query
from foretell.parallel import parallelize
from foretell.simulate.schedule import Durations, simulate

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results" / "driple.json"
SOURCE: Final = "dp=2 on 2xcpu@1000Mbit/s"
FEW: Final = 4  # training architectures, where samples are to be saved
EVERY: Final = 5  # epochs between looks at the held-out rows
WITHIN: Final = 1.05  # of an error is equal to it
TARGETS: Final = (STEP_TIME, *BOX_TARGETS)
WAYS: Final = {"transfer, frozen": TUNED, "transfer, all tuned": GROUPS_OF_PARAMETERS}
Values = Mapping[str, float]


def held_out(architectures: Sequence[str]) -> set[str]:
    """The second of each family, by name: chosen before anything was fitted."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(architectures)):
        families[name.split("-")[0]].append(name)
    return {names[min(1, len(names) - 1)] for names in families.values()}


def by_setting(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """One run of each architecture and batch: other parts of the data have the same steps."""
    found: dict[str, dict[tuple[str, float], Example]] = defaultdict(dict)
    for e in examples:
        found[setting_of(e.query)].setdefault((e.query.architecture, e.query.batch), e)
    return {setting: list(own.values()) for setting, own in found.items()}


# Errors.


def scales(train: Sequence[Example], targets: Sequence[str]) -> dict[str, float]:
    return {t: max(e.measured[t] for e in train if t in e.measured) for t in targets}


def errors(told: Sequence[Values], test: Sequence[Example], scale: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Of each target: relative, where there is something to be relative to, and as a share of the largest in training."""
    found = {}
    for target, largest in scale.items():
        pairs = [
            (v[target], e.measured[target])
            for v, e in zip(told, test, strict=True)
            if target in v and target in e.measured
        ]
        if not pairs:
            continue
        relative = [abs(said / was - 1) for said, was in pairs if was > 0.01 * largest]
        found[target] = {
            "scaled": fmean(abs(said - was) / largest for said, was in pairs),
            "relative": fmean(relative), "median": median(relative), "rows": len(relative),
        }  # fmt: skip
    return found


def scaled_error(told: Sequence[Values], test: Sequence[Example], scale: Mapping[str, float]) -> float:
    return fmean(by["scaled"] for by in errors(told, test, scale).values())


# Foretell on the same rows.


def foretell_says(train: Sequence[Example], test: Sequence[Example]) -> list[Values]:
    """Forecasts of the box. One number is fitted on the training rows: how much slower than a whole socket a host is."""
    model = load_model(ROOFLINE)

    def parts(query: Query) -> tuple[Any, list[float], list[float]]:
        assert query.graph is not None
        role = parallelize(query.graph, query.plan).roles[0]
        prices = [price.seconds for price in model.price(role.graph, query.cluster.nodes[0].device).prices]
        return role, prices, [collective_seconds(c, query.cluster) for c in role.collectives]

    def slowness(e: Example) -> float:
        role, prices, taken = parts(e.query)
        talking = sum(seconds * c.turns for seconds, c in zip(taken, role.collectives, strict=True))
        return max(0.1 * e.measured[STEP_TIME], e.measured[STEP_TIME] - talking) / sum(prices)

    slower = median(slowness(e) for e in train)
    answers = []
    for e in test:
        role, prices, taken = parts(e.query)
        durations = Durations(
            device=[price * slower for price in prices], host=[0.0] * len(prices), waits=[False] * len(prices),
            collectives=[seconds * c.turns for seconds, c in zip(taken, role.collectives, strict=True)],
        )  # fmt: skip
        step = simulate(role, durations).makespan
        pull = sum(s for s, c in zip(taken, role.collectives, strict=True) if c.name.startswith("pull"))
        both = e.query.plan.servers == 0  # an all-reduce sends and receives at once
        active = {
            "network_tx": sum(taken) - pull,
            "network_rx": sum(taken) if both else pull,
            "compute": slower * sum(prices),
        }
        assert e.query.cluster.between is not None
        peak = {
            "network_tx": e.query.cluster.between.bandwidth,
            "network_rx": e.query.cluster.between.bandwidth,
            "compute": 1.0,
        }
        values = {STEP_TIME: step}
        for name, seconds in active.items():
            values |= {
                f"{name}_active_seconds": seconds,
                f"{name}_idle_seconds": max(0.0, step - seconds),
                f"{name}_peak": peak[name],
            }
        answers.append(values)
    return answers


# Fitting.


def watched(
    run: Callable[[Any], Driple], test: Sequence[Example], scale: Mapping[str, float]
) -> tuple[Driple, list[list[float]]]:
    """The method, and the error on held-out rows as processor seconds of fitting go by."""
    curve: list[list[float]] = []
    queries, looks = [e.query for e in test], 0

    def watch(seconds: float, ask: Callable[[Sequence[Query]], list[Prediction]]) -> None:
        nonlocal looks
        looks += 1
        if looks % EVERY == 1:
            curve.append([round(seconds, 3), scaled_error([p.values for p in ask(queries)], test, scale)])

    return run(watch), curve


def one_setting(
    setting: str, rows: Sequence[Example], base: Driple | None, chosen: DripleSettings
) -> tuple[dict[str, Any], Driple]:
    out = held_out([e.query.architecture for e in rows])
    train = [e for e in rows if e.query.architecture not in out]
    test = [e for e in rows if e.query.architecture in out]
    names = sorted({e.query.architecture for e in train})
    few_names = set(names[:: len(names) // FEW][:FEW])
    # Rows whose counters were read too late have the step's time alone.
    scale = scales(train, [t for t in TARGETS if sum(t in e.measured for e in train) >= len(train) / 2])
    queries = [e.query for e in test]
    found: dict[str, Any] = {"train": len(train), "test": len(test), "held out": sorted(out), "fits": {}}
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    found["errors"] = {
        "median of training": errors([middle] * len(test), test, scale),
        "Foretell": errors(foretell_says(train, test), test, scale),
    }
    scratch: Driple | None = None
    for amount, some in (("all", train), ("few", [e for e in train if e.query.architecture in few_names])):
        made, curve = watched(lambda w, some=some: Driple(chosen).fit(some, w), test, scale)
        told = [p.values for p in made.predict(queries)]
        fits = found["fits"].setdefault(amount, {"rows": len(some)})
        fits["scratch"] = {"curve": curve, "error": scaled_error(told, test, scale), "seconds": made.fitted_[setting].seconds,
                           "epochs": made.fitted_[setting].epochs}  # fmt: skip
        if amount == "all":
            scratch = made
            found["errors"]["after Driple"] = errors(told, test, scale)
        if base is None:
            continue
        for way, groups in WAYS.items():
            made, curve = watched(
                lambda w, some=some, groups=groups: base.transfer(some, SOURCE, groups, w), test, scale
            )
            told = [p.values for p in made.predict(queries)]
            fits[way] = {"curve": curve, "error": scaled_error(told, test, scale), "seconds": made.fitted_[setting].seconds,
                         "epochs": made.fitted_[setting].epochs}  # fmt: skip
            if amount == "all":
                found["errors"][way] = errors(told, test, scale)
    assert scratch is not None
    return found, scratch


def h200(rows: int, chosen: DripleSettings) -> dict[str, Any]:
    """Device and memory targets of one H200; every fourth architecture is held out."""
    examples = [
        e
        for e in h200_resources(HERE / "data" / "h200", most=2 * rows)
        if e.query.graph and len(e.query.graph.ops) < 4000
    ]
    examples = examples[:rows]
    names = sorted({e.query.architecture for e in examples})
    out = set(names[::4])
    train = [e for e in examples if e.query.architecture not in out]
    test = [e for e in examples if e.query.architecture in out]
    scale = scales(train, (STEP_TIME, *H200_TARGETS))
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    method = Driple(chosen).fit(train)
    told = [p.values for p in method.predict([e.query for e in test])]
    return {
        "train": len(train), "test": len(test), "architectures": len(names),
        "errors": {"median of training": errors([middle] * len(test), test, scale), "after Driple": errors(told, test, scale)},
    }  # fmt: skip


# Showing.


def reached(curve: Sequence[Sequence[float]], level: float) -> float | None:
    return next((seconds for seconds, error in curve if error <= level), None)


def show(results: Mapping[str, Any]) -> None:
    for setting, found in results["settings"].items():
        print(
            f"\n{setting}: {found['train']} rows to train on, {found['test']} of unseen architectures. Mean relative error"
        )
        ways = list(found["errors"])
        print("| target | " + " | ".join(ways) + " |\n|---" * 1 + "|---" * len(ways) + "|")
        for target in found["errors"]["after Driple"]:
            print(
                f"| {target} | " + " | ".join(f"{by[target]['relative']:.1%}" for by in found["errors"].values()) + " |"
            )
    print(
        "\nTransfer from",
        SOURCE,
        "against from scratch: error as a share of the largest label; seconds until within 5 %",
    )
    print("of what scratch ends at with all rows; the error with few rows")
    for setting, found in results["settings"].items():
        if setting == SOURCE:
            continue
        level = WITHIN * found["fits"]["all"]["scratch"]["error"]
        print(f"\n{setting} (equal: {level:.4f})")
        for fits in found["fits"].values():
            for way, fit in fits.items():
                if way != "rows":
                    at = reached(fit["curve"], level)
                    when = "never" if at is None else f"{at:.1f} s"
                    print(
                        f"  {fits['rows']:3d} rows, {way:20s} error {fit['error']:.4f}, equal after {when}, fitted {fit['seconds']:.1f} s"
                    )
    if "h200" in results:
        found = results["h200"]
        print(
            f"\nOne H200: {found['train']} rows to train on, {found['test']} of unseen architectures. Mean and median relative error"
        )
        for target, by in found["errors"]["after Driple"].items():
            plain = found["errors"]["median of training"][target]
            print(
                f"| {target} | {by['relative']:.1%} | {by['median']:.1%} | {plain['relative']:.1%} | {plain['median']:.1%} |"
            )


def picture(results: Mapping[str, Any], path: Path) -> None:
    """Error on held-out rows over seconds of fitting, a panel a setting."""
    shown = {s: f["fits"]["all"] for s, f in results["settings"].items() if s != SOURCE}
    colours = {"scratch": "#888888", "transfer, frozen": "#c2410c", "transfer, all tuned": "#1d4ed8"}
    wide, high, margin = 250, 170, 36
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * wide + 20}" height="{rows * high + 40}" '
             'font-family="sans-serif" font-size="10">']  # fmt: skip
    for i, (way, colour) in enumerate(colours.items()):
        parts.append(f'<text x="{40 + 150 * i}" y="14" fill="{colour}">— {way}</text>')
    for place, (setting, fits) in enumerate(shown.items()):
        x0, y0 = (place % columns) * wide + margin, (place // columns) * high + 30
        width, height = wide - margin - 10, high - 50
        longest = max(c[-1][0] for way in colours if (c := fits[way]["curve"]))
        most = max(error for way in colours for _, error in fits[way]["curve"][1:])
        parts.append(f'<text x="{x0}" y="{y0 + 10}">{setting}</text>')
        parts.append(f'<path d="M{x0},{y0 + 16}V{y0 + height}H{x0 + width}" fill="none" stroke="#bbb"/>')
        parts.append(
            f'<text x="{x0 - 30}" y="{y0 + 24}">{most:.2f}</text><text x="{x0 - 12}" y="{y0 + height}">0</text>'
        )
        parts.append(f'<text x="{x0 + width - 34}" y="{y0 + height + 12}">{longest:.0f} s</text>')
        for way, colour in colours.items():
            points = " ".join(
                f"{x0 + width * seconds / longest:.1f},{y0 + height - (height - 16) * min(1, error / most):.1f}"
                for seconds, error in fits[way]["curve"]
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>\n"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=24, help="100 as released")
    parser.add_argument("--rounds", type=int, default=4, help="of messages; half the groups as released")
    parser.add_argument("--readings", type=int, default=4, help="of Set2Set; as many as groups as released")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--base", type=Path, help="a file of your own to keep the network of SOURCE in between calls")
    parser.add_argument("--only", default="", help="a part of a setting's name")
    parser.add_argument("--h200", type=int, default=0, help="rows of the H200 store, instead of the box")
    parser.add_argument("--show", action="store_true", help="what is there, nothing computed")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = DripleSettings(
        groups=options.groups, rounds=options.rounds, readings=options.readings, epochs=options.epochs,
        patience=options.epochs, batch=8, validated=0.0,
    )  # fmt: skip
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"settings": {}}

    def keep() -> None:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    if not options.show and options.h200:
        results["h200"] = h200(options.h200, chosen)
        keep()
    elif not options.show:
        results["chosen"] = {
            "groups": options.groups,
            "rounds": options.rounds,
            "readings": options.readings,
            "epochs": options.epochs,
        }
        settings = {
            s: rows
            for s, rows in by_setting(box_runs(HERE / "data" / "box")).items()
            if options.only in s or s == SOURCE
        }
        if SOURCE not in settings:
            sys.exit(f"no runs of {SOURCE}, which transfer starts from.")
        if options.base and options.base.exists():
            base: Driple = pickle.loads(options.base.read_bytes())
        else:
            results["settings"][SOURCE], base = one_setting(SOURCE, settings[SOURCE], None, chosen)
            keep()
            if options.base:
                options.base.write_bytes(pickle.dumps(base))
        for setting, rows in settings.items():
            if setting not in results["settings"] and len({e.query.architecture for e in rows}) >= 12:
                results["settings"][setting], _ = one_setting(setting, rows, base, chosen)
                keep()
                print(setting, flush=True)
    show(results)
    if options.picture:
        picture(results, options.picture)


if __name__ == "__main__":
    main()
