"""What reports write is what a person would: numbers, limits that are far, schedules, steps of unequal batches."""

from __future__ import annotations

import re
from itertools import pairwise

import foretell
from foretell.planner.result import Range
from foretell.report.compare import Compared, comparison_page
from foretell.report.html import page
from foretell.report.plan import _Axis, between
from foretell.report.schedule import passes
from foretell.report.timeline import timeline_chart
from foretell.serve.listener.pages.accuracy import slower_or_faster
from foretell.simulate.timeline import Span, Timeline
from foretell.units import show_kwh, show_share


def test_numbers_as_a_person_would_write_them() -> None:
    assert [show_kwh(v) for v in (1094.0, 99.94, 0.01234)] == ["1,094 kWh", "99.9 kWh", "0.0123 kWh"]
    assert between(Range(median=0.991, low=0.99, high=0.993), show_share) == "99 %"
    assert between(Range(median=0.9, low=0.8, high=0.95), show_share) == "90 % (80 % to 95 %)"
    assert (slower_or_faster(-0.59), slower_or_faster(0.12)) == ("59 % too fast", "12 % too slow")


def test_a_far_limit_does_not_squeeze_the_chart() -> None:
    near, far = (_Axis([100.0, 200.0], 0.0, 100.0, limit) for limit in (300.0, 20_000.0))
    assert near.has(300.0)
    assert not far.has(20_000.0)
    assert far.high < 300


def test_a_pipeline_is_drawn_by_stage_and_micro_batch() -> None:
    graph = foretell.capture_graph("hf/gpt2", {"layers": 4, "batch": 1, "seq": 64, "grad_accumulation": 4})
    f = foretell.forecast(graph, "2xh100-sxm", "pp=2", model="roofline")
    found = passes(f.timeline.spans)
    for stage in {box.stage for box in found}:
        for phase in ("forward", "backward"):
            numbers = [box.micro_batch for box in found if (box.stage, box.phase) == (stage, phase)]
            assert sorted(numbers) == [0, 1, 2, 3], (stage, phase)
        own = sorted((box for box in found if box.stage == stage), key=lambda box: box.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(own)), "one pass at a time"
    drawn = page([f])
    assert "Schedule of the pipeline" in drawn
    assert "Schedule of the pipeline" not in page([foretell.forecast(graph, "h100-sxm", model="roofline")])


def test_rows_of_a_timeline_have_their_whole_names() -> None:
    """They were cut at fourteen letters: two rows of a stage were both "stage 0 networ"."""
    streams = ["device", "network", "network pipeline"]
    spans = tuple(
        Span(f"stage {stage}", stream, "work", "", "forward", 0.1 * stage, 0.5, 0) for stage in range(2) for stream in streams
    )  # fmt: skip
    drawn = timeline_chart(Timeline(spans=spans, makespan=1.0, period=1.0), name="t", width=960)
    for stage in range(2):
        for stream in streams:
            assert f">stage {stage} {stream}</text>" in drawn
    left = min(float(x) for x in re.findall(r'class="segment" x="([0-9.]+)"', drawn))
    assert left > 6 * len("stage 0 network pipeline"), "the names lie left of what is drawn"


def test_unequal_batches_are_compared_by_sample() -> None:
    graphs = [foretell.capture_graph("torchvision/resnet18", {"batch": batch}) for batch in (2, 8)]
    found = [foretell.forecast(g, "h200") for g in graphs]
    drawn = comparison_page([Compared(label=f"batch {i}", forecast=f) for i, f in enumerate(found)])
    assert re.search(r"\d\.\d\d× \(\d\.\d\d to \d\.\d\d\)", drawn), "with its interval"
    assert "a sample" in drawn
