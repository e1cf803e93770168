"""Measured compiled steps: what the compiler scheduled is what the device ran."""

from __future__ import annotations

from foretell_bench.checkout import ROOT
from foretell_bench.measuring.compiled.blind import BLIND, drawn
from foretell_bench.measuring.compiled.oracle import compared
from foretell_bench.measuring.compiled.points import key, points
from foretell_bench.measuring.compiled.rows import keys_of, rows

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
    assert len(set(keys)) == len(keys) > 150
    assert keys_of(_STORE)


def test_the_blind_part_is_what_was_drawn() -> None:
    assert drawn(rows(_STORE)) == BLIND


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


_NODE = {
    "kind": "SchedulerNode",
    "bytes": {"a": 32, "b": 32},
    "writes": [["b", ["float32", [4, 2], [2, 1]], "d0", [8], None]],
}
