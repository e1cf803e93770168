"""A step in a few numbers, as it is without a profile: what residual models know it by."""

from __future__ import annotations

import math
from collections import defaultdict

from foretell.forecasting.communication import Collectives
from foretell.forecasting.step import RoleStep
from foretell.graph import Signature
from foretell.profile import ARITHMETIC, KINDS, family_of, plain
from foretell.program import Program
from foretell.units import Seconds


def description(program: Program, slowest: RoleStep, listed: Collectives, host: float = 1.0) -> dict[str, float]:
    """From its slowest rank, which was placed under a factor of the host; links are as listed. Shares of device time, and logarithms."""
    parts, ops = family_seconds(slowest), slowest.role.graph.ops
    busy = max(sum(parts.values()), 1e-12)
    priced = [(price, op.times) for price, op in zip(slowest.priced.prices, ops, strict=True) if price.seconds]
    flops, traffic, kernels = (
        sum(column)
        for column in zip((0.0, 0, 0), *((p.work.flops * n, p.work.traffic * n, n) for p, n in priced), strict=True)
    )
    wire = sum(map(listed.seconds, slowest.role.collectives))
    shares = {kind: sum(parts.get(family, 0.0) for family in families) / busy for kind, families in KINDS.items()}
    return shares | {
        "backward": sum(seconds for family, seconds in parts.items() if family.endswith("backward")) / busy,
        "channels last": sum(seconds for family, seconds in parts.items() if family != plain(family)) / busy,
        "half": float(program.whole.precision.endswith("16")),
        "intensity": math.log(max(flops, 1.0) / max(traffic, 1)),
        "kernel": math.log(busy / max(kernels, 1)),
        "narrow": _narrow(slowest),
        "host": math.log(slowest.host_seconds / host / busy + 0.01),
        "communication": math.log(wire / busy + 0.01),
        "samples": math.log(max(program.whole.samples or 1, 1)),
        "ranks": math.log(program.ranks),
    }


def family_seconds(step: RoleStep) -> dict[str, Seconds]:
    """Device time by a profile's families, as it is without a profile."""
    parts: dict[str, Seconds] = defaultdict(float)
    families = step.role.graph.calls.each(lambda call: family_of(call.signature))
    for family, price, op in zip(families, step.priced.prices, step.role.graph.ops, strict=True):
        parts[family] += price.seconds * op.times
    return dict(parts)


def _narrow(step: RoleStep) -> float:
    """The shorter side of what products and convolutions give, by their time."""
    sides = step.role.graph.calls.each(lambda call: _side(call.signature))
    ops = [
        (math.log(side), price.seconds * op.times)
        for side, price, op in zip(sides, step.priced.prices, step.role.graph.ops, strict=True)
        if side
    ]
    busy = sum(seconds for _, seconds in ops)
    return sum(side * seconds for side, seconds in ops) / busy if busy else 0.0


def _side(signature: Signature) -> int:
    """0 for an op that is neither."""
    if family_of(signature) not in ARITHMETIC or not signature.outputs or len(signature.outputs[0].shape) < 2:
        return 0
    shape = signature.outputs[0].shape
    return max(1, min(shape[1], math.prod(shape) // max(shape[1], 1)))
