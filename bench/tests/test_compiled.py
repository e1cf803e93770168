"""Measured compiled steps: what the compiler scheduled is what the device ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.checkout import ROOT
from foretell_bench.measuring.compiled.blind import BLIND, drawn
from foretell_bench.measuring.compiled.oracle import compared
from foretell_bench.measuring.compiled.points import key, points
from foretell_bench.measuring.compiled.rows import keys_of, rows
from foretell_bench.pages.compiled import fill
from foretell_bench.tables.compiled import CompiledStep, figures

from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.graph.operators import FUSED

_STORE = ROOT / "bench/data/h200-compiled"


def test_every_kernel_of_the_schedule_was_launched() -> None:
    compared = 0
    for row in rows(_STORE):
        ran = sum(name.startswith("triton") for name, _ in row["kernels"])
        once = not row["graph_breaks"] and row["settings"].get("grad_accumulation", "1") == "1"
        if once and len(row["graphs"]) == (1 if row["settings"].get("optimizer") == "none" else 2):
            assert ran == sum(len(graph["kernels"]) for graph in row["graphs"]), row["source"]
            compared += 1
    assert compared >= 30


def test_points_are_not_drawn_twice() -> None:
    keys = [key(point) for point in points()]
    assert len(set(keys)) == len(keys) > 500
    assert keys_of(_STORE)


def test_the_blind_part_is_what_was_drawn() -> None:
    first = [row for row in rows(_STORE) if "owners" in row]  # of the campaign that they were drawn from
    assert len(first) == 48
    assert drawn(first) == BLIND


def test_a_step_that_has_the_scheduled_kernels_is_the_same() -> None:
    row = {
        "source": "tiny",
        "graph_breaks": {},
        "kernels": [["triton_poi_fused_0", 1e-6], ["gemm", 1e-6]],
        "graphs": [{"nodes": [_NODE, {**_NODE, "kind": "ExternKernelSchedulerNode"}]}],
    }
    x = Layout.contiguous((4, 2), "float32")
    for traffic, same in ((64, 1.0), (65, 0.0)):
        op = Op(Signature(f"{FUSED}.pointwise", (x,), (x,), (("traffic", traffic),)), "forward", "", (0,), (1,))
        tensors, storages = (Tensor(x, 0), Tensor(x, 1)), (Storage(32, "input", -1, 1), Storage(32, "temporary", 0, 0))
        found = compared(row, Graph(name="tiny", ops=(op,), tensors=tensors, storages=storages))
        assert (found.measured, found.captured, found.same, found.difference) == (1, 1, same, 0.0)


def test_a_kernel_of_symbolic_sizes_is_the_same_by_its_bytes() -> None:
    symbolic = {**_NODE, "writes": [["b", ["float32", ["s0", 2], [2, 1]], "d0", [8], None]]}
    row = {"source": "tiny", "graph_breaks": {}, "kernels": [], "graphs": [{"nodes": [_NODE, symbolic]}]}
    x = Layout.contiguous((4, 2), "float32")
    op = Op(Signature(f"{FUSED}.pointwise", (x,), (x,), (("traffic", 64),)), "forward", "", (0,), (1,))
    tensors, storages = (Tensor(x, 0), Tensor(x, 1)), (Storage(32, "input", -1, 1), Storage(32, "temporary", 0, 0))
    for times, same in ((1, 0.5), (2, 1.0)):
        graph = Graph(name="tiny", ops=(op,) * times, tensors=tensors, storages=storages)
        assert compared(row, graph).same == same


_NODE = {
    "kind": "SchedulerNode",
    "bytes": {"a": 32, "b": 32},
    "writes": [["b", ["float32", [4, 2], [2, 1]], "d0", [8], None]],
}


def _step(**changes: Any) -> CompiledStep:
    step = CompiledStep(
        source="tiny", family="made", mode="default", blind=False, kernels=(100, 101), same=1.0, device=(1.0, 1.1),
        step=(2.0, 1.8), low=1.5, high=2.5, allocated=(100.0, 101.0), speed_up=(1.3, 1.25),
    )  # fmt: skip
    return replace(step, **changes)


def test_a_step_that_was_captured_eager_is_counted_and_judges_no_forecast() -> None:
    eager = _step(fused=False, device=(1.0, 9.0))
    found = {figure.measure: figure.value for figure in figures([_step(), eager])}
    assert found["captured as compiled, not eager"] == 0.5
    assert found["device time, mean error"] == pytest.approx(0.1)
    assert found["speed-ups over 5 %: their sign is right"] == 1.0
    assert "step time of inference, mean error" not in found
    assert [figure.value for figure in figures([eager])] == [0.0]


def test_the_page_of_compiled_steps_is_filled_in(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: open -->\n<!-- end -->\n<!-- table: open families -->\n<!-- end -->\n")
    fill(page, [_step(inference=True)])
    text = page.read_text()
    assert "10.0%" in text
    assert "| made | 1 |" in text
