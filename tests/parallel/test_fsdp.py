"""Sharding and accumulation: what a rank holds, what it sends, and that a step of micro-steps is one recorded so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.parallel.accumulate import accumulate
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
