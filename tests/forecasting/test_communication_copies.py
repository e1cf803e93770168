"""What a device copies for its communication."""

from __future__ import annotations

import pytest

import foretell
from foretell.cost.model import load_model
from foretell.forecasting.communication_copies import with_copies
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.plans import Plan
from tests.parallel.models import graph

H100 = device("h100-sxm")


def copied(plan: Plan) -> tuple[float, int]:
    """Seconds of copies that a step adds, and the bytes they read and write."""
    role = parallelize(graph("llama"), plan).roles[0]
    alone = [0.0] * len(role.graph.ops)
    added = with_copies(role, alone, load_model(), H100)
    moved = sum(2 * (c.copied_in + c.copied_out) * role.runs(c) for c in role.collectives)
    return sum(s * op.times for s, op in zip(added, role.graph.ops, strict=True)), moved


@pytest.mark.parametrize(
    "plan", [Plan(dp=4), Plan(dp=4, grad_accumulation=3), Plan(dp=4, zero=1), Plan(dp=4, zero=3, grad_accumulation=3)]
)  # fmt: skip
def test_copies_take_at_least_what_the_memory_needs_however_often_they_run(plan: Plan) -> None:
    seconds, moved = copied(plan)
    assert moved > 0
    assert moved / H100.bandwidth <= seconds <= 1.5 * moved / H100.bandwidth


def test_ddp_copies_gradients_into_buckets_and_back_and_fsdp_parameters_out() -> None:
    gradients = sum(s.nbytes for s in graph("llama").storages if s.role == "gradient")
    assert copied(Plan(dp=4))[1] == 4 * gradients
    assert copied(Plan(dp=4, zero=3))[1] > copied(Plan(dp=4, zero=2))[1] > 0
    role = parallelize(graph("llama"), Plan(tp=2)).roles[0]
    assert not any(c.copied_in or c.copied_out for c in role.collectives)


def test_copies_are_part_of_the_step() -> None:
    forecast = foretell.forecast(graph("llama"), on="2xh100-sxm", plan="dp=2", model="roofline")
    alone = foretell.forecast(graph("llama"), on="h100-sxm", model="roofline")
    assert forecast.device_time.seconds > alone.device_time.seconds
