"""The accuracy page: tables in Markdown and charts of predicted over measured, as SVG files beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from foretell.units import show_seconds

_SIDE: Final = 420
_WORST: Final = 6  # steps that the page has
_EDGE: Final = 52
_INK, _LINE, _DOT = "#444444", "#cccccc", "#2f6fab"
_ABOUT: Final = {
    "Foretell": "learned per operator, bounded by the roofline, corrected by the network over ops where there is one",
    "sum": "ours without that network: op times are summed",
    "roofline": "every op at its published peak",
    "formula": "PyTorch's RuntimeEstimator: arithmetic at three quarters of the peak, traffic at full bandwidth",
    "linear": "additive: a time per call, per operation and per byte, for each operator",
    "trees": "boosted trees on the structural matrix of the whole step",
    "network": "a graph network that predicts the time of the whole step from its graph, with no model of ops",
}


def write_page(
    path: Path,
    tables: Mapping[str, Any],
    *,
    newer: Mapping[str, Any] | None = None,
) -> None:
    """Write the page and, beside it, a chart of device times and one of step times; what else is given gets a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    charts = {what: path.with_name(f"{path.stem}-{what}.svg") for what in ("device", "step")}
    for what, file in charts.items():
        file.write_text(scatter(tables["points"][what], f"{what} time, predicted over measured"))
    path.write_text(_page(tables, {what: file.name for what, file in charts.items()}, _newer(newer)))


def _page(t: Mapping[str, Any], charts: Mapping[str, str], more: Sequence[str]) -> str:
    device, step = t["methods"]["Foretell"], t["step"]
    noise = t["noise"]
    covered = t["coverage"]
    strange = [f["family"] for f in t["families"] if min(f["p"].values()) < 0.05]
    parts = [
        "# Accuracy on one device",
        "How far forecasts for an H200 are from measured steps, for networks the model has not seen. Each family in turn is left "
        "out of everything that is fitted (operators, host, intervals), and its steps are then predicted as a user's would be.",
        f"{device['count']} steps of {sum(f['architectures'] for f in t['families'])} architectures in "
        f"{len(t['families'])} families on an H200 ([the data](../../bench/data/README.md)). This page is written by "
        "`foretell bench accuracy`; `bench/results/accuracy.json` has the prediction of every step.",
        "Two things make these figures optimistic:",
        "- Loss, weights, features and the operators to sweep were chosen with errors of left-out families in view, and a factor "
        "for the gradients of interpolation by looking at segmentation itself. Families that nobody has looked at will have larger "
        "errors.\n"
        "- Intervals are calibrated on errors of the other families under models that had seen the family they are validated "
        "against. How the errors of families of ops add up in them was chosen by their coverage.",
        f"![Device time, predicted over measured]({charts['device']}) ![Step time, predicted over measured]({charts['step']})",
        "## Device time, beside its rivals",
        "All are fitted on the same steps and validated against the same unseen ones.",
        _table(
            ("method", "mean", "median", "90th percentile", "root mean square", "rank correlation", "what it is"),
            [(name, *_errors(e), f"{e['rmse']:.1%}", f"{e['rank']:.3f}", _ABOUT.get(name, ""))
             for name, e in t["methods"].items()],
        ),
        *more,
        "## Step time",
        f"The same step, measured again on another occasion, differs by {noise.get('step', 0):.1%} on average, its device time by "
        f"{noise.get('device', 0):.1%}: the measured machine is a virtual one. No forecast of a host-bound step can have a "
        "smaller error.",
        _table(("steps", "mean", "median", "90th percentile", "n"),
               [(name, *_errors(e), str(e["count"])) for name, e in step.items()]),
        "## Intervals",
        f"Of 90 % intervals, calibrated on the other families, {covered['device']['inside']:.1%} contain the device time and "
        f"{covered['step']['inside']:.1%} the step time, every architecture counting once. Half of them are narrower than a "
        f"factor of {covered['device']['width']:.2f} and {covered['step']['width']:.2f} from low to high. "
        + (f"An exact binomial test at 5 % rejects {', '.join(strange)}." if strange else
           "An exact binomial test at 5 % rejects no family."),
        "## By family",
        _table(
            ("family", "architectures", "steps", "device: mean", "median", "step: mean", "device inside", "step inside"),
            [(f["family"], str(f["architectures"]), str(f["steps"]), f"{f['device']['mean']:.1%}",
              f"{f['device']['median']:.1%}", f"{f['step']['mean']:.1%}", f"{f['inside']['device']:.0%}",
              f"{f['inside']['step']:.0%}") for f in t["families"]],
        ),
        "## The worst",
        _table(
            ("step", "family", "measured", "predicted", "error"),
            [(f"{source} {_settings(settings)}", family, show_seconds(measured), show_seconds(predicted),
              f"{predicted / measured - 1:+.0%}")
             for source, settings, family, measured, predicted in t["worst"][:_WORST]],
        ),
        "What each part of the predictor contributes, and earlier figures: [notes](../../bench/notes/one-device.md).",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _newer(newer: Mapping[str, Any] | None) -> list[str]:
    if newer is None:
        return []
    return [
        "## Steps measured after the fit",
        f"{newer['count']} steps of {newer['architectures']} architectures, drawn at random among those that have a name and were "
        f"not in the data, were measured after a fit of model `{newer['model']}` (the last measurement it saw is of "
        f"{newer['last'][:16].replace('T', ' ')}), and predicted by it as it was shipped; later fits have "
        "seen them. Nothing was chosen with them in view: this is what to expect of a network of a known kind. "
        "Made by `foretell bench newer --model FOLDER`, with that fit's folder.",
        _table(
            ("what", "measure", "value", "steps or architectures"),
            [(f["source"], f["measure"], f"{f['value']:.1%}", str(f["rows"])) for f in newer["figures"]],
        ),
    ]


def ablation_table(ablations: Sequence[Mapping[str, Any]]) -> str:
    heads = ("variant", "device: mean", "median", "90th percentile", "step: mean", "median", "what is different")
    rows = [(a["name"], *_errors(a["device"]), *_errors(a["step"])[:2], a["about"]) for a in ablations]
    return _table(heads, rows) + "\n"


def _errors(errors: Mapping[str, float]) -> tuple[str, str, str]:
    return f"{errors['mean']:.1%}", f"{errors['median']:.1%}", f"{errors['p90']:.1%}"


def _settings(text: str) -> str:
    return " ".join(f"{name}={value}" for name, value in json.loads(text).items())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def scatter(points: Sequence[tuple[float, float, str]], title: str) -> str:
    """Predicted over measured, both logarithmic; a fifth more and less is drawn as a band."""
    values = [v for measured, predicted, _ in points for v in (measured, predicted)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    scale = (_SIDE - 2 * _EDGE) / max(high - low, 1)

    def x(value: float) -> float:
        return _EDGE + (math.log10(value) - low) * scale

    def y(value: float) -> float:
        return _SIDE - _EDGE - (math.log10(value) - low) * scale

    first, last = 10.0**low, 10.0**high
    band = " ".join(
        f"{x(a):.1f},{y(b):.1f}"
        for a, b in ((first, first * 1.2), (last / 1.2, last), (last, last / 1.2), (first * 1.2, first))
    )
    drawn = [
        f'<polygon points="{band}" fill="{_LINE}" opacity="0.4"/>',
        f'<line x1="{x(first):.1f}" y1="{y(first):.1f}" x2="{x(last):.1f}" y2="{y(last):.1f}" stroke="{_INK}"/>',
    ]
    for power in range(low, high + 1):
        at, label = 10.0**power, escape(show_seconds(10.0**power))
        drawn.append(
            f'<line x1="{x(at):.1f}" y1="{y(first):.1f}" x2="{x(at):.1f}" y2="{y(last):.1f}" stroke="{_LINE}"/>'
        )
        drawn.append(
            f'<line x1="{x(first):.1f}" y1="{y(at):.1f}" x2="{x(last):.1f}" y2="{y(at):.1f}" stroke="{_LINE}"/>'
        )
        drawn.append(f'<text x="{x(at):.1f}" y="{y(first) + 16:.1f}" text-anchor="middle">{label}</text>')
        drawn.append(f'<text x="{x(first) - 6:.1f}" y="{y(at) + 4:.1f}" text-anchor="end">{label}</text>')
    drawn += [
        f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.6" fill="{_DOT}" opacity="0.6">'
        f"<title>{escape(family)}</title></circle>"
        for measured, predicted, family in points
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" height="{_SIDE}" role="img" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}"><title>{escape(title)}</title>'
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="white"/><text x="{_SIDE / 2}" y="20" text-anchor="middle" font-size="13">'
        f'{escape(title)}</text><text x="{_SIDE / 2}" y="{_SIDE - 10}" text-anchor="middle">measured</text>{"".join(drawn)}</svg>\n'
    )
