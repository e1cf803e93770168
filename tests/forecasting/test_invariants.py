"""What no forecast can break: one that does is refused in words, wherever it was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import foretell
from foretell.cost.flops import total_flops
from foretell.errors import InputError
from foretell.forecasting.invariants import possible
from foretell.graph import Graph
from foretell.hardware import device


def products(rows: int = 16384) -> foretell.Workload:
    return foretell.Workload(
        name="products",
        model=lambda: nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(8))),
        batch=lambda: {"x": torch.randn(rows, 8192)},
        loss=lambda model, b: model(b["x"]).sum(),
        optimizer=None,
        precision="fp16",
    )


@pytest.fixture(scope="module")
def graph() -> Graph:
    return foretell.forecast(products(), on="h200").graph


def test_a_step_in_which_no_time_passes_is_refused(graph: Graph) -> None:
    nothing = replace(graph, ops=(), tensors=(), storages=(), gradients={})
    with pytest.raises(InputError, match="a step takes 0 s"):
        foretell.forecast(nothing, "h200")


def test_more_arithmetic_than_there_is_is_refused(graph: Graph) -> None:
    """By a profile that cannot be; the planner, which asks the same way, has no plan."""
    fast = foretell.Profile(name="fast", device=0.1)
    with pytest.raises(InputError, match="times the arithmetic that they can"):
        foretell.forecast(graph, "h200", profile=fast)
    with pytest.raises(InputError, match="arithmetic"):
        foretell.scale(graph, "h200", up_to=2, profile=fast)
    found = foretell.plan(graph, "2xh200", profile=fast, job=foretell.JobLength(samples=1e6))
    assert found.recommended is None
    assert not found.choices


def test_what_is_not_finite_and_memory_that_does_not_add_up_is_refused(graph: Graph) -> None:
    good = foretell.forecast(graph, "h200")
    assert possible(good) is good
    with pytest.raises(InputError, match="device_time is nan s"):
        possible(replace(good, device_time=replace(good.device_time, seconds=float("nan"))))
    with pytest.raises(InputError, match="reserved"):
        possible(replace(good, memory=replace(good.memory, reserved=good.memory.allocated - 1)))


def test_the_masked_half_of_attention_is_no_use_of_a_device() -> None:
    heads = torch.nn.Identity()
    asked = foretell.Workload(
        name="attention",
        model=lambda: heads,
        batch=lambda: {"x": torch.randn(1, 32, 65536, 128)},
        loss=lambda model, b: nn.functional.scaled_dot_product_attention(b["x"], b["x"], b["x"], is_causal=True).sum(),
        optimizer=None,
        precision="bf16",
    )
    found = foretell.forecast(asked, "h200", model="roofline")
    assert 1.8 < (found.throughput.mfu or 0) <= 2  # counted in full, as FLOP counters do


def test_use_of_boards_of_two_kinds_is_of_all_their_peaks(graph: Graph) -> None:
    """By the slower board alone the same step had used five times as much."""
    found = foretell.forecast(graph, "1xh100-sxm+1xt4", "dp=2")
    peak = sum(device(name).peak("fp16") for name in ("h100-sxm", "t4"))
    assert found.throughput.mfu == pytest.approx(2 * total_flops(graph) / found.step_time.seconds / peak)
