"""Lines of an axis lie at round numbers."""

from __future__ import annotations

import pytest

from foretell.report import ticks


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (0.0, 0.302, ["0 ms", "50 ms", "100 ms", "150 ms", "200 ms", "250 ms", "300 ms"]),
        (0.1001, 0.1005, ["100.1 ms", "100.2 ms", "100.3 ms", "100.4 ms", "100.5 ms"]),  # told apart however near
        (0.0, 5e-9, ["0 ns", "1 ns", "2 ns", "3 ns", "4 ns", "5 ns"]),
        (0.0, 0.0, []),
    ],
)
def test_times_in_equal_steps(begin: float, end: float, said: list[str]) -> None:
    assert [label for _, label in ticks.seconds(begin, end, 5)] == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.02, 1.2, ["20 ms", "50 ms", "100 ms", "200 ms", "500 ms", "1 s"]),
        (3000.0, 80000.0, ["1 h", "2 h", "5 h", "10 h"]),
        (1.0, 2.0, ["1.0 s", "1.2 s", "1.4 s", "1.6 s", "1.8 s", "2.0 s"]),
    ],
)
def test_times_by_ratio(low: float, high: float, said: list[str]) -> None:
    assert [label for _, label in ticks.seconds_by_ratio(low, high, 6)] == said


def test_dollars_and_counts() -> None:
    assert [label for _, label in ticks.dollars_by_ratio(83, 138, 6)] == ["$90", "$100", "$110", "$120", "$130"]
    assert [label for _, label in ticks.dollars_by_ratio(0.06, 3, 6)] == ["$0.10", "$0.20", "$0.50", "$1", "$2"]
    assert [label for _, label in ticks.counts_by_ratio(1, 64, 6, "devices")][-1] == "50 devices"
