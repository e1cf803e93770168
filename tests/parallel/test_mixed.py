"""Mixed clusters: the slowest rank sets the pace; physics of a whole forecast."""

from __future__ import annotations

import pytest

from foretell import Cluster, forecast
from foretell.errors import PlanError

from .models import graph


def seconds(on: str, plan: str) -> float:
    return forecast(graph("llama"), on=on, plan=plan, model="roofline").device_time.seconds


def test_replicas_wait_for_the_slowest() -> None:
    mixed, slow, fast = (seconds(on, "dp=4") for on in ("2xh100-sxm+2xt4@eth-100g", "4xt4", "4xh100-sxm"))
    assert mixed == pytest.approx(slow)
    assert mixed > fast


def test_stages_are_priced_where_they_lie() -> None:
    plan = "pp=2,grad_accumulation=4"
    mixed = forecast(graph("llama"), on="1xh100-sxm+1xt4@eth-100g", plan=plan, model="roofline")
    fast = forecast(graph("llama"), on="2xh100-sxm", plan=plan, model="roofline")
    slow = forecast(graph("llama"), on="2xt4", plan=plan, model="roofline")
    assert fast.device_time.seconds < mixed.device_time.seconds <= slow.device_time.seconds
    assert mixed.memory.capacity == min(d.usable_bytes for d in Cluster.parse("1xh100-sxm+1xt4@eth-100g").device_kinds)


@pytest.mark.parametrize("plan", ["dp=4", "dp=4,zero=3", "tp=2,dp=2", "cp=2,dp=2", "pp=2,dp=2,grad_accumulation=4"])
def test_more_bandwidth_is_never_slower_and_communication_is_never_free(plan: str) -> None:
    answers = [
        forecast(graph("llama"), on=f"4x1xh100-sxm@{link}", plan=plan, model="roofline")
        for link in ("eth-10g", "ib-400g")
    ]
    thin, wide = answers
    assert wide.step_time.seconds <= thin.step_time.seconds + 1e-9
    assert wide.exposed_communication.seconds <= thin.exposed_communication.seconds + 1e-9
    for answer in answers:
        assert answer.network.sent_bytes == answer.network.received_bytes > 0
        assert answer.step_time.seconds + 1e-9 >= answer.device_time.seconds
        for use in (answer.resources.device, answer.resources.memory_bandwidth):
            assert use.idle_seconds + use.active_seconds == pytest.approx(answer.step_time.seconds)
            assert 0 <= use.peak <= 1


def test_a_large_cluster_costs_what_a_small_one_does() -> None:
    plan = "dp=128,tp=2,pp=3,zero=1,grad_accumulation=6"
    answer = forecast(graph("llama"), on="96x8xh100-sxm", plan=plan, model="roofline")
    assert sum(r.count for r in answer.memory.ranks) == 768


def test_a_trace_has_every_kind_of_rank() -> None:
    mixed = forecast(graph("llama"), on="2xh100-sxm+2xt4@eth-100g", plan="dp=4", model="roofline")
    assert {span.role for span in mixed.timeline.spans} == {"dp", "dp on h100-sxm"}
    assert {span.role for span in mixed.timeline.critical_path()} == {"dp"}
    stages = forecast(graph("llama"), on="4xh100-sxm", plan="pp=2,dp=2,grad_accumulation=4", model="roofline")
    assert {span.role for span in stages.timeline.spans} == {"stage 0", "stage 1"}


@pytest.mark.parametrize(
    ("on", "plan", "said"),
    [
        ("8xh100-sxm", "dp=8,hybrid_shard=4", "zero=0 splits nothing"),
        ("8xh100-sxm", "dp=8,zero=3,hybrid_shard=0", "hybrid_shard must be a whole number of at least 1, got 0"),
        ("8xh100-sxm", "dp=8,virtual_stages=2", "pp=1 is none"),
        ("8xh100-sxm", "dp=8,grad_accumulation=0", "grad_accumulation must be a whole number of at least 1, got 0"),
        ("2x4xh100-sxm", "dp=8,data_parallel=dp", "has 2 nodes and a process runs on one"),
    ],
)
def test_settings_that_would_do_nothing_or_cannot_be_are_refused(on: str, plan: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        forecast(graph("llama"), on=on, plan=plan, model="roofline")
