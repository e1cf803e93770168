"""The chart of errors by seconds of measuring."""

from __future__ import annotations

from foretell_bench.pages.design_chart import error_curves


def test_a_line_for_each_method() -> None:
    chart = error_curves({"random": [(10, 0.4, 0.3, 0.5), (100, 0.2, 0.1, 0.3)], "d-optimal": [(10, 0.3, 0.2, 0.4)]})
    assert chart.count("<polyline") == 2
    assert "d-optimal" in chart
