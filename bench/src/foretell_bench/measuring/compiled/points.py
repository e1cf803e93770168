"""Which steps are measured compiled: named, hand-written and generated networks in turn, and some again with CUDA graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator
from typing import Any, Final

from foretell.design.blind import GENERATED, fold_of
from foretell.sources.former_names import stored_source
from foretell_bench.measuring.h200.architectures import FAMILY
from foretell_bench.measuring.h200.kinds import points as kinds
from foretell_bench.measuring.h200.points import STEPS

Point = dict[str, Any]
_SEED: Final = 37
_LEFT_OUT: Final = ("detection", "optical-flow", "ssm", "recurrent-vision")  # compile for many minutes, or not at all
_DEAR: Final = ("forloop", "adafactor")  # optimizers of thousands of launches, which stay eager
_TURN: Final = "named named hand named generated named inference named hand named generated graphs".split()
_OF_TRAINING: Final = ("grad_accumulation", "clip_grad_norm", "checkpointing")
_GENERATED: Final = 80
_GRAPHS: Final = 40
LATER: Final = "later"  # what a row of the later part says
_LATER_SEED: Final = 41
_LATER: Final = 28
_ROUNDS: Final = ((3, 1), (3, 2))  # architectures of a new family, and of one that is known
_WAYS: Final = (
    "as it is",
    "inference",
    "as it is",
    "graphs",
    "as it is",
    "inference",
    "as it is",
    "graphs in inference",
)
_HAND_BLIND: Final = 4  # one in so many of those that are hand-written


def points(done: Collection[str] = ()) -> list[Point]:
    """What is not done, in an order whose beginning is a good spread: networks that nobody measured first."""
    known = {name.partition("?")[0] for name in done}
    wanted = [point for point in _in_turn() if key(point) not in done]
    return sorted(wanted, key=lambda point: point["mode"] == "default" and stored_source(point["source"]) in known)


def later(known: Collection[str]) -> list[Point]:
    """A part that is blind as a whole, drawn before any of it was measured: architectures that never were, those of families
    that never were first; half of them in training as they are, the others in inference or with CUDA graphs."""
    draw = random.Random(_LATER_SEED)
    named = _named(draw) + _hand_written()
    seen = {name.partition("?")[0] for name in known}
    families = {point["family"] for point in named if stored_source(point["source"]) in seen}
    new = [point for point in named if stored_source(point["source"]) not in seen]
    draw.shuffle(new)
    new.sort(key=lambda point: point["family"] in families)
    chosen: list[Point] = []
    for of_new, of_known in _ROUNDS:
        for point in new:
            most = of_known if point["family"] in families else of_new
            alike = [each for each in chosen if each["family"] == point["family"]]
            if len(alike) < most and point["source"] not in [each["source"] for each in alike]:
                chosen.append(point)
    ways = itertools.cycle(_WAYS)
    return [_in_a_way(point, next(ways)) for point in chosen[:_LATER]]


def _in_a_way(point: Point, way: str) -> Point:
    settings = point["settings"]
    if "inference" in way and "optimizer" in settings:
        settings = _not_trained(settings)
    mode = "reduce-overhead" if "graphs" in way else "default"
    return {**point, "settings": settings, "mode": mode, "part": LATER}


def _not_trained(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in _OF_TRAINING} | {"optimizer": "none"}


def key(point: Point) -> str:
    """What names a point, so that it is not measured twice."""
    settings = ",".join(f"{name}={value}" for name, value in sorted(point["settings"].items()))
    return f"{stored_source(point['source'])}?{settings}#{point['mode']}"


def _in_turn() -> list[Point]:
    draw = random.Random(_SEED)
    named = _named(draw)
    graphs = [{**point, "mode": "reduce-overhead"} for point in named[:_GRAPHS]]
    rest: dict[str, Iterator[Point]] = {
        "named": iter(named),
        "inference": iter(_inference(draw, named)),
        "hand": iter(_hand_written()),
        "generated": iter(_generated(draw)),
        "graphs": iter(graphs),
    }
    found: dict[str, Point] = {}
    while rest:
        for kind in _TURN:
            point = next(rest[kind], None) if kind in rest else None
            if point is None:
                rest.pop(kind, None)
            else:
                found.setdefault(key(point), point)
    return list(found.values())


def _named(draw: random.Random) -> list[Point]:
    """One step of each architecture of the H200 dataset."""
    by_source: dict[str, list[dict[str, str]]] = {}
    for point in STEPS:
        optimizer = point.settings.get("optimizer", "")
        if _family(point.source) not in _LEFT_OUT and not any(word in optimizer for word in _DEAR):
            by_source.setdefault(point.source, []).append(dict(point.settings))
    found = [_point(source, draw.choice(some), _family(source)) for source, some in by_source.items()]
    draw.shuffle(found)
    return found


def _inference(draw: random.Random, named: list[Point]) -> list[Point]:
    """Some of them again, not trained."""
    trained = [point for point in named if point["settings"].get("optimizer", "none") != "none"]
    return [
        _point(
            point["source"],
            _not_trained(point["settings"]),
            point["family"],
        )
        for point in draw.sample(trained, len(trained))
    ]


def _hand_written() -> list[Point]:
    open_, blind = kinds.steps(blind=False), list(kinds.steps(blind=True))
    found = []
    for number, point in enumerate(open_, 1):
        found.append(point)
        if number % (_HAND_BLIND - 1) == 0 and blind:
            found.append(blind.pop(0))
    return [_point(p.source, dict(p.settings), kinds.family_of(p.source) or "") for p in found]


def _generated(draw: random.Random) -> list[Point]:
    """As their seeds drew them."""
    sources = [f"{GENERATED}{seed}" for seed in draw.sample(range(1, 500), _GENERATED)]
    return [_point(source, {}, fold_of(source)) for source in sources]


def _point(source: str, settings: dict[str, str], family: str) -> Point:
    return {"source": source, "settings": settings, "family": family, "mode": "default"}


def _family(source: str) -> str:
    return FAMILY.get(stored_source(source), "")
