"""Times of layers where none was timed: whole steps are divided among their layers, at a rate for each kind.

A kind has two rates, for a call and for a second of the roofline. All start from those that fit the steps best when kinds
have the same; each moves away as far as steps say so, none below zero. The rest of a step is its collectives'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from foretell.methods.scaledl.features import FLOOR, Floats, Layer, Sheet
from foretell.units import Seconds

_KEPT: Final = 1.0  # steps that a rate's start is worth


def divided(sheets: Sequence[Sheet], seconds: Sequence[Seconds]) -> list[Floats]:
    """Of each sheet, the seconds of its layers; not a number where it is a collective."""
    from scipy.optimize import nnls

    took = np.array(seconds)[:, None]
    kinds = sorted({layer.kind for sheet in sheets for layer in sheet.layers})
    place = {kind: i for i, kind in enumerate(kinds)}
    talking = {layer.kind for sheet in sheets for layer in sheet.layers if layer.communicates}
    work = np.zeros((len(sheets), len(kinds), 2))
    for row, sheet in zip(work, sheets, strict=True):
        runs = np.bincount(sheet.layer, sheet.runs, len(sheet.layers))
        for layer, often in zip(sheet.layers, runs, strict=True):
            row[place[layer.kind]] += often * np.array(_work(layer))
    ours = np.array([kind not in talking for kind in kinds])
    totals = np.concatenate([work[:, ours].sum(1), work[:, ~ours].sum(1)], axis=1) / took
    size = np.maximum(totals.max(axis=0), 1e-300)
    common = np.maximum(nnls(totals / size, np.ones(len(took)))[0] / size, 1e-3)
    start = np.where(ours[:, None], common[:2], common[2:])
    known = (work * start).reshape(len(sheets), -1) / took
    penalty = np.sqrt(_KEPT) * np.eye(known.shape[1])
    factors, _ = nnls(np.concatenate([known, penalty]), np.r_[np.ones(len(took)), np.diag(penalty)])
    rates = start * factors.reshape(-1, 2)
    return [
        np.array([np.nan if x.communicates else float(rates[place[x.kind]] @ _work(x)) for x in sheet.layers])
        for sheet in sheets
    ]


def _work(layer: Layer) -> tuple[float, float]:
    """A call, as long as the least that a kernel takes, and the seconds of its roofline."""
    return FLOOR, layer.roofline
