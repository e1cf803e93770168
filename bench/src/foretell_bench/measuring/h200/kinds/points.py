"""Which steps and operators of the kinds are measured: seeded draws in an order that spreads well wherever it stops."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from foretell.design.blind import is_blind
from foretell.measure.record import Point
from foretell_bench.measuring.h200.kinds import operators
from foretell_bench.measuring.h200.kinds.network import NETWORKS, Network

_OPEN: Final = ("convolutional", "recurrent", "spectral", "tables", "acting", "generative", "volumes")
_BLIND: Final = ("blind.images", "blind.sequences", "blind.generative", "blind.tabular")
_STEPS: Final = 76
_BLIND_STEPS: Final = 46
_BUNDLES: Final = 176
_LATER_BUNDLES: Final = 190
_PRECISIONS: Final = {"fp32": 38, "torch-fp32": 12, "tf32": 16, "amp-bf16": 18, "bf16": 10, "amp-fp16": 6}
_OPTIMIZERS: Final = {
    "adamw": 25,
    "adam": 25,
    "sgd-momentum": 22,
    "adamw-fused": 8,
    "none": 20,
    "sgd": 20,
    "adagrad": 20,
}
_BUSY: Final = 0.4  # and up of the logarithm of a range of batches: small ones are the host's, which is known to vary


@cache
def networks() -> dict[str, Network]:
    """Every hand-written network by its SOURCE, blind ones among them."""
    for module in (*_OPEN, *_BLIND):
        importlib.import_module(f"{__package__}.{module}")
    return dict(NETWORKS)


def family_of(source: str) -> str | None:
    """Its kind, where it is one of these networks."""
    found = networks().get(source)
    return None if found is None else found.kind


def steps(*, blind: bool) -> tuple[Point, ...]:
    """Every network once, kinds in turn, then all again in another precision, as many as are wanted."""
    draw = random.Random(38 + blind)
    own = _in_turn(draw, [n for n in networks().values() if is_blind(n.source) == blind])
    wanted, found = _BLIND_STEPS if blind else _STEPS, dict[str, Point]()
    used: dict[str, set[str]] = {n.source: set() for n in own}
    while len(found) < wanted:
        for chosen in own:
            free = [p for p in chosen.precisions if p not in used[chosen.source]]
            precision = draw.choices(free, [_PRECISIONS[p] for p in free])[0]
            used[chosen.source].add(precision)
            point = _point(draw, chosen, precision)
            found.setdefault(point.key, point)
    return tuple(found.values())[:wanted]


def _in_turn(draw: random.Random, own: Sequence[Network]) -> list[Network]:
    kinds: dict[str, list[Network]] = {}
    for each in draw.sample(own, len(own)):
        kinds.setdefault(each.kind, []).append(each)
    longest = max(map(len, kinds.values()))
    return [those[i] for i in range(longest) for those in kinds.values() if i < len(those)]


def _point(draw: random.Random, chosen: Network, precision: str) -> Point:
    least, most = chosen.batches
    batch = max(least, round(least * (most / least) ** draw.uniform(_BUSY, 1)))
    optimizer = draw.choices(list(chosen.optimizers), [_OPTIMIZERS[o] for o in chosen.optimizers])[0]
    settings = {"batch": str(batch), "precision": precision, "optimizer": optimizer}
    if chosen.images:
        settings["channels_last"] = str(draw.random() < (0.75 if chosen.kind == "dilated" else 0.35)).lower()
    return Point(source=chosen.source, settings=settings)


def bundles(wanted: int, weights: Mapping[str, int], first: int) -> tuple[Point, ...]:
    """Bundles of operators: every kind as often as its weight says, spread all along the list; their seeds begin at `first`."""
    draw, places = random.Random(380 + first), []
    total = sum(weights.values())
    for kind, weight in weights.items():
        count, offset = max(1, round(wanted * weight / total)), draw.random()
        for seed in range(first, first + count):
            free = operators.PRECISIONS[kind]
            precision = draw.choices(free, [_PRECISIONS[p] for p in free])[0]
            settings = {"of": kind, "count": str(operators.COUNT[kind]), "seed": str(seed), "precision": precision}
            places.append(
                ((seed - first + offset) / count, Point(source=operators.SOURCE, settings=settings, kind="operators"))
            )
    return tuple(point for _, point in sorted(places, key=lambda place: place[0]))


LISTS: Final = {
    "kinds": steps(blind=False),
    "kinds-blind": steps(blind=True),
    "kinds-operators": bundles(_BUNDLES, operators.WEIGHTS, 0),
    "kinds-operators-later": bundles(_LATER_BUNDLES, operators.LATER_WEIGHTS, 1000),
}
