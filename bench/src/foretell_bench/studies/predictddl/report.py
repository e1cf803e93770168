"""Figures of the study of PredictDDL: errors by method, what Ernest's runs cost, and a chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from foretell.methods.protocol import Example
from foretell_bench.errors import Errors
from foretell_bench.pages.accuracy import scatter
from foretell_bench.studies.predictddl.fits import Floats

Say = Callable[[str], None]


def errors(predicted: Mapping[str, Floats], examples: Sequence[Example], target: str) -> dict[str, dict[str, float]]:
    """By method, of the rows it predicts."""
    found = {}
    for name, values in predicted.items():
        rows = np.flatnonzero(np.isfinite(values)).tolist()
        if rows:
            e = Errors.of(values[rows], [examples[i].measured[target] for i in rows])
            found[name] = {"mean": e.mean, "median": e.median, "p90": e.p90, "rmse": e.rmse, "rows": e.count}
    return found


def show(title: str, table: Mapping[str, Mapping[str, float]], say: Say) -> None:
    say(f"\n{title}")
    for name, e in table.items():
        say(
            f"  {name:38s} mean {e['mean']:7.1%}  median {e['median']:7.1%}  p90 {e['p90']:7.1%}  {e['rows']:4.0f} rows"
        )


def show_spent(spent: Mapping[str, float], timed: Mapping[str, float], say: Say) -> None:
    """What a new workload costs Ernest, and PredictDDL."""
    if not timed:
        return
    each = (spent["measuring"] + spent["fit"] + spent["predict"]) / spent["workloads"]
    say(f"  Ernest: {spent['runs']:.0f} runs of {spent['workloads']:.0f} workloads took {spent['measuring']:.0f} s; "
        f"{1e3 * spent['fit'] / spent['workloads']:.2f} ms to fit, {1e3 * spent['predict'] / spent['answers']:.3f} ms to "
        f"answer; {each:.1f} s from a new workload to its answers. PredictDDL: {1e3 * timed['predict']:.0f} ms from a graph, "
        f"{each / timed['predict']:.0f} times less")  # fmt: skip


def predictions(split: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a file of results; older ones have them under another name."""
    found: Mapping[str, Any] = split.get("predicted", split.get("said", {}))
    return found


def chart(results: Mapping[str, Any]) -> str:
    """Predicted over measured, of every part with networks left out."""
    points = []
    for part in results.values():
        if "unseen architectures" in part:
            predicted = predictions(part["unseen architectures"])["PredictDDL"]
            points += list(zip(part["measured"], predicted, part["networks"], strict=True))
    return scatter(points, "PredictDDL on unseen networks, predicted over measured")
