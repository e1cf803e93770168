"""Passes side by side: no quicker than the device or the lane alone, no slower than one after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.simulate.joined import Piece, Stream, side_by_side

PARTS = st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 3.0)), min_size=1, max_size=6)


def stream(parts: list[tuple[float, float]], weights: float = 0.0) -> Stream:
    """Work, then communication that the next piece waits for."""
    return Stream(
        tuple(
            Piece(work=work, weights=weights, awaits=(n - 1,) if n else (), sends=((n, sent),))
            for n, (work, sent) in enumerate(parts)
        )
    )


def test_two_passes_hide_what_each_other_waits_for() -> None:
    one = stream([(1.0, 1.0), (1.0, 1.0)])
    assert side_by_side([one], 1.0) == 4.0
    assert side_by_side([one, one], 1.0) == 5.0  # 4 of work, and what the last one sent
    assert side_by_side([one, one], 1.25) == pytest.approx(5.6)  # compute loses some of the device to what is sent


def test_gradients_of_weights_fill_what_nothing_else_does() -> None:
    assert side_by_side([stream([(1.0, 1.0), (1.0, 1.0)], weights=1.0)], 1.0) == 4.0
    assert side_by_side([stream([(1.0, 1.0), (1.0, 0.5)], weights=1.0)], 1.0) == 4.0


@given(PARTS, PARTS, st.floats(0.0, 1.0), st.floats(1.0, 1.5))
def test_bounds(
    one: list[tuple[float, float]], other: list[tuple[float, float]], weights: float, slower: float
) -> None:
    streams = [stream(one), stream(other, weights)]
    took = side_by_side(streams, slower)
    work, sent = (sum(part[i] for part in one + other) for i in (0, 1))
    work += weights * len(other)
    assert max(work, sent) - 1e-9 <= took <= work * slower + sent + 1e-9
