"""Precision, plan and cluster reach every method, as the same numbers."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from foretell.hardware import Cluster
from foretell.methods.conformance import made_up, perceptron
from foretell.methods.dnnabacus import _row as abacus_row
from foretell.methods.ernest import workload
from foretell.methods.predictddl.features import table
from foretell.methods.protocol import STEP_TIME, Query
from foretell.methods.surroundings import surroundings
from foretell.plans import Plan
from foretell.precision import Precision

BASE = Plan(dp=4, tp=2, pp=2, cp=2, zero=1)
OTHERS = {
    "dp": 8, "tp": 4, "pp": 4, "cp": 4, "ulysses": 2, "cp_gather": True, "ep": 2,
    "zero": 3, "hybrid_shard": 2, "sequence_parallel": True, "overlap_tp": True,
    "schedule": "gpipe", "virtual_stages": 2, "stages": "3-1", "checkpointing": "full", "grad_accumulation": 4,
    "bucket_bytes": 2**20, "overlap": False, "servers": 2, "asynchronous": True, "data_parallel": "dp",
    "sharding": "deepspeed", "offload": "optimizer", "etp": 1, "dispatch": "deepep", "overlap_gather": True,
    "overlap_ep": True, "delay_wgrad": True,
}  # fmt: skip


def query(plan: Plan = BASE, cluster: str = "4x8xh100-sxm", precision: str = "bf16") -> Query:
    graph = replace(perceptron(64, layers=2, batch=8), precision=Precision.parse(precision))
    return Query(architecture="net", plan=plan, cluster=Cluster.parse(cluster), graph=graph, batch=64.0)


def seen(asked: Query) -> list[object]:
    """By each method that is given a plan at all."""
    return [surroundings(asked), abacus_row(asked), table([asked]).tolist(), table([asked], work=False).tolist()]


@pytest.mark.parametrize("name", [f.name for f in fields(Plan)])
def test_no_setting_of_a_plan_is_out_of_sight(name: str) -> None:
    if name == "offload_to":
        before, after = replace(BASE, offload="optimizer"), replace(BASE, offload="optimizer", offload_to="nvme")
    elif name in ("etp", "dispatch"):
        before = replace(BASE, sequence_parallel=True, ep=2)
        after = replace(before, **{name: OTHERS[name]})  # type: ignore[arg-type]
    elif name == "live_parameters":
        before = replace(BASE, zero=3, sharding="deepspeed")
        after = replace(before, live_parameters=10**8)
    else:
        before, after = BASE, replace(BASE, **{name: OTHERS[name]})  # type: ignore[arg-type]
    for one, other in zip(seen(query(before)), seen(query(after)), strict=True):
        assert one != other


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp-fp16", "fp16"])
def test_precision_is_in_sight(precision: str) -> None:
    for one, other in zip(seen(query()), seen(query(precision=Precision.parse(precision))), strict=True):
        assert one != other


@pytest.mark.parametrize("cluster", ["8xh100-sxm", "4x8xh200", "4x8xh100-sxm@eth-100g", "32xh100-sxm@pcie-4,ib-400g"])
def test_the_cluster_is_in_sight(cluster: str) -> None:
    for one, other in zip(seen(query()), seen(query(cluster=cluster)), strict=True):
        assert one != other


def test_every_query_has_the_same_names() -> None:
    asked = [*(e.query for e in made_up()), query(), replace(query(), graph=None)]
    assert len({tuple(surroundings(q)) for q in asked}) == 1


def test_another_plan_or_precision_is_another_workload_to_ernest() -> None:
    known = workload(query(), STEP_TIME)
    assert workload(query(replace(BASE, dp=8), "8x8xh100-sxm"), STEP_TIME) == known  # only more of the same
    assert workload(query(replace(BASE, tp=4)), STEP_TIME) != known
    assert workload(query(replace(BASE, zero=3)), STEP_TIME) != known
    assert workload(query(precision="fp32"), STEP_TIME) != known
    accumulating = replace(BASE, grad_accumulation=2)
    twice = replace(query(replace(BASE, grad_accumulation=4)), batch=128.0)
    assert workload(query(accumulating), STEP_TIME) == workload(twice, STEP_TIME)  # micro-batches of one size
    assert workload(query(replace(BASE, grad_accumulation=4)), STEP_TIME) != workload(twice, STEP_TIME)
