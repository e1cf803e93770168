"""The slowest of many ranks: validated against order statistics known from tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.simulate.jitter import slowest_of

# The expected largest of n standard normal numbers.
EXPECTED = {2: 0.5642, 8: 1.4236, 100: 2.5076, 1000: 3.2414}


@pytest.mark.parametrize(("ranks", "largest"), EXPECTED.items())
def test_the_slowest_is_where_order_statistics_say(ranks: int, largest: float) -> None:
    assert math.log(slowest_of(ranks, 0.001)) / 0.001 == pytest.approx(largest, rel=0.02)


def test_one_rank_waits_for_nobody_and_equal_ranks_neither() -> None:
    assert slowest_of(1, 0.3) == 1.0
    assert slowest_of(4096, 0.0) == 1.0


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.floats(0, 0.2))
def test_more_ranks_are_never_faster_and_the_same_question_has_one_answer(one: int, two: int, sigma: float) -> None:
    few, many = sorted((one, two))
    assert 1.0 <= slowest_of(few, sigma) <= slowest_of(many, sigma) + 1e-12
    assert slowest_of.__wrapped__(many, sigma) == slowest_of(many, sigma)
