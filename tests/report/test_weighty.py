"""Caveats by what they change."""

from foretell.forecasting.result import Duration
from foretell.graph import Caveat
from foretell.report.findings import largest_batch, show_duration, show_plus_minus, weighty


def test_small_caveats_are_summed_and_large_ones_come_first() -> None:
    items = [
        Caveat("op-without-model", f"aten.op{n} priced by bytes", share)
        for n, share in enumerate((0.001, 0.2, 0.002, 0.004))
    ]
    shown = weighty([*items, Caveat("not-calibrated", "No interval.")])
    assert [c.code for c in shown] == ["not-calibrated", "op-without-model", "op-without-model"]
    assert shown[1].share == 0.2
    assert shown[2].text == "3 more priced by bytes (aten.op0, aten.op2, aten.op3)"
    assert shown[2].share == 0.007
    assert len(weighty(items[:2])) == 2  # one small one is named


def test_errors_and_batches_in_words() -> None:
    assert show_plus_minus(Duration(seconds=0.1, low=0.09, high=0.11)) == "100 ms ±4 %"
    assert show_plus_minus(Duration(seconds=0.1)) == "100 ms"
    assert show_duration(Duration(seconds=0.1, low=0.08, high=0.14)) == (
        "100 ms (80 ms – 140 ms in 9 of 10 cases, typically within 12 %)"
    )
    margin = "the largest that fits with a margin, the cache not counted, which gives way"
    assert largest_batch(37) == f"37, {margin}; 32 is the multiple of 8 below"
    assert largest_batch(40) == f"40, {margin}"
