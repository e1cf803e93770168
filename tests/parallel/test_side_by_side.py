"""What experts' ranks send is hidden behind another micro-batch: in pairs on one stage, on several, and from both ends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from foretell import forecast
from foretell.errors import PlanError
from foretell.parallel import parallelize
from foretell.parallel.schedules import most_in_flight, stage_actions
from foretell.plans import Plan
from foretell.program import Program
from foretell.simulate.pipeline import simulate_pipeline
from foretell.simulate.step import Durations

from .models import graph
from .test_expert import mixture


def step(plan: Plan, sent: float) -> float:
    """Seconds of a step in which each op takes one, and so much whatever goes to experts."""
    program = parallelize(mixture(), plan)
    assert program.pipeline is not None
    return simulate_pipeline(program, durations(program, sent), [0.0] * (program.pipeline.chunks - 1)).period


def durations(program: Program, sent: float) -> list[Durations]:
    return [
        Durations(
            device=np.array([float(op.phase != "optimizer") for op in role.graph.ops]),
            host=np.zeros(len(role.graph.ops)), waits=np.zeros(len(role.graph.ops), dtype=bool),
            collectives=[sent * (c.kind == "all-to-all") for c in role.collectives],
        )
        for role in program.roles
    ]  # fmt: skip


def test_pairs_hide_what_one_pass_after_another_waits_for() -> None:
    plan = Plan(dp=4, ep=4, overlap_ep=True, grad_accumulation=16)
    silent, hidden = step(plan, 0.0), step(plan, 2.0)
    exposed = 16 * 8 * 2.0  # two layers, to experts and back, in two passes
    assert silent < hidden < silent + 0.4 * exposed
    assert step(Plan(dp=4, ep=4, overlap_ep=True, delay_wgrad=True, grad_accumulation=16), 2.0) <= hidden
    whole = sum(durations(parallelize(mixture(), plan), 0.0)[0].device)
    assert silent == pytest.approx(16 * whole)  # pairs leave nothing out


@pytest.mark.parametrize("extra", ["", ",delay_wgrad=true"])
def test_forecasts_hide_it_too(extra: str) -> None:
    plain = "dp=8,ep=8,grad_accumulation=8"
    paired = f"{plain},overlap_ep=true{extra}"
    one, other = (forecast(mixture(), on="4x2xh100-sxm", plan=plan, model="roofline") for plan in (plain, paired))
    assert other.step_time.seconds < one.step_time.seconds * 1.02
    kept = one.memory.breakdown.activations, other.memory.breakdown.activations
    assert kept[0] <= kept[1] < 1.5 * kept[0]  # one pass takes what the other frees


def test_pairs_never_wait_for_each_other_on_several_stages() -> None:
    plan = Plan(pp=4, schedule="interleaved", virtual_stages=2, ep=2, dp=2, overlap_ep=True)
    for stage, actions in enumerate(stage_actions(plan, 16, training=True)):
        ahead = next(i for i, a in enumerate(actions) if a.phase == "backward") - 1
        assert ahead == 2 * (3 - stage) + 4 + 1
        pairs = [(a, b) for a, b in pairwise(actions) if b.joined]
        assert all((a.phase, b.phase) == ("forward", "backward") for a, b in pairs)
        assert len(pairs) == 32 - ahead
    with pytest.raises(PlanError, match="schedule=interleaved"):
        stage_actions(Plan(pp=4, dp=2, ep=2, overlap_ep=True), 16, training=True)


@pytest.mark.parametrize("wrong", ["dp=4,overlap_ep=true", "dp=4,ep=2,delay_wgrad=true"])
def test_what_hides_nothing_is_refused(wrong: str) -> None:
    with pytest.raises(PlanError, match="leave"):
        parallelize(mixture(), Plan.parse(wrong))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_dualpipe_goes_from_both_ends(stages: int) -> None:
    actions = stage_actions(Plan(pp=stages, schedule="dualpipe"), 4 * stages, training=True)
    for stage, own in enumerate(actions):
        assert {a.chunk for a in own} == {stage, 2 * stages - 1 - stage}
        for phase in ("forward", "backward", "weights"):
            assert sum(a.phase == phase for a in own) == 4 * stages  # half of them in each direction
        assert sum(most_in_flight(own).values()) in (stages, stages + 1)  # the last where the directions meet
    with pytest.raises(PlanError, match="even"):
        stage_actions(Plan(pp=3, schedule="dualpipe"), 12, training=True)
    with pytest.raises(PlanError, match="or more"):
        stage_actions(Plan(pp=stages, schedule="dualpipe"), stages, training=True)


def test_dualpipe_has_two_copies_that_are_reduced_as_replicas() -> None:
    whole = graph("llama")
    plain, both = (
        parallelize(whole, Plan(dp=2, pp=2, schedule=schedule, grad_accumulation=8))
        for schedule in ("1f1b", "dualpipe")
    )
    for role in both.roles:
        assert role.graph.bytes_of("parameter") == whole.bytes_of("parameter")
    assert sum(role.graph.bytes_of("parameter") for role in plain.roles) == whole.bytes_of("parameter")
    reduced = {c.group.size for role in both.roles for c in role.collectives if c.kind == "all-reduce"}
    assert reduced == {4}


def test_chunks_that_go_down_and_back_end_where_they_began() -> None:
    program = parallelize(graph("llama"), Plan(pp=2, schedule="zb-v", grad_accumulation=8))
    assert program.pipeline is not None
    assert program.pipeline.stage_of == (0, 1, 1, 0)
    assert [c.nbytes > 0 for c in program.pipeline.hand_over] == [True, False, True]
    heads = [any("head" in op.module for op in role.graph.ops) for role in program.roles]
    assert heads == [True, False]
