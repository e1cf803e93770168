"""Which steps are measured compiled: one of each architecture of the H200 dataset, and some again with CUDA graphs."""

from __future__ import annotations

import random
from typing import Any, Final

from foretell_bench.measuring.h200.architectures import FAMILY
from foretell_bench.measuring.h200.points import STEPS

_SEED: Final = 37
_WITH_GRAPHS: Final = 14
_LEFT_OUT: Final = ("detection", "optical-flow", "ssm", "recurrent-vision")  # compile for many minutes, or not at all
_DEAR: Final = ("forloop", "adafactor")  # optimizers of thousands of launches, which stay eager


def points() -> list[dict[str, Any]]:
    """In an order whose beginning is a good spread."""
    draw = random.Random(_SEED)
    by_source: dict[str, list[dict[str, str]]] = {}
    for point in STEPS:
        optimizer = point.settings.get("optimizer", "")
        if FAMILY.get(point.source) not in _LEFT_OUT and not any(word in optimizer for word in _DEAR):
            by_source.setdefault(point.source, []).append(dict(point.settings))
    found = [
        {"source": source, "settings": draw.choice(some), "family": FAMILY.get(source, ""), "mode": "default"}
        for source, some in by_source.items()
    ]
    draw.shuffle(found)
    found += [{**point, "mode": "reduce-overhead"} for point in found[:_WITH_GRAPHS]]
    return found


def key(point: dict[str, Any]) -> str:
    """What names a point, so that it is not measured twice."""
    settings = ",".join(f"{name}={value}" for name, value in sorted(point["settings"].items()))
    return f"{point['source']}?{settings}#{point['mode']}"
