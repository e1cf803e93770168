"""Measured compiled steps: what the compiler scheduled is what the device ran."""

from __future__ import annotations

from foretell_bench.checkout import ROOT
from foretell_bench.measuring.compiled.blind import BLIND, drawn
from foretell_bench.measuring.compiled.points import key, points
from foretell_bench.measuring.compiled.rows import keys_of, rows

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
