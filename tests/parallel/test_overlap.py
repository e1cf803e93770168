"""Communication runs beside compute where a plan says so, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.program import Role
from foretell.simulate.memory import replay
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations, simulate

from .models import graph


def seconds(plan: Plan, communication: float = 1.0) -> float:
    """A step whose ops take a second each and whose collectives take as long as they have bytes, in all 100."""
    role = parallelize(graph("llama"), plan).roles[0]
    count = len(role.graph.ops)
    return simulate(role, Durations(
        device=np.ones(count), host=np.zeros(count), waits=np.zeros(count, dtype=bool),
        collectives=[communication * s for s in shares(role)],
    )).period  # fmt: skip


def shares(role: Role) -> list[float]:
    whole = sum(c.nbytes for c in role.collectives)
    return [100.0 * c.nbytes / whole for c in role.collectives]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_steps", [1, 4])
def test_without_overlap_communication_adds_to_the_step(zero: int, micro_steps: int) -> None:
    common = {"dp": 4, "zero": zero, "grad_accumulation": micro_steps, "bucket_bytes": 2**14}
    plans = [Plan(overlap=overlap, **common) for overlap in (True, False)]
    beside, after = (seconds(plan) for plan in plans)
    silent = seconds(plans[0], communication=0.0)
    role = parallelize(graph("llama"), plans[1]).roles[0]
    each = (s * role.runs(c) for s, c in zip(shares(role), role.collectives, strict=True))
    assert after == pytest.approx(silent + sum(each), rel=1e-6)
    assert silent <= beside < after - 10


def test_without_overlap_a_block_is_gathered_when_it_runs_and_only_then() -> None:
    ahead, at_need = (
        parallelize(graph("llama"), Plan(dp=4, zero=3, overlap=overlap)).roles[0].collectives
        for overlap in (True, False)
    )
    assert sum(c.nbytes for c in at_need) <= sum(c.nbytes for c in ahead)
    assert all(c.waited_for_by == c.starts_after + 1 for c in at_need)


@pytest.mark.parametrize("micro_steps", [1, 4])
def test_updated_parameters_are_gathered_while_the_next_pass_runs(micro_steps: int) -> None:
    late, early = (
        Plan(dp=4, zero=1, overlap_gather=way, grad_accumulation=micro_steps, bucket_bytes=2**14)
        for way in (False, True)
    )
    gathered = [
        sum(c.nbytes for c in parallelize(graph("llama"), plan).roles[0].collectives if c.kind == "all-gather")
        for plan in (late, early)
    ]
    assert gathered[0] == gathered[1]
    assert seconds(early) < seconds(late) - 10
    assert Plan.parse(str(early)) == early


@pytest.mark.parametrize("zero", [0, 3])
def test_only_zero_1_gathers_what_it_updated(zero: int) -> None:
    with pytest.raises(PlanError, match="Set zero=1"):
        parallelize(graph("llama"), Plan(dp=4, zero=zero, overlap_gather=True))


def test_stages_gather_what_they_updated_too() -> None:
    program = parallelize(graph("llama"), Plan(dp=2, pp=3, zero=1, overlap_gather=True, grad_accumulation=3))
    assert all(any(c.kind == "all-gather" for c in role.collectives) for role in program.roles)


@pytest.mark.parametrize("sequence", [False, True])
def test_megatron_makes_gradients_of_weights_while_ranks_add_up_those_of_inputs(sequence: bool) -> None:
    roles = [
        parallelize(graph("llama", kernels=kernels), Plan(tp=2, sequence_parallel=sequence)).roles[0]
        for kernels in ("torch", "megatron")
    ]
    kind = "reduce-scatter" if sequence else "all-reduce"
    meanwhile = []
    for role in roles:
        ops = role.graph.ops
        sums = [
            c
            for c in role.collectives
            if c.kind == kind and ops[c.starts_after].phase == "backward" and "norm" in ops[c.waited_for_by].module
        ]
        between = [ops[c.starts_after + 1 : c.waited_for_by] for c in sums]
        meanwhile.append([sum(op.signature.name == "aten.mm" for op in some) for some in between])
    blocks = 3
    assert sum(meanwhile[0]) == 0
    assert sorted(meanwhile[1])[-2 * blocks :] == [2] * blocks + [3] * blocks  # gate and up; queries, keys and values


def test_what_joined_layers_give_back_is_summed_in_their_product() -> None:
    """Queries, keys and values are one layer of Megatron's, gate and up another."""
    adds, flops, memory = [], [], []
    for kernels in ("torch", "megatron"):
        role = parallelize(graph("llama", kernels=kernels), Plan()).roles[0]
        backward = [op for op in role.graph.ops if op.phase == "backward"]
        adds.append(sum(op.signature.name == "aten.add" for op in backward))
        flops.append(total_flops(role.graph))
        memory.append(replay(role.graph).peak_allocated)
        assert all(s.born <= s.freed for s in role.graph.storages)
    blocks, each = 3, 3  # one for gate and up, two for queries, keys and values
    assert adds[0] - adds[1] == blocks * each
    assert flops[0] == flops[1]
    assert memory[1] <= memory[0]


def test_stages_gather_all_their_chunks_while_the_first_passes_run() -> None:
    """What the last micro-batch of a chunk waits for was gathered when the step began."""
    plan = Plan(dp=2, pp=3, zero=2, grad_accumulation=6)
    program = parallelize(graph("llama"), plan)
    for role in program.roles:
        gathers = [c for c in role.collectives if c.kind == "all-gather"]
        assert {c.issued_by for c in gathers} == {0}


@pytest.mark.parametrize("setting", [{"zero": 2}, {"zero": 1, "overlap_gather": True}])
def test_stages_wait_for_what_they_gather_once_and_all_at_the_same_time(setting: dict[str, Any]) -> None:
    program = parallelize(graph("llama"), Plan(dp=2, pp=3, grad_accumulation=6, **setting))
    found = []
    for seconds_each in (0.0, 40.0):
        durations = [
            Durations(
                device=np.ones(len(role.graph.ops)),
                host=np.zeros(len(role.graph.ops)),
                waits=np.zeros(len(role.graph.ops), dtype=bool),
                collectives=[seconds_each if c.kind == "all-gather" else 0.0 for c in role.collectives],
            )
            for role in program.roles
        ]
        found.append(simulate_pipeline(program, durations, [0.0] * 2).makespan)
    most = 40.0 * max(sum(c.kind == "all-gather" for c in role.collectives) for role in program.roles)
    assert found[0] < found[1] <= found[0] + most
