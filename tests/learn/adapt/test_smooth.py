"""What is left of steps, as a smooth function of what describes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from foretell.learn.adapt.smooth import OF_OPS, OF_STEPS, fit_residuals, fit_smooth


def described(ranks: Sequence[int], draw: np.random.Generator) -> list[dict[str, float]]:
    """Steps that differ in everything, and in their ranks."""
    return [
        {name: float(0.4 * unit * draw.normal()) for name, unit in OF_STEPS.units.items()} | {"ranks": math.log(n)}
        for n in ranks
    ]


@pytest.mark.parametrize(
    "cost", [lambda n: 0.5 * (n == 4), lambda n: 0.5 * (n > 2)], ids=["the last", "the second switch"]
)
def test_one_rank_more_may_be_dear(cost: Callable[[int], float]) -> None:
    draw = np.random.default_rng(0)
    seen, others = ([1, 2, 3, 4] * count for count in (20, 5))
    errors = np.array([cost(n) for n in seen]) + 0.03 * draw.normal(size=len(seen))
    found = fit_residuals(described(seen, draw), errors)
    missed = [found.log_factor(each) - cost(n) for each, n in zip(described(others, draw), others, strict=True)]
    assert np.abs(missed).mean() < 0.1  # with one scale for all numbers: 0.15 and 0.21


def test_what_does_not_depend_on_ranks_keeps_its_scale() -> None:
    draw = np.random.default_rng(1)
    steps = described([1, 2, 3, 4] * 20, draw)
    found = fit_residuals(steps, np.array([0.3 * math.tanh(each["kernel"]) for each in steps]))
    scale = dict(zip(found.columns, found.scales, strict=True))
    assert scale["ranks"] / scale["kernel"] == pytest.approx(OF_STEPS.units["ranks"] / OF_STEPS.units["kernel"])


def test_ops_of_one_network_are_off_together() -> None:
    draw = np.random.default_rng(2)
    ops = [{name: float(unit * draw.normal()) for name, unit in OF_OPS.units.items()} for _ in range(40)]
    found = fit_smooth(ops, np.full(40, 0.2), ["one", "two"] * 20, 0.2, OF_OPS)
    assert found.log_factor(ops[0]) == pytest.approx(0.2, abs=0.02)
