"""Foretell as a method, where it is not learned op by op: it corrects its forecasts by what they were off by."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("scipy")

from foretell_bench.methods import COMPARED, compared
from foretell_bench.methods.ours import Foretell, shipped_parts
from foretell_bench.methods.residuals import Parts

from foretell.hardware import Cluster
from foretell.methods import METHODS
from foretell.methods.conformance import CHECKS, check, made_up
from foretell.methods.protocol import JOB_TIME, MEMORY, STEP_TIME, Example, Prediction, Query
from foretell.plans import Plan


def forecast(query: Query) -> tuple[Parts, int]:
    return shipped_parts(query)


def right(example: Example, off: float = 1.0) -> Example:
    """As if the forecast were right, or off by a factor."""
    parts, allocated = forecast(example.query)
    return replace(example, ops=(), measured={STEP_TIME: off * parts.seconds, MEMORY: off * allocated})


@pytest.fixture(scope="module")
def several() -> list[Example]:
    return [e for e in made_up() if e.query.cluster.devices > 1]


def answer(made: Foretell, query: Query) -> Prediction:
    return made.predict([query])[0]


def test_it_conforms() -> None:
    assert check(Foretell) == tuple(CHECKS)


@pytest.mark.parametrize("name", sorted(COMPARED.keys() - METHODS.keys()))
def test_everyone_who_is_compared_can_be_made(name: str) -> None:
    assert compared(name)().name


def test_a_network_that_was_twice_as_slow_is_corrected_and_a_strange_one_is_not(several: list[Example]) -> None:
    slow = several[-1].query.architecture
    given = [right(e, 2.0 if e.query.architecture == slow else 1.0) for e in several]
    made = Foretell().fit(given)
    known = next(e.query for e in given if e.query.architecture == slow)
    strange = replace(
        known, architecture="strange", cluster=Cluster.parse("2xa100-80g-sxm"), plan=several[0].query.plan
    )
    assert several[0].query.cluster.devices == 2
    for target, low, high in ((STEP_TIME, 1.6, 2.4), (MEMORY, 1.6, 2.4)):
        assert (
            low < answer(made, known).values[target] / right(Example(query=known, measured={})).measured[target] < high
        )
    plain = right(Example(query=strange, measured={})).measured
    for target, seconds in plain.items():
        assert answer(made, strange).values[target] == pytest.approx(seconds, rel=0.35)


def test_forecasts_that_were_right_are_left_as_they_are(several: list[Example]) -> None:
    given = [right(e) for e in several]
    made = Foretell().fit(given)
    for e in given:
        for target, value in e.measured.items():
            assert answer(made, e.query).values[target] == pytest.approx(value, rel=0.02)


def test_intervals_hold_the_value_and_jobs_follow_from_steps(several: list[Example]) -> None:
    def job(e: Example, steps: int) -> Example:
        query = replace(e.query, settings={**e.query.settings, "steps": str(steps)})
        return replace(e, query=query, measured={**e.measured, JOB_TIME: 3.0 + steps * e.measured[STEP_TIME]})

    given = [job(right(e), 100 + i) for i, e in enumerate(several)]
    made = Foretell().fit(given)
    for e in given:
        found = answer(made, e.query)
        for target in (STEP_TIME, JOB_TIME):
            assert found.low[target] < found.values[target] < found.high[target]
            assert found.values[target] == pytest.approx(e.measured[target], rel=0.02)


def test_a_start_grows_with_the_parameters_and_the_workers_they_are_sent_to(several: list[Example]) -> None:
    def sent(query: Query) -> float:
        assert query.graph is not None
        link = query.cluster.between or query.cluster.nodes[0].inside
        return (query.cluster.devices - 1) * query.graph.bytes_of("parameter") / link.bandwidth

    def start(query: Query) -> float:
        return 0.5 + sent(query) / sent(several[0].query)

    def job(e: Example, steps: int = 9) -> Example:
        e = right(e)
        query = replace(e.query, settings={"steps": str(steps)})
        return replace(e, query=query, measured={JOB_TIME: start(query) + steps * e.measured[STEP_TIME], **e.measured})

    made = Foretell().fit([job(e) for e in several])
    unseen = job(several[0], 2)
    larger = replace(unseen.query, cluster=Cluster.parse("4x8xa100-80g-sxm"), plan=Plan(dp=32))
    for query in (unseen.query, larger):
        found = answer(made, query).values
        assert found[JOB_TIME] - 2 * found[STEP_TIME] == pytest.approx(start(query), rel=0.1)


def test_a_device_that_is_learned_op_by_op_is_not_corrected() -> None:
    alone = [e for e in made_up() if e.query.cluster.devices == 1]
    made = Foretell(rounds=20).fit([*alone, *alone])
    assert made.models_
    assert not made.residuals_


def test_ours_corrects_a_network_that_was_measured_where_it_is_not_learned_op_by_op() -> None:
    # Twins with the same graphs, one of them three times slower: factors cannot tell them apart.
    several = [e for e in made_up() if e.query.cluster.devices > 1]
    slow = "twin"
    twins = [replace(e, query=replace(e.query, architecture=slow)) for e in several]
    given = [
        replace(e, ops=(), measured={STEP_TIME: e.measured[STEP_TIME] * (3 if e.query.architecture == slow else 1)})
        for e in [*several, *twins]
    ]
    made = Foretell().fit(given)
    strange = [replace(e.query, architecture="unseen") for e in given if e.query.architecture == slow]
    known = [e.query for e in given if e.query.architecture == slow]
    for seen, unseen in zip(made.predict(known), made.predict(strange), strict=True):
        assert seen.values[STEP_TIME] > 1.3 * unseen.values[STEP_TIME]
