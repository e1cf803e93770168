"""ZeRO 1 as trainers do it."""

from __future__ import annotations

import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.parallel.rewrite import first_of, last_of
from foretell.plans import Plan

from .models import graph

_FP32_SUMS = "parameters:bf16/gradients:fp32/master:fp32"


def test_nanotron_reduces_fp32_sums_whole_and_after_the_backward_pass() -> None:
    """It was taken for scattering in buckets beside the backward pass, so that plans with ZeRO 1 came out slower than without."""
    step = graph("llama", precision=_FP32_SUMS)
    role = parallelize(step, Plan(dp=8, zero=1, sharding="nanotron", bucket_bytes=4096)).roles[0]
    reduced, gathered = role.collectives
    gradients = sum(s.nbytes for s in step.storages if s.role == "gradient")
    assert (reduced.kind, gathered.kind) == ("all-reduce", "all-gather")
    assert reduced.starts_after == last_of(role.graph, "backward")
    assert reduced.waited_for_by == first_of(role.graph, "optimizer")
    assert reduced.nbytes == 2 * gathered.nbytes
    assert reduced.nbytes <= gradients
    sharded = parallelize(step, Plan(dp=8, zero=1)).roles[0].graph
    assert [s.nbytes for s in role.graph.storages] == [s.nbytes for s in sharded.storages], (
        "the same state on each rank"
    )


def test_nanotron_reduces_other_gradients_as_ddp_does() -> None:
    step = graph("llama", precision="bf16")
    sharded = parallelize(step, Plan(dp=8, zero=1, sharding="nanotron", bucket_bytes=4096)).roles[0]
    replicated = parallelize(step, Plan(dp=8, bucket_bytes=4096)).roles[0]
    *reduced, gathered = sharded.collectives
    assert [(c.kind, c.nbytes, c.starts_after) for c in reduced] == [
        (c.kind, c.nbytes, c.starts_after) for c in replicated.collectives
    ]
    assert gathered.nbytes == sum(c.nbytes for c in reduced)


def test_a_plan_with_its_sharding_is_run_by_nanotron() -> None:
    found = forecast(graph("llama", precision=_FP32_SUMS), on="8xh100-sxm", plan="dp=8,zero=1,sharding=nanotron")
    assert any("nanotron" in caveat.text for caveat in found.caveats if caveat.code == "trainer-added")


@pytest.mark.parametrize("plan", ["dp=8,zero=3", "dp=8,zero=1,hybrid_shard=2", "dp=8,zero=1,overlap_gather=true"])
def test_what_nanotron_does_not_do_is_refused(plan: str) -> None:
    with pytest.raises(PlanError, match="sharding=nanotron shares"):
        parallelize(graph("llama"), Plan.parse(f"{plan},sharding=nanotron"))
