"""CherryPick: how it starts, when it stops, and that it turns away from runs that fail."""

from __future__ import annotations

import numpy as np
import pytest
from foretell_bench.methods.cherrypick import LEAST, STARTS, Candidate, CherryPick, expected_improvement, spread_out

from foretell.errors import InputError


def bowl(*, failing: bool = False) -> list[Candidate]:
    """Cheapest in the middle; where failing, half of the places cannot run."""
    return [
        Candidate(features=(float(x), float(y)), cost=1.0,
                  objective=None if failing and x > 4 else 1.0 + (x - 3) ** 2 + (y - 4) ** 2)
        for x in range(8) for y in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_near_the_best_in_few_runs(seed: int) -> None:
    table = bowl()
    found = CherryPick(seed=seed).search(table)
    best = found.best(table)
    assert best is not None
    assert best <= 3
    assert LEAST <= len(found.tried) < 25
    assert found.cost == len(found.tried)


def test_it_never_runs_anything_twice_and_starts_spread_out() -> None:
    table = bowl()
    found = CherryPick(seed=1).search(table)
    assert len(set(found.tried)) == len(found.tried)
    places = np.array([c.features for c in table])
    assert list(found.tried[:STARTS]) == spread_out((places - 0) / 7, STARTS, 1)


def test_runs_that_fail_are_counted_and_left_behind() -> None:
    table = bowl(failing=True)
    found = CherryPick(seed=0).search(table)
    best = found.best(table)
    assert best is not None
    assert best <= 6


def test_when_nothing_runs_there_is_no_best() -> None:
    table = [Candidate(features=(float(x),), objective=None, cost=1.0) for x in range(8)]
    found = CherryPick().search(table)
    assert found.best(table) is None


def test_a_flat_table_ends_at_the_least_number_of_runs() -> None:
    table = [Candidate(features=(float(x),), objective=5.0, cost=1.0) for x in range(20)]
    assert len(CherryPick().search(table).tried) == LEAST


def test_improvement_is_expected_where_nothing_is_known() -> None:
    known = np.array([[0.0], [0.1], [0.2]])
    gain = expected_improvement(known, np.array([3.0, 2.0, 1.0]), np.array([[0.05], [0.3]]))
    assert gain[1] > gain[0] >= 0


def test_too_few_configurations_are_refused() -> None:
    with pytest.raises(InputError, match="starts with 3"):
        CherryPick().search(bowl()[:2])
