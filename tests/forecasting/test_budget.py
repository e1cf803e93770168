"""Recomputing under a budget of memory: as little as fits, by what is cheapest."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.hardware import Cluster

from ..parallel.models import graph


def forecasts(plan: str, on: Cluster, *words: str) -> list[foretell.Forecast]:
    step = graph("llama")
    return [foretell.forecast(step, on=on, plan=f"{plan},checkpointing={word}") for word in words]


def small(devices: int, plan: str, share: float) -> Cluster:
    """Devices whose memory is what a step takes that recomputes nothing, less a share of what it could save."""
    cluster = Cluster.parse(f"{devices}xh100-sxm")
    none, full = (f.memory for f in forecasts(plan, cluster, "none", "full"))
    capacity = round(none.total - share * (none.total - full.total))
    node = cluster.nodes[0]
    return replace(cluster, nodes=(replace(node, device=replace(node.device, usable_bytes=capacity)),))


@pytest.mark.parametrize("plan", ["dp=1", "dp=2,zero=3", "tp=2,sequence_parallel=true", "pp=2,grad_accumulation=4"])
def test_a_budget_is_kept_and_never_slower_than_full(plan: str) -> None:
    devices = foretell.Plan.parse(plan).devices
    on = small(devices, plan, share=0.0)
    none, full = forecasts(plan, on, "none", "full")
    least, most = full.memory.total / full.memory.capacity, none.memory.total / none.memory.capacity
    for share in (least, (least + most) / 2, most):
        word = f"budget:{share:.9f}"
        first, again = forecasts(plan, on, word, word)
        assert first.plan == again.plan
        assert first.memory.total <= round(share * first.memory.capacity) + 1 or "full" in first.plan
        assert none.device_time.seconds <= first.device_time.seconds <= full.device_time.seconds


def test_what_no_recomputing_saves_is_left_to_the_verdict() -> None:
    found = foretell.forecast(graph("llama"), on="h100-sxm", plan="checkpointing=budget:0.001")
    assert found.plan == "dp=1,checkpointing=full"
    roomy = foretell.forecast(graph("llama"), on="h100-sxm", plan="checkpointing=budget:0.9")
    assert roomy.plan == "dp=1"
