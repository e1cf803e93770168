"""The parts that reports show must add up, and the words must name the right culprit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell.forecasting.result import Duration
from foretell.report import findings
from foretell.report.memory import memory_series
from foretell.report.ops import operators
from foretell.report.tree import module_tree, outline, walk
from foretell.simulate.memory import replay
from foretell.units import GIB, MIB
from tests.report.examples import BLOCKS, small_forecast


def test_time_parts_sum_to_the_step() -> None:
    f = small_forecast()
    assert sum(p.amount for p in findings.time_parts(f)) == pytest.approx(f.step_time.seconds)


def test_memory_parts_sum_to_the_capacity_or_to_what_is_needed() -> None:
    fits, over = small_forecast(), small_forecast(capacity=GIB)
    assert sum(p.amount for p in findings.memory_parts(fits)) == fits.memory.capacity
    assert sum(p.amount for p in findings.memory_parts(over)) == over.memory.total


@pytest.mark.parametrize(
    ("step", "communication", "bubble", "expected"),
    [
        (0.1, 0.0, 0.0, "host-bound: the device waits for the host 92 % of the step"),
        (0.0085, 0.0002, 0.0, "device-bound"),
        (0.009, 0.0, 0.0, "device-bound"),  # a wait of a tenth
        (0.02, 0.0119, 0.0, "communication-bound"),
        (0.02, 0.0, 0.0119, "pipeline-bound"),
    ],
)
def test_bottleneck_names_the_largest_wait(step: float, communication: float, bubble: float, expected: str) -> None:
    f = small_forecast(
        step_time=Duration(seconds=step),
        exposed_communication=Duration(seconds=communication),
        bubble=Duration(seconds=bubble),
    )
    assert findings.bottleneck(f).startswith(expected)


def test_what_is_offloaded_is_waited_for_too() -> None:
    f = small_forecast(
        plan="dp=1,zero=3,offload=optimizer",
        exposed_communication=Duration(seconds=0.9),
        step_time=Duration(seconds=1.0),
    )
    assert "waits for what is offloaded" in findings.bottleneck(f)


def test_verdict_gives_the_numbers_both_ways() -> None:
    assert "1.43 GiB of 80 GiB (2 %)" in findings.verdict(small_forecast()).sentence
    over = findings.verdict(small_forecast(capacity=GIB))
    assert over.headline == "Does not fit"
    assert "more than the 1 GiB there are" in over.sentence


def test_a_probability_is_never_certain() -> None:
    assert findings.show_probability(1.0) == "> 99.9 %"
    assert findings.show_probability(0.0) == "< 0.1 %"


def test_operators_share_out_the_device_time() -> None:
    f = small_forecast()
    uses = operators(f)
    assert sum(use.share for use in uses) == pytest.approx(1.0)
    assert (uses[0].name, uses[0].phase, uses[0].calls) == ("aten.mm", "backward", 3 * BLOCKS)
    assert [u.seconds for u in uses] == sorted((u.seconds for u in uses), reverse=True)


def test_equal_blocks_are_one_row_and_lose_nothing() -> None:
    f = small_forecast()
    root = module_tree(f)
    rows = {module.path: module for _, module in walk(root, depth=9)}
    blocks = rows[f"blocks.0–{BLOCKS - 1}"]
    assert blocks.repeat == BLOCKS
    assert rows[f"blocks.0–{BLOCKS - 1}.mlp.up"].seconds == pytest.approx(BLOCKS * (180e-6 + 250e-6))
    assert blocks.seconds == pytest.approx(rows["blocks"].seconds)
    assert root.seconds == pytest.approx(f.device_time.seconds)
    assert root.parameters == f.graph.bytes_of("parameter")
    assert root.activations == f.memory.breakdown.activations


@pytest.mark.parametrize("points", [3, 20, 1000])
def test_memory_layers_sum_to_what_is_allocated_and_keep_the_peak(points: int) -> None:
    series = memory_series(small_forecast(), points)
    assert len(series.positions) == min(points, series.ops)
    sums = [sum(layer.nbytes[i] for layer in series.layers) for i in range(len(series.positions))]
    assert sums == list(series.allocated)
    assert max(series.allocated) == series.peak_allocated
    assert [stretch.phase for stretch in series.stretches] == ["forward", "backward", "optimizer"]


def test_what_a_plan_keeps_beside_the_graph_is_drawn_all_along_under_its_purpose() -> None:
    small = small_forecast()
    kept = small_forecast(memory_trace=replay(small.graph, persistent={"gradient": 64 * MIB}))
    [gradients] = [layer for layer in memory_series(kept, 20).layers if layer.key == "gradients"]
    assert min(gradients.nbytes) >= 64 * MIB


def test_outline_opens_the_heaviest_within_its_rows() -> None:
    root = module_tree(small_forecast())
    joined = f"blocks.0–{BLOCKS - 1}"
    assert [m.path for _, m in outline(root, rows=3)] == ["", "blocks", joined]
    assert [m.path for _, m in outline(root, rows=5)] == ["", "blocks", joined, f"{joined}.attention", f"{joined}.mlp"]
    assert len(list(outline(root, rows=99))) == len(list(walk(root, depth=None)))


def test_a_peak_outside_modules_names_its_operator() -> None:
    f = small_forecast()
    assert findings.peak_place(f) == "blocks.5.mlp.down"
    nowhere = small_forecast(memory=replace(f.memory, peak_module=""))
    assert findings.peak_place(nowhere) == "mul, outside modules"
