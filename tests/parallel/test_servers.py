"""Parameter servers and single-process data parallelism."""

from __future__ import annotations

import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.plans import Plan

from .models import graph


def step(plan: str, on: str) -> float:
    return forecast(graph("llama"), on=on, plan=plan, model="roofline").step_time.seconds


def test_workers_push_what_they_pull() -> None:
    role = parallelize(graph("llama"), Plan(dp=4, servers=2)).roles[0]
    pushed = sum(c.nbytes for c in role.collectives if c.name.startswith("push"))
    assert pushed == graph("llama").bytes_of("gradient") == next(c.nbytes for c in role.collectives if "pull" in c.name)
    assert role.graph.bytes_of("optimizer") == 0
    assert all(op.phase != "optimizer" for op in role.graph.ops)


def test_more_servers_are_faster_and_waiting_for_nobody_is_not_slower() -> None:
    on = "4x1xt4@eth-10g"
    answers = [forecast(graph("llama"), on=on, plan=f"dp=4,servers={n}", model="roofline") for n in (1, 2, 4)]
    one, two, four = (answer.resources.network_tx.active_seconds for answer in answers)
    assert one == pytest.approx(2 * two) == pytest.approx(4 * four)
    assert step("dp=4,servers=1,asynchronous=true", on) <= answers[0].step_time.seconds * (1 + 1e-9)  # sums may round


def test_one_process_for_all_devices_is_slower_than_one_each() -> None:
    assert step("dp=4,data_parallel=dp", "4xt4") > step("dp=4", "4xt4")
    role = parallelize(graph("llama"), Plan(dp=4, data_parallel="dp")).roles[0]
    assert [c.name for c in role.collectives] == ["copy the model", "add up gradients"]
    assert role.issues_for == 4


def test_what_does_not_go_together_is_refused() -> None:
    for plan in (Plan(dp=2, tp=2, servers=1), Plan(dp=2, zero=1, servers=1), Plan(dp=2, tp=2, data_parallel="dp")):
        with pytest.raises(PlanError, match="would split"):
            parallelize(graph("llama"), plan)
    with pytest.raises(PlanError, match="needs parameter servers"):
        parallelize(graph("llama"), Plan(dp=2, asynchronous=True))
