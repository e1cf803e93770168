"""ZeRO 1 as trainers do it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.parallel.data import usual_bucket
from foretell.parallel.parameters import parameters
from foretell.parallel.rewrite import first_of, last_of
from foretell.plans import DDP_BUCKET_BYTES, Plan
from foretell.program import Group

from .models import graph

_FP32_SUMS = "parameters:bf16/gradients:fp32/master:fp32"
_MASTER = "parameters:bf16/master:fp32"


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


def test_internevo_refuses_what_it_does_not_do() -> None:
    with pytest.raises(PlanError, match="sharding=internevo shares"):
        parallelize(graph("llama"), Plan.parse("dp=8,zero=1,overlap_gather=true,sharding=internevo"))


def test_internevo_reduces_whole_and_owners_broadcast() -> None:
    """It was taken for scattering and gathering parts, which hid that a thousand ranks wait for hundreds of broadcasts."""
    step = graph("llama", precision="bf16")
    role = parallelize(step, Plan(dp=512, zero=1, sharding="internevo", bucket_bytes=4096)).roles[0]
    reduced = [c for c in role.collectives if c.kind == "all-reduce"]
    owned = [c for c in role.collectives if c.kind == "broadcast"]
    assert len(reduced) + len(owned) == len(role.collectives)
    assert sum(c.nbytes for c in owned) == sum(c.nbytes for c in reduced), "every parameter, in 16 bits as its gradient"
    trained = [p for p in parameters(step) if p.gradient is not None]
    assert len(owned) == len(trained) < 512, "no rank has a part of a parameter"
    of_four = parallelize(step, Plan(dp=4, zero=1, sharding="internevo", bucket_bytes=4096)).roles[0].collectives
    shares = [c.nbytes for c in of_four if c.kind == "broadcast"]
    assert len(shares) == 4
    assert sum(shares) == sum(c.nbytes for c in owned)


def test_copies_of_internevos_state_are_reduced_among_all() -> None:
    step = graph("llama", precision="bf16")
    role = parallelize(step, Plan(dp=8, zero=1, hybrid_shard=2, sharding="internevo")).roles[0]
    sizes = {c.kind: (c.group.size, c.group.count) for c in role.collectives}
    assert sizes == {"all-reduce": (8, 1), "broadcast": (2, 4)}


def test_broadcasts_of_owners_cost_more_ranks_more() -> None:
    step = graph("llama", precision="bf16")

    def exposed(ranks: int, sharding: str) -> float:
        plan = f"dp={ranks},zero=1,sharding={sharding}"
        return forecast(step, on=f"{ranks // 8}x8xa100-80g-sxm", plan=plan).exposed_communication.seconds

    assert exposed(512, "internevo") - exposed(512, "torch") > exposed(16, "internevo") - exposed(16, "torch")


@pytest.mark.parametrize("plan", ["dp=8", "dp=4,pp=2,grad_accumulation=4"])
def test_deepspeed_reduces_fp32_sums_after_the_backward_pass(plan: str) -> None:
    """Its `BF16_Optimizer`, which its pipelines run: sums were taken for scattered beside the backward pass."""
    step = graph("llama", precision=_FP32_SUMS)
    for role in parallelize(step, Plan.parse(f"{plan},zero=1,sharding=deepspeed,bucket_bytes=65536")).roles:
        of_replicas = [c for c in role.collectives if c.lane == "dp"]
        reduced, gathered = of_replicas[:-1], of_replicas[-1]
        assert {c.kind for c in reduced} == {"all-reduce"}
        assert {c.starts_after for c in reduced} == {last_of(role.graph, "backward")}
        assert gathered.kind == "all-gather"
        assert 2 * gathered.nbytes == sum(c.nbytes for c in reduced)
    scattered = parallelize(graph("llama", precision="bf16"), Plan.parse("dp=8,zero=1,sharding=deepspeed"))
    assert "reduce-scatter" in {c.kind for c in scattered.roles[0].collectives}, "sums in 16 bits go another way"


def test_internevo_updates_one_flat_tensor() -> None:
    """fp32 gradients and roots were many small blocks, which found room among gradients that were freed."""
    step = graph("llama", precision=_MASTER)
    listed, flat = (
        parallelize(step, Plan(dp=2, zero=1, sharding=sharding)).roles[0].graph for sharding in ("torch", "internevo")
    )
    made = [
        [s.nbytes for s in g.storages if s.role == "temporary" and s.born >= first_of(g, "optimizer") and s.nbytes > 8]
        for g in (listed, flat)
    ]
    assert len(made[1]) == 3 < len(made[0]), "gradients in 16 and in 32 bits, and roots"
    assert max(made[1]) == pytest.approx(sum(made[0]) / 2, rel=0.01)


def test_megatrons_buckets_grow_with_the_ranks_that_share_one() -> None:
    """They were DDP's 25 MiB, so that a thousand ranks waited for hundreds of rings."""
    step = graph("llama", precision=_FP32_SUMS)
    run = replace(step, facts=replace(step.facts, trainer="megatron"))
    few, many = (usual_bucket(run, Plan(dp=dp), Group(size=dp, stride=1, count=1)) for dp in (8, 1024))
    assert (few, many) == (40_000_000 * 4, 1_024_000_000 * 4)
    assert usual_bucket(step, Plan(dp=1024), Group(size=1024, stride=1, count=1)) == DDP_BUCKET_BYTES
    assert usual_bucket(run, Plan(dp=8, bucket_bytes=4096), Group(size=8, stride=1, count=1)) == 4096
    kinds = [c.kind for c in parallelize(run, Plan(dp=8, zero=1)).roles[0].collectives]
    assert kinds == ["reduce-scatter", "all-gather"], "a small model is one bucket"
