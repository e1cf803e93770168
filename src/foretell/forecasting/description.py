"""A step in a few numbers, as it is without a profile: what residual models know it by."""

from __future__ import annotations

import math
from collections import defaultdict

from foretell.forecasting.step import RoleStep
from foretell.profile import KINDS, family_of
from foretell.program import Program
from foretell.units import Seconds


def description(program: Program, slowest: RoleStep, host_factor: float = 1.0) -> dict[str, float]:
    """From its slowest rank; `host_factor` is the profile's, under which it was placed."""
    whole, parts = program.whole, family_seconds(slowest)
    busy = max(sum(parts.values()), 1e-12)
    works = [(p.work, op.times) for p, op in zip(slowest.priced.prices, slowest.role.graph.ops, strict=True)]
    flops, traffic = sum(w.flops * n for w, n in works), sum(w.traffic * n for w, n in works)
    shares = {kind: sum(parts.get(family, 0.0) for family in families) / busy for kind, families in KINDS.items()}
    return shares | {
        "backward": sum(seconds for family, seconds in parts.items() if family.endswith("backward")) / busy,
        "channels last": _channels_last(slowest) / busy,
        "half": float(whole.precision.endswith("16")),
        "intensity": math.log(max(flops, 1.0) / max(traffic, 1)),
        "device": math.log(busy),
        "host": math.log(slowest.host_seconds / host_factor / busy + 0.01),
        "samples": math.log(max(whole.samples or 1, 1)),
        "ranks": math.log(program.ranks),
    }


def family_seconds(step: RoleStep) -> dict[str, Seconds]:
    """Device time by a profile's families, as it is without a profile."""
    parts: dict[str, Seconds] = defaultdict(float)
    families = step.role.graph.calls.each(lambda call: family_of(call.signature))
    for family, price, op in zip(families, step.priced.prices, step.role.graph.ops, strict=True):
        parts[family] += price.seconds * op.times
    return dict(parts)


def _channels_last(step: RoleStep) -> Seconds:
    """Of convolutions whose channels lie side by side, which run other kernels."""
    lying = step.role.graph.calls.each(
        lambda call: (
            family_of(call.signature).endswith(("convolution", "convolution_backward"))
            and any(x.is_channels_last for x in call.signature.inputs)
        )
    )
    ops = zip(lying, step.priced.prices, step.role.graph.ops, strict=True)
    return sum(price.seconds * op.times for last, price, op in ops if last)
