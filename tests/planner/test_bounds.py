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
from foretell.parallel.state import ModelState
from foretell.planner.bounds.replica import Replica, first_devices
from foretell.planner.candidates import Candidate, candidates_of
from foretell.planner.space import Space
from foretell.profile import network_of
from tests.parallel.models import graph
from tests.planner.small import evaluator, steps


@pytest.mark.parametrize(("on", "precision"), [("8xl40s", "fp32"), ("2x8xh100-sxm", "fp32"), ("8xl40s", "amp-bf16")])
def test_no_plan_is_below_its_bound(on: str, precision: str) -> None:
    evaluates, cluster = evaluator(on, precision=precision), Cluster.parse(on)
    every = candidates_of(Space(global_batch=64, batches=(1, 2)), steps(precision), cluster).found
    ratios = []
    for c in every[:: max(len(every) // 8, 1)]:
        if "cannot share" in (outcome := evaluates.simulate(c)).why:
            assert evaluates.replica(c).why
            continue
        room = outcome.total - cluster.nodes[0].device.context_bytes
        for replica in (evaluates.replica(c), evaluates.rough(c)):
            assert evaluates.bound(c, replica) <= outcome.seconds * 1.001, c
            assert evaluates.memory(c, replica) <= room, c
        assert evaluates.first_bound(c) <= outcome.seconds
        ratios.append(evaluates.bound(c, evaluates.replica(c)) / outcome.seconds)
    assert mean(ratios) > 0.4  # a small step waits for its host, which bounds leave out in parts


def test_recomputing_is_bounded_from_the_step_that_does_not() -> None:
    evaluates = evaluator("h100-sxm")
    c = Candidate(0, 0, 2, Plan(checkpointing="full"))
    exact, rough = evaluates.replica(c), evaluates.rough(c)
    assert 0.7 * exact.micro <= rough.micro <= 1.001 * exact.micro
    assert rough.activations == 0 < exact.activations


def test_what_a_model_cannot_be_divided_by_is_said_once() -> None:
    replica = evaluator("8xh100-sxm").replica(Candidate(0, 0, 2, Plan(tp=8)))
    assert "tp=8 cannot share" in replica.why


def test_the_first_devices_of_a_cluster() -> None:
    cluster = Cluster.parse("4x8xh100-sxm")
    assert [n.count for n in first_devices(cluster, 2).nodes] == [2]
    assert [n.count for n in first_devices(cluster, 12).nodes] == [8, 4]


def test_a_bound_is_of_its_own_cluster_whatever_was_searched_before() -> None:
    """A cluster that is gone may leave its place in memory to the next, and must not leave it its bounds."""
    c = Candidate(0, 0, 2, Plan(dp=4, zero=3))

    def bound(written: str) -> float:
        evaluates = evaluator(written)
        return evaluates.bound(
            c, Replica(units=(1e-6,), state=ModelState(parameters=2**32, gradients=2**32), in_blocks=2**32)
        )

    alone = {name: bound(name) for name in ("4xh100-sxm", "4x1xh100-sxm@eth-100g")}
    assert alone["4x1xh100-sxm@eth-100g"] > 2 * alone["4xh100-sxm"]
    for name in list(alone) * 50:
        assert bound(name) == alone[name]


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
