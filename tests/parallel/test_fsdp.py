"""Sharding and accumulation: what a rank holds, what it sends, and that a step of micro-steps is one recorded so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.forecasting.memory import rank_memory
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.parallel.accumulate import accumulate
from foretell.parallel.parameters import parameters
from foretell.plans import Plan
from foretell.simulate.memory import replay

from .models import FAMILIES, graph


def most(family: str, plan: Plan, purpose: str) -> int:
    """The most bytes that live at once for a purpose, as asked for: the allocator rounds small models up."""
    graph_ = parallelize(graph(family), plan).roles[0].graph
    lives = [(s.born, s.freed, s.nbytes) for s in graph_.storages if s.role == purpose]
    return max(sum(n for born, freed, n in lives if born <= at <= freed) for at in range(len(graph_.ops)))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_each_degree_of_sharding_holds_less(family: str) -> None:
    states = [most(family, Plan(dp=4, zero=z), "optimizer") for z in range(4)]
    assert states[0] > 3 * states[1]
    assert states[1] == states[2] == states[3]
    gradients = [most(family, Plan(dp=4, zero=z), "gradient") for z in range(4)]
    assert gradients[0] == gradients[1] > gradients[2]
    parameters = [most(family, Plan(dp=4, zero=z), "parameter") for z in range(4)]
    assert parameters[0] <= parameters[2] > parameters[3]


def test_sharding_in_groups_holds_more_than_sharding_over_all() -> None:
    over_all, in_pairs = Plan(dp=8, zero=3), Plan(dp=8, zero=3, hybrid_shard=2)
    assert most("llama", over_all, "optimizer") < most("llama", in_pairs, "optimizer") / 3


def test_a_group_that_does_not_divide_the_replicas_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(PlanError, match=r"hybrid_shard=3 must divide dp × cp = 8 × 1 = 8"):
        parallelize(graph("llama"), Plan(dp=8, zero=3, hybrid_shard=3))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_accumulating_equals_a_step_captured_so(family: str) -> None:
    asked, captured = accumulate(graph(family), 3), graph(family, grad_accumulation=3)
    assert asked.grad_accumulation == 3
    same = ("aten.detach", "aten.new_empty_strided", "aten.copy_", "aten.div")
    ran, expected = (
        sorted((op.signature.name, op.times) for op in g.ops if op.signature.name not in same)
        for g in (asked, captured)
    )
    assert ran == expected
    assert replay(asked).peak_allocated == pytest.approx(replay(captured).peak_allocated, rel=0.02)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_accumulation_can_be_taken_back(family: str) -> None:
    once, back = graph(family), accumulate(graph(family, grad_accumulation=3), 1)
    assert [op.target for op in back.ops] == [op.target for op in once.ops]
    assert replay(back).peak_allocated == replay(once).peak_allocated


def test_one_device_is_the_forecast_of_one_device() -> None:
    alone = forecast(graph("llama"), on="h100-sxm", model="roofline")
    for zero in range(4):
        planned = forecast(graph("llama"), on="h100-sxm", plan=Plan(zero=zero), model="roofline")
        assert replace(planned, plan=alone.plan).to_dict() == alone.to_dict()


def test_micro_steps_multiply_what_full_sharding_sends() -> None:
    sent = [
        forecast(graph("llama"), on="4xh100-sxm", plan=f"dp=4,zero=3,grad_accumulation={n}", model="roofline").network
        for n in (1, 2, 5)
    ]
    assert [n.sent_bytes / sent[0].sent_bytes for n in sent] == [1, 2, 5]
    assert all(n.sent_bytes == n.received_bytes for n in sent)


def test_updated_parameters_are_gathered_bucket_by_bucket() -> None:
    role = parallelize(graph("llama"), Plan(dp=8, zero=1, bucket_bytes=4096)).roles[0]
    kinds = {kind: [c for c in role.collectives if c.kind == kind] for kind in ("reduce-scatter", "all-gather")}
    assert len(kinds["all-gather"]) > 2
    assert [c.nbytes for c in kinds["all-gather"]] == [c.nbytes for c in kinds["reduce-scatter"]]
    assert {c.starts_after for c in kinds["all-gather"]} == {len(role.graph.ops) - 1}  # after the whole update


def test_deepspeed_has_buffers_of_its_own() -> None:
    numbers = 3 * (3 * 32 * 96 + 2 * 32 * 32 + 2 * 32 * 16 + 2 * 32) + 2 * 96 * 32 + 32
    step = graph("llama", precision="bf16")
    held = {
        (zero, overlap): parallelize(step, Plan(dp=4, zero=zero, overlap=overlap, sharding="deepspeed"))
        .roles[0]
        .persistent
        for zero, overlap in ((2, True), (2, False), (3, True))
    }
    assert held[2, True] == {"gradient": 2 * 500_000_000 * 2}
    assert held[2, False] == {"gradient": 500_000_000 * 2}
    assert held[3, True] == {"gradient": 500_000_000 * 2, "parameter": 2 * numbers}
    with pytest.raises(PlanError, match="shards nothing"):
        parallelize(step, Plan(dp=4, sharding="deepspeed"))


def test_deepspeed_keeps_its_parts_of_gradients_at_full_sharding() -> None:
    """They were there from the backward pass to the update alone, and not beside activations."""
    step = graph("llama", precision="bf16")
    parts = {}
    for sharding in ("torch", "deepspeed"):
        role = parallelize(step, Plan(dp=4, zero=3, sharding=sharding)).roles[0]
        parts[sharding] = [s.nbytes for s in role.graph.storages if s.role == "gradient" and s.born < 0 and s.nbytes]
    numbers = sum(p.layout.numel for p in parameters(step))
    assert sum(parts["torch"]) == 0
    assert sum(parts["deepspeed"]) == pytest.approx(2 * numbers / 4, rel=0.02)


def test_each_group_of_ranks_has_a_communicator() -> None:
    one, two = (forecast(graph("llama"), on="4xh100-sxm", plan=p, model="roofline") for p in ("dp=4", "dp=2,tp=2"))
    assert 0 < 2 * one.memory.communicator < two.memory.communicator  # two pairs, and all four


def test_of_several_ranks_it_is_less_certain_whether_they_fit() -> None:
    h100 = device("h100-sxm")
    roles = [parallelize(graph("llama"), Plan(dp=dp)).roles[0] for dp in (1, 2)]
    needed = [m.allocated + m.context + m.communicator for m in (rank_memory(role, h100)[1] for role in roles)]
    tight = [replace(h100, usable_bytes=round(1.02 * nbytes)) for nbytes in needed]
    sure, unsure = (rank_memory(role, d)[1].fit_probability for role, d in zip(roles, tight, strict=True))
    assert 0.5 < unsure < 0.6 < sure
