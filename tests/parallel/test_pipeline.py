"""Pipelines: stages hold the whole step between them, schedules keep to their textbook bubbles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell import forecast
from foretell.capture import capture
from foretell.cost.flops import total_flops
from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.parallel import parallelize, schedules
from foretell.parallel.accumulate import steady_micro_step
from foretell.parallel.schedules import most_in_flight, stage_actions, stages_of_chunks
from foretell.plans import Plan
from foretell.program import Pipeline, Program, Role
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations

from .models import FAMILIES, Llama, graph, workload

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def idle(program: Program, device: float = 1.0) -> list[Durations]:
    return [
        Durations(
            device=np.array([0.0 if op.phase == "optimizer" else device for op in role.graph.ops]),
            host=np.zeros(len(role.graph.ops)), waits=np.zeros(len(role.graph.ops), dtype=bool),
            collectives=[0.0] * len(role.collectives),
        )
        for role in program.roles
    ]  # fmt: skip


def equal_stages(stages: int, micro_batches: int, schedule: str, chunks: int = 1) -> tuple[Program, list[Durations]]:
    """A forward pass of 1 and a backward pass of 2 on every chunk; 1 of the 2 can be put off."""
    plan = Plan(pp=stages, schedule=schedule, virtual_stages=chunks)
    empty = Graph(name="g", ops=(), tensors=(), storages=())
    op = graph("cnn").ops[0]
    phases = ["forward", "backward", "weights"]
    ranges, roles = [], []
    for stage in range(stages):
        own = [c * stages + stage for c in range(chunks)]
        kinds = [(phase, c) for phase in phases for c in own]
        ranges.append({kind: (i, i + 1) for i, kind in enumerate(kinds)})
        roles.append(Role(name=f"stage {stage}", count=1, graph=replace(empty, ops=(op,) * len(kinds))))
    pipeline = Pipeline(
        micro_batches=micro_batches, stage_of=stages_of_chunks(plan), actions=stage_actions(plan, micro_batches, training=True),
        ranges=tuple(ranges), hand_over=(),
    )  # fmt: skip
    program = Program(roles=tuple(roles), ranks=stages, whole=empty, pipeline=pipeline)
    backward = 1.0 if schedule == "zero-bubble" else 2.0
    seconds = [1.0 / chunks] * chunks + [backward / chunks] * chunks + [1.0 / chunks] * chunks
    count = len(seconds)
    times = Durations(device=np.array(seconds), host=np.zeros(count), waits=np.zeros(count, dtype=bool), collectives=[])
    return program, [times] * stages


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12))
def test_the_bubble_is_what_the_papers_say(stages: int, rounds: int) -> None:
    micro_batches = stages * rounds
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        program, durations = equal_stages(stages, micro_batches, schedule, chunks)
        ran = simulate_pipeline(program, durations, [0.0] * (stages * chunks - 1))
        assert ran.waiting == pytest.approx((stages - 1) * 3 / chunks), schedule
    program, durations = equal_stages(stages, micro_batches, "zero-bubble")
    assert simulate_pipeline(program, durations, [0.0] * (stages - 1)).waiting == pytest.approx(stages - 1)
    if rounds > 1:
        program, durations = equal_stages(stages, micro_batches, "zero-bubble", 2)
        assert simulate_pipeline(program, durations, [0.0] * (2 * stages - 1)).waiting <= (stages - 1) * 3 / 2


@given(st.integers(1, 6), st.integers(1, 24), st.sampled_from(SCHEDULES))
def test_every_stage_takes_every_micro_batch_forward_and_back(stages: int, micro_batches: int, schedule: str) -> None:
    micro_batches = micro_batches * stages if schedule == "interleaved" else micro_batches
    for actions in stage_actions(Plan(pp=stages, schedule=schedule), micro_batches, training=True):
        for phase in ("forward", "backward"):
            assert sorted(a.micro_batch for a in actions if a.phase == phase) == list(range(micro_batches))
        assert len(set(actions)) == len(actions)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("host", [0.0, 0.9, 5.0])
def test_rounds_that_are_left_out_take_what_they_take(
    schedule: str, chunks: int, host: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stages and chunks that are uneven, links that take time, and a host that is ahead, or is not."""
    if chunks > 1 and schedule not in ("interleaved", "zero-bubble"):
        return
    plan = Plan(pp=3, schedule=schedule, virtual_stages=chunks, grad_accumulation=96)
    step = capture(replace(workload("llama"), model=lambda: Llama(layers=7)))
    found = []
    for passes in (10_000, 1):
        monkeypatch.setattr(schedules, "_PASSES", passes)
        program = parallelize(step, plan)
        assert program.pipeline is not None
        assert (program.pipeline.shorter is None) == (passes > 1)
        durations = [
            replace(d, device=d.device * (1 + stage / 7), host=np.full(len(d.host), host))
            for stage, d in enumerate(idle(program))
        ]
        ran = simulate_pipeline(program, durations, [5.0] * (program.pipeline.chunks - 1))
        memory = [role.persistent["activation"] for role in program.roles]
        found.append((ran.makespan, ran.waiting, ran.computing, ran.communicating, *memory))
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_a_host_that_falls_behind_slowly_sets_the_pace_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for passes in (10_000, 1):
        monkeypatch.setattr(schedules, "_PASSES", passes)
        program = parallelize(graph("llama"), Plan(pp=3, grad_accumulation=900))
        durations = [replace(d, host=np.full(len(d.host), 1.004)) for d in idle(program)]
        found.append(simulate_pipeline(program, durations, [0.0] * 2).makespan)
    assert found[1] == pytest.approx(found[0], rel=0.005)


def test_any_number_of_micro_batches_is_timed() -> None:
    """Megatron's own example for 96 devices has more than a hundred thousand passes."""
    plan = "dp=1,pp=3,grad_accumulation=60000"
    many, few = (forecast(graph("llama"), "3xh100-sxm", p).step_time.seconds for p in (plan, plan[:-2]))
    assert many == pytest.approx(100 * few, rel=0.02)


def test_one_forward_one_backward_keeps_as_many_micro_batches_as_stages_follow() -> None:
    for schedule, in_flight in {"1f1b": [4, 3, 2, 1], "gpipe": [16] * 4}.items():
        stages = stage_actions(Plan(pp=4, schedule=schedule), 16, training=True)
        assert [sum(most_in_flight(actions).values()) for actions in stages] == in_flight


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("family", ["vit", "llama", "cnn"])
def test_stages_hold_the_whole_step_between_them(family: str, schedule: str) -> None:
    plan = Plan(pp=3, schedule=schedule, grad_accumulation=6)
    program = parallelize(graph(family), plan)
    step = steady_micro_step(program.whole)
    own = [replace(role.graph, ops=tuple(replace(op, times=1) for op in role.graph.ops)) for role in program.roles]
    assert sum(map(total_flops, own)) == total_flops(step)
    for purpose in ("parameter", "gradient", "optimizer"):
        assert sum(g.bytes_of(purpose) for g in own) == pytest.approx(step.bytes_of(purpose), rel=0.01)
    passing = [op.target for op in step.ops if op.phase != "optimizer"]
    assert sorted(op.target for g in own for op in g.ops if op.phase != "optimizer") == sorted(passing)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 50), st.floats(0, 50), st.sampled_from(SCHEDULES))
def test_slower_links_never_make_a_faster_step(fast: float, more: float, schedule: str) -> None:
    program = parallelize(graph("llama"), Plan(pp=3, schedule=schedule, grad_accumulation=6))
    durations = idle(program)
    busiest = max(sum(d.device) for d in durations) * 6
    free, quick, slow = (simulate_pipeline(program, durations, [s] * 2).makespan for s in (0.0, fast, fast + more))
    assert busiest <= free <= quick <= slow
    path = simulate_pipeline(program, durations, [0.0] * 2).critical_path()
    assert sum(span.duration for span in path) <= free + 1e-6


def test_the_first_and_last_stage_hand_over_the_same() -> None:
    pipeline = parallelize(graph("llama"), Plan(pp=3, grad_accumulation=3)).pipeline
    assert pipeline is not None
    assert [c.nbytes for c in pipeline.hand_over] == [2 * 16 * 32 * 4] * 2


def test_too_many_stages_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(PlanError, match=r"pp=4 × virtual_stages=1 = 4 chunks, but 'llama' has 3 repeated blocks"):
        parallelize(graph("llama"), Plan(pp=4, grad_accumulation=4))
    with pytest.raises(PlanError, match=r"does not divide into 2 equal ones\. Choose 6 or 8"):
        parallelize(graph("llama"), Plan(pp=3, schedule="interleaved", grad_accumulation=7))
    with pytest.raises(PlanError, match="needs schedule=interleaved or zero-bubble"):
        parallelize(graph("llama"), Plan(pp=3, virtual_stages=2, grad_accumulation=4))


def test_all_together() -> None:
    plan = "dp=2,tp=2,pp=3,zero=1,grad_accumulation=6"
    ran = forecast(graph("llama"), on="12xh100-sxm", plan=plan, model="roofline")
    assert ran.bubble.seconds > 0
    assert [(r.role, r.count) for r in ran.memory.ranks] == [("stage 0", 4), ("stage 1", 4), ("stage 2", 4)]
    assert ran.step_time.seconds >= ran.device_time.seconds
    assert ran.network.sent_bytes == ran.network.received_bytes > 0
    assert {span.role for span in ran.timeline.spans} == {"stage 0", "stage 1", "stage 2"}


@pytest.mark.parametrize("stages", ["1-2", "2-1", "3-0", "0-3"])
def test_a_plan_can_say_its_stages(stages: str) -> None:
    plan = Plan.parse(f"dp=1,pp=2,stages={stages}")
    program = parallelize(graph("llama"), plan)
    first, last = ([op.module for op in role.graph.ops if op.phase == "forward"] for role in program.roles)
    own = [len({".".join(m.split(".")[:2]) for m in modules if m.startswith("layers.")}) for modules in (first, last)]
    assert own == list(map(int, stages.split("-")))
    assert "embedding" in first
    assert "head" in last
    assert str(plan) == f"dp=1,pp=2,stages={stages}"
    balanced = parallelize(graph("llama"), Plan(pp=2))
    assert sum(total_flops(r.graph) for r in program.roles) == sum(total_flops(r.graph) for r in balanced.roles)
    assert forecast(graph("llama"), "2xh100-sxm", plan).step_time.seconds > 0


def test_an_uneven_cut_takes_longer() -> None:
    even, odd = (
        forecast(graph("vit"), "3xh100-sxm", Plan(pp=3, stages=cut, grad_accumulation=8))
        for cut in ("1-1-1", (0, 1, 2))
    )
    assert odd.step_time.seconds > 1.1 * even.step_time.seconds


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("pp=2,stages=1-1-1", r"cuts 3 stages, but pp × virtual_stages = 2 × 1 = 2"),
        ("pp=2,stages=1-1", r"cuts 2 blocks into stages, but 'llama' has 3 repeated blocks"),
        ("pp=3,stages=1-0-2", "Only the first stage"),
        ("pp=2,stages=1-x", "blocks of each stage"),
        ("stages=3", "pp=1 is none"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(plan: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parallelize(graph("llama"), Plan.parse(plan))


class Tied(Llama):
    def __init__(self) -> None:
        super().__init__(vocabulary=112)
        self.head.weight = self.embedding.weight


def test_a_tied_parameter_lies_on_each_stage_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "tied", (Tied, *FAMILIES["llama"][1:]))
    program = parallelize(graph("tied"), Plan(pp=3, grad_accumulation=3))
    table = 112 * 32 * 4
    for role, uses in zip(program.roles, (True, False, True), strict=True):
        held = {what: [s.nbytes for s in role.graph.storages if s.role == what] for what in ("gradient", "optimizer")}
        assert (held["gradient"].count(table), held["optimizer"].count(table)) == ((1, 2) if uses else (0, 0))
        assert [(c.kind, c.nbytes, c.group.size, c.group.stride) for c in role.collectives if c.lane == "tied"] == (
            [("all-reduce", table, 2, 2)] if uses else []
        )


@pytest.mark.parametrize("kernels", ["torch", "megatron"])
def test_megatron_keeps_nothing_of_what_a_stage_hands_over(kernels: str) -> None:
    """Its receiver does, from then on to its own backward pass."""
    program = parallelize(graph("llama", kernels=kernels), Plan(pp=3, grad_accumulation=6))
    assert program.pipeline is not None
    handed, kept = 2 * 16 * 32 * 4, []
    for role, ranges in zip(program.roles, program.pipeline.ranges, strict=True):
        first, last = next(where for (phase, _), where in ranges.items() if phase == "forward")
        lives = [s for s in role.graph.storages if s.role == "activation" and first <= s.born < last]
        kept.append(sum(s.nbytes for s in lives if s.freed >= last))
    more = 0 if kernels == "megatron" else handed
    waiting = [role.persistent["activation"] for role in program.roles]
    assert waiting == [2 * (kept[0] + more), kept[1] + more, 0]
