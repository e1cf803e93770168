"""How intervals widen with the number of units that they rest on."""

from __future__ import annotations

import pytest

from foretell.learn.uncertainty.few_units import students_factor
from foretell.learn.uncertainty.trainers import Unit, fit_trainers


def test_the_fewer_units_the_wider_and_many_are_as_good_as_knowing() -> None:
    factors = [students_factor(units) for units in (0, 1, 2, 5, 20, 10_000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 1.5
    assert factors[-1] == pytest.approx(1.0, abs=1e-3)


def test_a_kind_of_few_documents_is_less_sure_than_one_of_many_that_lie_as_far_apart() -> None:
    middles = (0.0, 0.1, 0.2)
    many = [Unit(f"many {n}", "recipe", middles[n % 3], 0.02) for n in range(12)]
    few = [Unit(f"few {n}", "loop", middles[n], 0.02) for n in range(3)]
    trainers, _ = fit_trainers([*many, *few])
    assert trainers["recipe"].spread < trainers["loop"].spread < trainers["plain"].spread
