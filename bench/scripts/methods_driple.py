"""After Driple on the project's own measurements: error by target on unseen architectures, and what transfer saves.

    python bench/scripts/methods_driple.py [--only SETTING] [--seeds 5] [--as-released] [--on cuda] [--out FILE]
    python bench/scripts/methods_driple.py --h200 60
    python bench/scripts/methods_driple.py --show [--picture docs/accuracy/methods/driple.svg]

Each seed leaves another architecture of each family out of every setting, fits each setting from scratch with all, half
and a quarter of the other architectures, and tailors the network of SOURCE to it, with the release's frozen groups and
without. A fit stops on architectures left out for validation; those it is asked about in the end play no part. Equal is an
error of validation, the median of five epochs in a row, within 5 % of the least that training from scratch has. A fit that
never gets there counts as no saving at all. How to train is chosen before, on architectures of SOURCE that no seed leaves
out of its own training, and logged; --as-released takes 100 groups, 50 rounds and the release's patience instead, which
asks for a GPU. Results are kept after every setting, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, Final

import torch
from foretell_bench.sources.box import BOX_TARGETS, H200_TARGETS, box_runs, h200_resources

from foretell import Profile, forecast
from foretell.cost.model import ROOFLINE
from foretell.methods.driple.method import (
    GROUPS_OF_PARAMETERS,
    RELEASED,
    TUNED,
    Driple,
    DripleSettings,
    Epoch,
    setting_of,
)
from foretell.methods.protocol import STEP_TIME, Example

HERE: Final = Path(__file__).parents[1]
RESULTS: Final = HERE / "results" / "driple.json"
SOURCE: Final = "dp=2 on 2xcpu@1000Mbit/s"
WITHIN: Final = 1.05  # of an error is equal to it
FLOOR: Final = 0.01  # of the largest: what is smaller counts as this
CLAIMED: Final = 7.3  # times less to tailor, says the paper
TARGETS: Final = (STEP_TIME, *BOX_TARGETS)
SCRATCH: Final = "from scratch"
WAYS: Final = {"transfer, frozen": TUNED, "transfer, all tuned": GROUPS_OF_PARAMETERS}
SHARES: Final = {"all": 1, "half": 2, "quarter": 4}  # every so-manieth training architecture
SEEDS: Final = 5
JUDGED: Final = "on validation, sustained"  # results that were judged otherwise are begun anew
SUSTAINED: Final = 5  # epochs whose median must be equal
NO_HOST: Final = 1e-6  # a factor: a processor that computes issues nothing beside
Values = Mapping[str, float]

# What is tried, on SOURCE. The first is how the release trains, at a size that a processor bears.
SMALL: Final = DripleSettings(groups=24, rounds=4, readings=4, epochs=160, patience=160, batch=16)
TRIED: Final = {
    "as released, small": SMALL,
    "logarithms": replace(SMALL, labels="log"),
    "logarithms, a third of the rate": replace(SMALL, labels="log", rate=1e-3),
    "logarithms, groups of 8": replace(SMALL, labels="log", batch=8),
    "logarithms, twice the rounds and groups": replace(SMALL, labels="log", groups=48, rounds=8, readings=8),
    "logarithms, GIN": replace(SMALL, labels="log", kind="gin"),
}
LENGTHS: Final = (20, 40, 80, 160)  # epochs


def families(architectures: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(architectures)):
        found[name.split("-")[0]].append(name)
    return found


def held_out(architectures: Sequence[str], seed: int = 0) -> set[str]:
    """One of each family, another for each seed; chosen by place in the alphabet, before anything was fitted."""
    return {names[(1 + seed) % len(names)] for names in families(architectures).values()}


def by_setting(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """One run of each architecture and batch: other parts of the data have the same steps."""
    found: dict[str, dict[tuple[str, float], Example]] = defaultdict(dict)
    for e in examples:
        found[setting_of(e.query)].setdefault((e.query.architecture, e.query.batch), e)
    return {setting: list(own.values()) for setting, own in found.items()}


def parted(rows: Sequence[Example], out: set[str]) -> tuple[list[Example], list[Example]]:
    return [e for e in rows if e.query.architecture not in out], [e for e in rows if e.query.architecture in out]


# Errors.


def scales(train: Sequence[Example], targets: Sequence[str]) -> dict[str, float]:
    """The largest of each target that most rows have: where counters were read too late there is the step's time alone."""
    enough = [t for t in targets if sum(t in e.measured for e in train) >= len(train) / 2]
    return {t: max(e.measured[t] for e in train if t in e.measured) for t in enough}


def errors(
    predicted: Sequence[Values], test: Sequence[Example], scale: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Of each target: relative, where there is something to be relative to, and the logarithm of the factor it is off by."""
    found = {}
    for target, largest in scale.items():
        pairs = [(v[target], e.measured[target]) for v, e in zip(predicted, test, strict=True)
                 if target in v and target in e.measured]  # fmt: skip
        relative = [abs(predicted / was - 1) for predicted, was in pairs if was > FLOOR * largest]
        if relative:
            least = FLOOR * largest
            off = fmean(abs(math.log(max(predicted, least) / max(was, least))) for predicted, was in pairs)
            found[target] = {"off": off, "relative": fmean(relative), "median": median(relative), "rows": len(relative)}
    return found


def error_of(predicted: Sequence[Values], test: Sequence[Example], scale: Mapping[str, float]) -> float:
    """One number: the mean over targets of |ln(predicted ÷ measured)|."""
    return fmean(by["off"] for by in errors(predicted, test, scale).values())


# Foretell on the same rows.


def foretell_predicts(train: Sequence[Example], test: Sequence[Example]) -> list[Values]:
    """Forecasts of the box, with a profile of one number from the training rows: how much slower than a socket a host is.

    It is far beyond what `fit_profile` looks for: a host of the box is a share of a few cores.
    """

    def slowness(e: Example) -> float:
        assert e.query.graph is not None
        found = forecast(e.query.graph, e.query.cluster, e.query.plan, model=ROOFLINE)
        computing = e.measured[STEP_TIME] - found.resources.network_tx.active_seconds
        return max(0.1 * e.measured[STEP_TIME], computing) / found.device_time.seconds

    profile = Profile(name="hosts in a box", device=median(slowness(e) for e in train), host=NO_HOST)
    answers = []
    for e in test:
        assert e.query.graph is not None
        found = forecast(e.query.graph, e.query.cluster, e.query.plan, model=ROOFLINE, profile=profile)
        uses = {
            "network_tx": found.resources.network_tx,
            "network_rx": found.resources.network_rx,
            "compute": found.resources.device,
        }
        values = {STEP_TIME: found.step_time.seconds}
        for name, use in uses.items():
            values |= {f"{name}_{what}": getattr(use, what) for what in ("active_seconds", "idle_seconds", "peak")}
        answers.append(values)
    return answers


# Fitting.


def watched(
    run: Callable[[Any], Driple], made: Driple, test: Sequence[Example], scale: Mapping[str, float]
) -> dict[str, Any]:
    """Validation's error as seconds of fitting go by; the error on held-out rows when it is done, and not before."""
    curve: list[list[float]] = []
    clock = time.monotonic if made.settings.trains_on != "cpu" else time.process_time
    begin = clock()

    def watch(epoch: Epoch) -> None:
        assert epoch.validated is not None, "nothing is left out to validate on"
        curve.append([epoch.number, round(clock() - begin, 3), epoch.validated])

    run(watch)
    error = error_of([p.values for p in made.predict([e.query for e in test])], test, scale)
    return {"curve": curve, "error": round(error, 4), "seconds": curve[-1][1]}


def warm(rows: Sequence[Example], chosen: DripleSettings) -> None:
    """Graphs are gathered into groups once, and that time is nobody's."""
    made = Driple(chosen)
    for e in rows:
        made._skeleton(e.query.graph)


def tune(rows: Sequence[Example]) -> dict[str, Any]:
    """Every variant on SOURCE, twice. Held back is one of each family that no seed asks about, where there is one."""
    names = [e.query.architecture for e in rows]
    out = set().union(*(held_out(names, seed) for seed in range(SEEDS)))
    held_back = {own[0] for own in families([n for n in names if n not in out]).values()}
    tried: dict[str, Any] = {}
    for name, chosen in TRIED.items():
        begin = time.process_time()
        warm(rows, chosen)
        at: dict[int, list[float]] = defaultdict(list)
        for seed in (0, 1):
            train, test = parted(rows, held_back)
            scale = scales(train, TARGETS)
            for length in LENGTHS:
                made = Driple(replace(chosen, seed=seed, epochs=length, validated=0.0)).fit(train)
                at[length].append(error_of([p.values for p in made.predict([e.query for e in test])], test, scale))
        tried[name] = {
            "errors": {str(e): fmean(those) for e, those in at.items()},
            "seconds": time.process_time() - begin,
        }
        print(f"tried {name}: " + ", ".join(f"{fmean(those):.3f} after {e}" for e, those in at.items()), flush=True)
    name, epochs = min(((n, e) for n in tried for e in tried[n]["errors"]), key=lambda k: tried[k[0]]["errors"][k[1]])
    return {"tried": tried, "chosen": name, "epochs": int(epochs)}


def one_setting(rows: Sequence[Example], base: Driple | None, chosen: DripleSettings) -> tuple[dict[str, Any], Driple]:
    train, test = parted(rows, held_out([e.query.architecture for e in rows], chosen.seed))
    scale, queries = scales(train, TARGETS), [e.query for e in test]
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    found: dict[str, Any] = {"test": len(test), "fits": {}, "errors": {
        "median of training": errors([middle] * len(test), test, scale),
        "Foretell": errors(foretell_predicts(train, test), test, scale)}}  # fmt: skip
    setting, names = setting_of(rows[0].query), sorted({e.query.architecture for e in train})
    ways = {SCRATCH: None} | (WAYS if base is not None else {})
    whole: Driple | None = None
    for share, every in SHARES.items():
        some, _ = parted(train, set(names) - set(names[::every]))
        found["fits"][share] = {"rows": len(some)}
        for way, groups in ways.items():
            made = Driple(chosen)
            if groups is None:
                run = lambda w, m=made, s=some: m.fit(s, w)  # noqa: E731
            else:
                assert base is not None
                made.fitted_ = dict(base.fitted_)
                run = lambda w, m=made, s=some, g=groups: m.transfer(s, SOURCE, g, w)  # noqa: E731
            found["fits"][share][way] = watched(run, made, test, scale)
            if share == "all":
                name = "after Driple" if groups is None else way
                found["errors"][name] = errors([p.values for p in made.predict(queries)], test, scale)
                whole = whole or made
    assert whole is not None
    assert setting in whole.fitted_
    return found, whole


def h200(rows: int, chosen: DripleSettings) -> dict[str, Any]:
    """Device and memory targets of one H200; every fourth architecture is held out."""
    examples = [
        e
        for e in h200_resources(HERE / "data" / "h200", most=2 * rows)
        if e.query.graph and len(e.query.graph.ops) < 4000
    ]
    examples = examples[:rows]
    names = sorted({e.query.architecture for e in examples})
    train, test = parted(examples, set(names[::4]))
    scale = scales(train, (STEP_TIME, *H200_TARGETS))
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    begin = time.process_time()
    method = Driple(chosen).fit(train)
    seconds = time.process_time() - begin
    predicted = [p.values for p in method.predict([e.query for e in test])]
    return {
        "train": len(train), "test": len(test), "architectures": len(names), "seconds": seconds,
        "errors": {"median of training": errors([middle] * len(test), test, scale), "after Driple": errors(predicted, test, scale)},
    }  # fmt: skip


# What comes of it.


def sustained(fit: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Seconds and error, where an error is the median of five epochs in a row."""
    curve = fit["curve"]
    return [
        (curve[i][1], median(error for _, _, error in curve[max(0, i - SUSTAINED + 1) : i + 1]))
        for i in range(min(SUSTAINED, len(curve)) - 1, len(curve))
    ]


def reached(fit: Mapping[str, Any], level: float) -> float:
    return next((seconds for seconds, error in sustained(fit) if error <= level), math.inf)


def level_of(fit: Mapping[str, Any]) -> float:
    """Within 5 % of the least of training from scratch."""
    return WITHIN * min(error for _, error in sustained(fit))


def saved(seed: Mapping[str, Any], way: str) -> float:
    """How many times fewer seconds than from scratch, all rows; 0: it never is as good."""
    fits = seed["fits"]["all"]
    level = level_of(fits[SCRATCH])
    return float(reached(fits[SCRATCH], level) / reached(fits[way], level))


def summary(seeds: Mapping[str, Any]) -> dict[str, Any]:
    """Medians over seeds. Rows are enough where the error in the end is within 5 % of scratch with all rows."""
    found = dict[str, Any]()
    levels = {s: WITHIN * one["fits"]["all"][SCRATCH]["error"] for s, one in seeds.items()}
    for way in (SCRATCH, *WAYS):
        fits = {s: {share: one["fits"][share][way] for share in SHARES} for s, one in seeds.items()}
        enough = {s: min((one["fits"][h]["rows"] for h in SHARES if fits[s][h]["error"] <= levels[s]), default=math.inf)
                  for s, one in seeds.items()}  # fmt: skip
        found[way] = {
            "error": {share: median(fits[s][share]["error"] for s in seeds) for share in SHARES},
            "seconds to equal": median(reached(fits[s]["all"], level_of(seeds[s]["fits"]["all"][SCRATCH])) for s in seeds),
            "times less": median(saved(one, way) for one in seeds.values()),
            "rows to equal": median(enough.values()),
            "epoch": median(fits[s]["all"]["seconds"] / fits[s]["all"]["curve"][-1][0] for s in seeds),
        }  # fmt: skip
    return found


def times_less(results: Mapping[str, Any]) -> dict[str, Any]:
    """Over settings and seeds, those that never get there included; the interval is of nine tenths of them."""
    found = {}
    others = {s: seeds for s, seeds in results["settings"].items() if s != SOURCE}
    for way in WAYS:
        gains = [saved(one, way) for seeds in others.values() for one in seeds.values()]
        if len(gains) > 1:
            low, *_, high = quantiles(gains, n=20, method="inclusive")
            found[way] = {"median": median(gains), "least": low, "most": high, "settings": len(others),
                          "fits": len(gains), "never": sum(gain == 0 for gain in gains)}  # fmt: skip
    return found


def number(value: float, unit: str = "") -> str:
    return "never" if not value or math.isinf(value) else f"{value:.2g}{unit}" if value < 10 else f"{value:.0f}{unit}"


def show(results: Mapping[str, Any]) -> None:
    if "tuning" in results:
        tuning = results["tuning"]
        print(f"Tried on {SOURCE}; mean |ln(predicted ÷ measured)| of architectures left out, by epochs:")
        for name, one in tuning["tried"].items():
            print(
                f"| {name} | "
                + " | ".join(f"{one['errors'][str(e)]:.3f}" for e in LENGTHS)
                + f" | {one['seconds']:.0f} s |"
            )
        print(f"chosen: {tuning['chosen']}, {tuning['epochs']} epochs")
    for setting, seeds in results["settings"].items():
        one = next(iter(seeds.values()))
        print(f"\n{setting}: {one['fits']['all']['rows']} rows to train on, {one['test']} of unseen architectures, "
              f"{len(seeds)} seeds. Mean / median relative error")  # fmt: skip
        ways = list(one["errors"])
        print("| target | " + " | ".join(ways) + " |\n" + "|---" * (1 + len(ways)) + "|")
        for target in one["errors"]["after Driple"]:
            cells = [f"{fmean(s['errors'][w][target]['relative'] for s in seeds.values() if target in s['errors'][w]):.0%} / "
                     f"{fmean(s['errors'][w][target]['median'] for s in seeds.values() if target in s['errors'][w]):.0%}"
                     for w in ways]  # fmt: skip
            print(f"| {target} | " + " | ".join(cells) + " |")
    print(
        f"\nTransfer from {SOURCE}, medians over seeds. The error is the mean over targets of |ln(predicted ÷ measured)|."
    )
    heads = (
        "setting",
        "way",
        "error: all",
        "half",
        "quarter",
        "seconds to equal",
        "times less",
        "rows to equal",
        "an epoch",
    )
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for setting, seeds in results["settings"].items():
        for way, by in summary(seeds).items() if setting != SOURCE else ():
            print("| " + " | ".join((setting, way, *(f"{by['error'][s]:.3f}" for s in SHARES), number(by["seconds to equal"], " s"),
                  number(by["times less"]), number(by["rows to equal"]), f"{1e3 * by['epoch']:.0f} ms")) + " |")  # fmt: skip
    for way, by in times_less(results).items():
        print(f"{way}: {number(by['median'])} times less in the median of {by['fits']} fits in {by['settings']} settings, nine "
              f"tenths from {by['least']:.2g} to {by['most']:.2g}, never in {by['never']}; the paper says up to {CLAIMED}")  # fmt: skip
    if "h200" in results:
        found = results["h200"]
        print(f"\nOne H200: {found['train']} rows to train on, {found['test']} of unseen architectures, fitted in "
              f"{found['seconds']:.0f} s. Mean and median relative error, and of the median of training")  # fmt: skip
        for target, by in found["errors"]["after Driple"].items():
            plain = found["errors"]["median of training"][target]
            print(
                f"| {target} | {by['relative']:.1%} | {by['median']:.1%} | {plain['relative']:.1%} | {plain['median']:.1%} |"
            )


COLOURS: Final = {SCRATCH: "#888888", "transfer, frozen": "#c2410c", "transfer, all tuned": "#1d4ed8"}
_WIDE, _HIGH, _MARGIN = 250, 170, 36


def picture(results: Mapping[str, Any], path: Path) -> None:
    """Error on held-out rows over seconds of fitting, a panel a setting and a line a seed."""
    shown = {s: seeds for s, seeds in results["settings"].items() if s != SOURCE}
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * _WIDE + 20}" height="{rows * _HIGH + 40}" '
             'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>']  # fmt: skip
    for i, (way, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{40 + 150 * i}" y="14" fill="{colour}">— {way}</text>')
    parts.append('<text x="490" y="14">error, over seconds; all rows</text>')
    for place, (setting, seeds) in enumerate(shown.items()):
        parts += _panel(
            setting, list(seeds.values()), (place % columns) * _WIDE + _MARGIN, (place // columns) * _HIGH + 30
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _panel(setting: str, seeds: Sequence[Mapping[str, Any]], x0: float, y0: float) -> list[str]:
    width, height = _WIDE - _MARGIN - 10, _HIGH - 50
    curves = [(way, one["fits"]["all"][way]["curve"]) for one in seeds for way in COLOURS]
    longest = max(curve[-1][1] for _, curve in curves)
    most = 1.5 * max(curve[len(curve) // 4][2] for _, curve in curves)
    drawn = [
        f'<text x="{x0}" y="{y0 + 10}">{setting}</text>',
        f'<path d="M{x0},{y0 + 16}V{y0 + height}H{x0 + width}" fill="none" stroke="#bbb"/>',
        f'<text x="{x0 - 30}" y="{y0 + 24}">{most:.2f}</text><text x="{x0 - 12}" y="{y0 + height}">0</text>',
        f'<text x="{x0 + width - 34}" y="{y0 + height + 12}">{longest:.0f} s</text>',
    ]
    for way, curve in curves:
        points = " ".join(
            f"{x0 + width * seconds / longest:.1f},{y0 + height - (height - 16) * min(1, error / most):.1f}"
            for _, seconds, error in curve
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[way]}" stroke-width="1.2"/>')
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="a part of a setting's name")
    parser.add_argument("--h200", type=int, default=0, help="rows of the H200 store, instead of the box")
    parser.add_argument("--show", action="store_true", help="what is there, nothing computed")
    parser.add_argument("--as-released", action="store_true", help="100 groups, 50 rounds, until patience; on a GPU")
    parser.add_argument("--on", default="cpu", help="where networks are trained: cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"settings": {}}

    def keep() -> None:
        options.out.write_text(json.dumps(_short(results), separators=(",", ":")) + "\n")

    if not options.show:
        if results.get("judged") != JUDGED:
            results = {"judged": JUDGED, "settings": {}}
        settings = by_setting(box_runs(HERE / "data" / "box").items)
        chosen = replace(RELEASED, trains_on=options.on)
        if not options.as_released:
            if "tuning" not in results:
                results["tuning"] = tune(settings[SOURCE])
                keep()
            chosen = replace(
                TRIED[results["tuning"]["chosen"]], trains_on=options.on
            )  # until patience, whatever its length
        results["settings of training"] = asdict(chosen)
        if options.h200:
            results["h200"] = h200(options.h200, chosen)
        else:
            warm([e for rows in settings.values() for e in rows], chosen)
            for seed in range(options.seeds):
                across(settings, options.only, replace(chosen, seed=seed), results["settings"], keep)
    results["times less"] = times_less(results)
    keep()
    show(results)
    if options.picture:
        picture(results, options.picture)


def across(settings: Mapping[str, Sequence[Example]], only: str, chosen: DripleSettings, found: dict[str, Any],
           keep: Callable[[], None]) -> None:  # fmt: skip
    """One seed in every setting that is not there yet."""
    seed = str(chosen.seed)
    wanted = [s for s in settings if s != SOURCE and only in s and seed not in found.get(s, {})]
    if not wanted:
        return
    made, base = one_setting(settings[SOURCE], None, chosen)
    found.setdefault(SOURCE, {})[seed] = made
    for setting in wanted:
        found.setdefault(setting, {})[seed], _ = one_setting(settings[setting], base, chosen)
        keep()
        print(f"seed {seed}: {setting}", flush=True)


def _short(value: Any) -> Any:
    """Four digits say all there is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
