"""What the study of Driple found: medians over seeds, what tailoring saves, tables and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any, Final

from foretell_bench.studies.driple.fits import LENGTHS, SCRATCH, SHARES, WAYS

WITHIN: Final = 1.05  # of an error is equal to it
CLAIMED: Final = 7.3  # times less to tailor, says the paper
SUSTAINED: Final = 5  # epochs whose median must be equal
EPOCHS, SECONDS = 0, 1  # columns of a curve
Seeds = Mapping[str, Any]
Say = Callable[[str], None]


def sustained(fit: Mapping[str, Any], cost: int) -> list[tuple[float, float]]:
    """Seconds or epochs, and the error, which is the median of five epochs in a row."""
    curve = fit["curve"]
    return [
        (curve[i][cost], median(error for _, _, error in curve[max(0, i - SUSTAINED + 1) : i + 1]))
        for i in range(min(SUSTAINED, len(curve)) - 1, len(curve))
    ]


def reached(fit: Mapping[str, Any], level: float, cost: int = SECONDS) -> float:
    return next((spent for spent, error in sustained(fit, cost) if error <= level), math.inf)


def level_of(fit: Mapping[str, Any]) -> float:
    """Within 5 % of the least of training from scratch."""
    return WITHIN * min(error for _, error in sustained(fit, SECONDS))


def saved(seed: Mapping[str, Any], way: str, cost: int = SECONDS) -> float:
    """How many times fewer seconds (or epochs) than from scratch, all rows; 0: it never is as good."""
    fits = seed["fits"]["all"]
    level = level_of(fits[SCRATCH])
    return float(reached(fits[SCRATCH], level, cost) / reached(fits[way], level, cost))


def with_all(seeds: Seeds, *ways: str) -> dict[str, Any]:
    """Seeds whose fits on all rows are there."""
    return {s: one for s, one in seeds.items() if all(way in one["fits"]["all"] for way in (SCRATCH, *ways))}


def summary(seeds: Seeds) -> dict[str, Any]:
    """Medians over seeds. Rows are enough where the error in the end is within 5 % of scratch with all rows."""
    found = dict[str, Any]()
    for way in (SCRATCH, *WAYS):
        if not (own := with_all(seeds, way)):
            continue
        shares = [h for h in SHARES if all(way in one["fits"].get(h, ()) for one in own.values())]
        fits = {s: {h: one["fits"][h][way] for h in shares} for s, one in own.items()}
        levels = {s: WITHIN * one["fits"]["all"][SCRATCH]["error"] for s, one in own.items()}
        enough = [min((f["rows"] for f in fits[s].values() if f["error"] <= levels[s]), default=math.inf) for s in own]
        found[way] = {
            "seeds": len(own),
            "error": {h: median(fits[s][h]["error"] for s in own) for h in shares},
            "seconds to equal": median(reached(fits[s]["all"], level_of(own[s]["fits"]["all"][SCRATCH])) for s in own),
            "times less": median(saved(one, way) for one in own.values()),
            "times fewer epochs": median(saved(one, way, EPOCHS) for one in own.values()),
            "rows to equal": median(enough),
            "epoch": median(fits[s]["all"]["seconds"] / fits[s]["all"]["curve"][-1][0] for s in own),
        }  # fmt: skip
    return found


def times_less(settings: Mapping[str, Seeds], source: str) -> dict[str, Any]:
    """Over settings and seeds, those that never get there included; the interval is of nine tenths of them."""
    found = {}
    others = {s: seeds for s, seeds in settings.items() if s != source}
    for way in WAYS:
        own = [one for seeds in others.values() for one in with_all(seeds, way).values()]
        if len(own) > 1:
            gains, epochs = [saved(one, way) for one in own], [saved(one, way, EPOCHS) for one in own]
            low, *_, high = quantiles(gains, n=20, method="inclusive")
            found[way] = {"median": median(gains), "least": low, "most": high, "epochs": median(epochs), "settings": len(others),
                          "fits": len(gains), "never": sum(gain == 0 for gain in gains)}  # fmt: skip
    return found


def number(value: float, unit: str = "") -> str:
    return "never" if not value or math.isinf(value) else f"{value:.2g}{unit}" if value < 10 else f"{value:.0f}{unit}"


def show(results: Mapping[str, Any], source: str, say: Say) -> None:
    if "tuning" in results:
        _show_tuning(results["tuning"], source, say)
    for setting, seeds in results["settings"].items():
        if own := with_all(seeds):
            _show_errors(setting, own, say)
    say(
        f"\nTransfer from {source}, medians over seeds. The error is the mean over targets of |ln(predicted ÷ measured)|."
    )
    heads = ("setting", "way", *(f"error: {share}" for share in SHARES), "seconds to equal", "times less",
             "times fewer epochs", "rows to equal", "an epoch", "seeds")  # fmt: skip
    say("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for setting, seeds in results["settings"].items():
        for way, by in summary(seeds).items() if setting != source else ():
            shown = (f"{by['error'][s]:.3f}" if s in by["error"] else "–" for s in SHARES)
            say("| " + " | ".join((setting, way, *shown, number(by["seconds to equal"], " s"), number(by["times less"]),
                  number(by["times fewer epochs"]), number(by["rows to equal"]), f"{1e3 * by['epoch']:.0f} ms",
                  str(by["seeds"]))) + " |")  # fmt: skip
    for way, by in times_less(results["settings"], source).items():
        say(f"{way}: {number(by['median'])} times less ({number(by['epochs'])} in epochs) in the median of {by['fits']} fits in "
              f"{by['settings']} settings, nine tenths from {by['least']:.2g} to {by['most']:.2g}, never in {by['never']}; "
              f"the paper says up to {CLAIMED}")  # fmt: skip
    if "h200" in results:
        _show_h200(results["h200"], say)


def _show_tuning(tuning: Mapping[str, Any], source: str, say: Say) -> None:
    say(f"Tried on {source}; mean |ln(predicted ÷ measured)| of architectures left out, by epochs:")
    for name, one in tuning["tried"].items():
        shown = " | ".join(f"{one['errors'][str(e)]:.3f}" for e in LENGTHS)
        say(f"| {name} | {shown} | {one['seconds']:.0f} s |")
    say(f"chosen: {tuning['chosen']}, {tuning['epochs']} epochs")


def _show_errors(setting: str, seeds: Seeds, say: Say) -> None:
    """Driple's, and those of others on the same rows."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for one in seeds.values():
        own = {"after Driple": one["fits"]["all"][SCRATCH]["errors"]}
        own |= {way: one["fits"]["all"][way]["errors"] for way in WAYS if way in one["fits"]["all"]}
        for name, by in (own | one.get("others", {})).items():
            by_method.setdefault(name, []).append(by)
    first = next(iter(seeds.values()))["fits"]["all"][SCRATCH]
    say(f"\n{setting}: {first['rows']} rows to train on, {first['test']} of unseen architectures, {len(seeds)} seeds. "
          "Mean / median relative error")  # fmt: skip
    say("| target | " + " | ".join(by_method) + " |\n" + "|---" * (1 + len(by_method)) + "|")
    for target in first["errors"]:
        cells = []
        for found in by_method.values():
            those = [by[target] for by in found if target in by]
            shown = (fmean(t[what] for t in those) for what in ("relative", "median")) if those else ()
            cells.append(" / ".join(f"{value:.0%}" for value in shown))
        say(f"| {target} | " + " | ".join(cells) + " |")


def _show_h200(found: Mapping[str, Any], say: Say) -> None:
    say(f"\nOne H200: {found['train']} rows to train on, {found['test']} of unseen architectures, fitted in "
          f"{found['seconds']:.0f} s. Mean and median relative error, and of the median of training")  # fmt: skip
    for target, by in found["errors"]["after Driple"].items():
        plain = found["errors"]["median of training"][target]
        say(
            f"| {target} | {by['relative']:.1%} | {by['median']:.1%} | {plain['relative']:.1%} | {plain['median']:.1%} |"
        )


COLOURS: Final = {SCRATCH: "#888888", "transfer, frozen": "#c2410c", "transfer, all tuned": "#1d4ed8"}
_WIDE, _HIGH, _MARGIN = 250, 170, 36


def picture(results: Mapping[str, Any], source: str) -> str:
    """Error of validation over seconds of fitting, a panel a setting and a line a seed."""
    shown = {s: seeds for s, seeds in results["settings"].items() if s != source}
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
    return "\n".join([*parts, "</svg>\n"])


def _panel(setting: str, seeds: Sequence[Mapping[str, Any]], x0: float, y0: float) -> list[str]:
    width, height = _WIDE - _MARGIN - 10, _HIGH - 50
    curves = [(way, one["fits"]["all"][way]["curve"]) for one in seeds for way in COLOURS if way in one["fits"]["all"]]
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


# Until patience.

_LEAST: Final = 0.01  # mean squares at the foot of a panel
_DASHES: Final = {"ridge": "#1d4ed8", "median of training": "#15803d"}


def curves(scratch: Mapping[str, Any]) -> str:
    """Mean squares on what a fit is stopped by, over epochs: a panel a setting, a line a seed; dashed, what plainer answers have."""
    settings = sorted({key.partition(" | ")[0] for key in scratch})
    longest = max(fit["epochs"] for fit in scratch.values())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(settings) * _WIDE + 20}" height="{_HIGH + 40}" '
    parts = [head + 'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>',
             f'<text x="40" y="14" fill="{COLOURS["transfer, frozen"]}">— after Driple, five seeds</text>']  # fmt: skip
    for i, (name, colour) in enumerate(_DASHES.items()):
        parts.append(f'<text x="{220 + 110 * i}" y="14" fill="{colour}">- - {name}</text>')
    for place, setting in enumerate(settings):
        fits = [fit for key, fit in scratch.items() if key.partition(" | ")[0] == setting]
        parts += _curves_panel(setting, fits, longest, place * _WIDE + _MARGIN)
    return "\n".join([*parts, "</svg>\n"])


def _curves_panel(setting: str, fits: Sequence[Mapping[str, Any]], longest: int, x0: float) -> list[str]:
    width, height, y0 = _WIDE - _MARGIN - 10, _HIGH - 50, 30
    most = max(error for fit in fits for _, error in fit["curve"])

    def across(epoch: float) -> float:
        return x0 + width * epoch / longest

    def down(error: float) -> float:
        return y0 + height - (height - 16) * math.log(max(error, _LEAST) / _LEAST) / math.log(most / _LEAST)

    drawn = [
        f'<text x="{x0}" y="{y0 + 10}">{setting}</text>',
        f'<path d="M{x0},{y0 + 16}V{y0 + height}H{x0 + width}" fill="none" stroke="#bbb"/>',
        f'<text x="{x0 - 30}" y="{y0 + 24}">{most:.2f}</text><text x="{x0 - 30}" y="{y0 + height}">{_LEAST}</text>',
        f'<text x="{x0 + width - 60}" y="{y0 + height + 12}">{longest:,} epochs</text>',
    ]
    for fit in fits:
        points = " ".join(f"{across(epoch):.1f},{down(error):.1f}" for epoch, error in fit["curve"])
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS["transfer, frozen"]}" stroke-width="0.8"/>'
        )
    for name, colour in _DASHES.items():
        if plainly := [fit["validated"][name] for fit in fits if "validated" in fit]:
            y = down(fmean(plainly))
            drawn.append(f'<path d="M{x0},{y:.1f}H{x0 + width}" stroke="{colour}" stroke-dasharray="4 3"/>')
    return drawn
