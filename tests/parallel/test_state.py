"""Bytes of a model's state on one rank: what the rule says is what the passes leave."""

from __future__ import annotations

import pytest

from foretell.graph import Graph
from foretell.parallel import parallelize
from foretell.parallel.rewrite import first_of, last_of
from foretell.parallel.state import ModelState, state_per_rank
from foretell.plans import Plan
from foretell.program import Role

from .models import graph

PRECISIONS = ["fp32", "bf16", "amp-bf16", "parameters:bf16/gradients:fp32/master:fp32", "compute:bf16/reduce:fp32"]
PLANS = [
    "dp=1", "dp=4", "dp=4,zero=1", "dp=4,zero=2", "dp=4,zero=3", "dp=8,zero=3,hybrid_shard=2", "dp=2,cp=2,zero=2",
    "dp=4,offload=optimizer", "dp=4,zero=1,offload=optimizer", "dp=4,zero=2,offload=optimizer",
    "dp=4,zero=3,offload=parameters", "dp=4,servers=2", "dp=4,data_parallel=dp",
]  # fmt: skip


def alive(graph: Graph, role: str, at: int, *, kept: bool) -> int:
    """Bytes for a purpose that live at an op, kept from step to step or made in it."""
    lives = [s for s in graph.storages if s.role == role and s.born <= at <= s.freed]
    return sum(s.nbytes for s in lives if (s.born < 0) == kept)


def left_by_passes(role: Role, plan: Plan) -> ModelState:
    step = role.graph
    turn, update = last_of(step, "forward"), min(first_of(step, "optimizer"), len(step.ops) - 1)
    return ModelState(
        parameters=alive(step, "parameter", turn, kept=True),
        gradients=alive(step, "gradient", update, kept=True) + alive(step, "gradient", update, kept=False),
        optimizer=step.bytes_of("optimizer"),
        gathered=alive(step, "parameter", turn, kept=False) if plan.zero == 2 else 0.0,
        buckets=role.persistent.get("gradient", 0),
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("text", PLANS)
def test_a_rank_keeps_what_the_passes_leave(text: str, precision: str) -> None:
    whole, plan = graph("llama", precision=precision), Plan.parse(text)
    alone = left_by_passes(parallelize(whole, Plan()).roles[0], Plan())
    expected = state_per_rank(alone, plan, whole.precision)
    left = left_by_passes(parallelize(whole, plan).roles[0], plan)
    for name in ("parameters", "gradients", "optimizer", "gathered", "buckets"):
        assert getattr(expected, name) == pytest.approx(getattr(left, name), rel=0.02, abs=64), name
    assert expected.total == pytest.approx(left.total, rel=0.02)
