"""Bounds are below what the simulator says, and near it: else the search would drop good plans, or simulate them all."""

from __future__ import annotations

from statistics import mean

import pytest

from foretell import Plan, Profile
from foretell.cost.model import load_model
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.run import place, time_alike
from foretell.hardware import Cluster
from foretell.parallel import parallelize
from foretell.planner import bounds
from foretell.planner.space import Candidate, Space, enumerate_space
from foretell.profile import network_of
from tests.parallel.models import graph
from tests.planner.small import engine, steps


@pytest.mark.parametrize("on", ["8xl40s", "2x8xh100-sxm"])
def test_no_plan_is_below_its_bound(on: str) -> None:
    asked, cluster = engine(), Cluster.parse(on)
    every = enumerate_space(Space(on=cluster, global_batch=64, batches=(1, 2)), steps()).candidates
    ratios = []
    for c in every[:: max(len(every) // 8, 1)]:
        if "cannot share" in (outcome := asked.simulate(c, cluster)).why:
            assert asked.replica(c, cluster).why
            continue
        facts, exact, rough = (
            asked.facts(c),
            asked.replica(c, cluster),
            asked.rough(c, cluster),
        )
        room = outcome.total - cluster.nodes[0].device.context_bytes
        for replica in (exact, rough):
            step = bounds.step_bound(replica, c.plan, cluster, facts.precision, None)
            assert step <= outcome.seconds * 1.001, c
            assert bounds.memory_bound(replica, c.plan) <= room, c
        assert bounds.arithmetic_step(facts, c.plan, cluster.nodes[0].device) <= outcome.seconds
        ratios.append(bounds.step_bound(exact, c.plan, cluster, facts.precision, None) / outcome.seconds)
    assert mean(ratios) > 0.4  # a small step waits for its host, which bounds leave out in parts


def test_recomputing_is_bounded_from_the_step_that_does_not() -> None:
    asked, cluster = engine(), Cluster.parse("h100-sxm")
    [c] = [Candidate(0, 0, 2, p) for p in [bounds.Plan(checkpointing="full")]]
    exact, rough = asked.replica(c, cluster), asked.rough(c, cluster)
    assert 0.7 * exact.micro <= rough.micro <= 1.001 * exact.micro
    assert rough.activations == 0 < exact.activations


def test_what_a_model_cannot_be_divided_by_is_said_once() -> None:
    asked, cluster = engine(), Cluster.parse("8xh100-sxm")
    replica = asked.replica(Candidate(0, 0, 2, bounds.Plan(tp=8)), cluster)
    assert "tp=8 cannot share" in replica.why


def test_the_first_devices_of_a_cluster() -> None:
    cluster = Cluster.parse("4x8xh100-sxm")
    assert [n.count for n in bounds.corner(cluster, 2).nodes] == [2]
    assert [n.count for n in bounds.corner(cluster, 12).nodes] == [8, 4]


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_bound_counts_what_a_profile_says_of_the_network(factor: float) -> None:
    """As the forecast that it stands below does."""
    step, cluster, model = graph("cnn"), Cluster.parse("h200"), load_model()
    profile = Profile(name="measured", networks={network_of(step): factor})
    program = parallelize(step, Plan())
    timed = time_alike(program, cluster, model, Conditions(), profile)
    placed = place(program, cluster, model, Conditions(), profile)[0][0][0]
    plain = time_alike(program, cluster, model, Conditions())
    assert timed.device_seconds == pytest.approx(placed.device_seconds) == pytest.approx(factor * plain.device_seconds)
    assert timed.host_seconds == pytest.approx(placed.host_seconds)
