"""A step in a few numbers, as it is without a profile: what residual models know it by."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from foretell.cost.roofline import Price
from foretell.forecasting.communication import Collectives
from foretell.forecasting.step import RoleStep
from foretell.graph import Signature
from foretell.graph.calls import Call
from foretell.profile import ARITHMETIC, KINDS, family_of, plain
from foretell.program import Program
from foretell.units import Seconds


def step_features(program: Program, slowest: RoleStep, listed: Collectives, host: float = 1.0) -> dict[str, float]:
    """From its slowest rank, which was placed under a factor of the host; links are as listed. Shares of device time, and logarithms."""
    parts = family_seconds(slowest)
    busy = max(sum(parts.values()), 1e-12)
    priced = [(price, times) for _, price, times in _calls(slowest) if price.seconds]
    flops, traffic, kernels = (
        sum(column)
        for column in zip((0.0, 0, 0), *((p.work.flops * n, p.work.traffic * n, n) for p, n in priced), strict=True)
    )
    wire = sum(map(listed.seconds, slowest.role.collectives))
    shares = {kind: sum(parts.get(family, 0.0) for family in families) / busy for kind, families in KINDS.items()}
    return shares | {
        "backward": sum(seconds for family, seconds in parts.items() if family.endswith("backward")) / busy,
        "channels last": sum(seconds for family, seconds in parts.items() if family != plain(family)) / busy,
        "half": float(program.whole.precision.is_half),
        "intensity": math.log(max(flops, 1.0) / max(traffic, 1)),
        "kernel": math.log(busy / max(kernels, 1)),
        "narrow": _narrow(slowest),
        "host": math.log(slowest.host_seconds / host / busy + 0.01),
        "communication": math.log(wire / busy + 0.01),
        "samples": math.log(max(program.whole.samples or 1, 1)),
        "ranks": math.log(program.ranks),
        "nodes": math.log(len(listed.cluster.nodes)),
        "device": math.log(busy),
    }


def family_seconds(step: RoleStep) -> dict[str, Seconds]:
    """Device time by a profile's families, as it is without a profile."""
    parts: dict[str, Seconds] = defaultdict(float)
    for call, price, times in _calls(step):
        parts[family_of(call.signature)] += price.seconds * times
    return dict(parts)


def _calls(step: RoleStep) -> Iterator[tuple[Call, Price, int]]:
    """Each with its price, and how often it runs."""
    return zip(step.priced.calls.distinct, step.priced.of_calls, step.priced.calls.times, strict=True)


def _narrow(step: RoleStep) -> float:
    """The shorter side of what products and convolutions give, by their time."""
    ops = [
        (math.log(side), price.seconds * times)
        for call, price, times in _calls(step)
        if (side := _side(call.signature))
    ]
    busy = sum(seconds for _, seconds in ops)
    return sum(side * seconds for side, seconds in ops) / busy if busy else 0.0


def _side(signature: Signature) -> int:
    """0 for an op that is neither."""
    if family_of(signature) not in ARITHMETIC or not signature.outputs or len(signature.outputs[0].shape) < 2:
        return 0
    shape = signature.outputs[0].shape
    return max(1, min(shape[1], math.prod(shape) // max(shape[1], 1)))
