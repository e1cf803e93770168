"""Ernest: finds its own law again, chooses runs that tell its terms apart, and counts what they take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.methods.ernest import Ernest, a_optimal, features
from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Query
from foretell.plans import Plan

THETA = np.array([0.2, 0.003, 0.05, 0.01])


def query(machines: int, batch: float = 32.0, *, name: str = "job", fraction: float = 1.0) -> Query:
    return Query(architecture=name, plan=Plan(dp=machines), cluster=Cluster.parse(f"{machines}xt4"), batch=batch * machines,
                 fraction=fraction)  # fmt: skip


def run(q: Query, theta: np.ndarray = THETA, target: str = STEP_TIME) -> Example:
    seconds = float(features(q, target) @ theta)
    return Example(query=q, measured={target: seconds}, cost=20 * seconds)


def runs(name: str = "job") -> list[Example]:
    return [run(query(m, b, name=name)) for m in (1, 2, 3, 4, 8) for b in (8.0, 32.0, 128.0)]


def said(made: Ernest, q: Query, target: str = STEP_TIME) -> float:
    return made.predict([q])[0].values[target]


def test_its_own_law_is_found_again() -> None:
    made = Ernest().fit(runs())
    assert said(made, query(16, 64.0)) == pytest.approx(float(features(query(16, 64.0), STEP_TIME) @ THETA), rel=1e-6)


def test_no_term_is_negative() -> None:
    falling = [Example(query=query(m), measured={STEP_TIME: 1.0 / m**2}, cost=1.0) for m in (1, 2, 4, 8)]
    made = Ernest().fit(falling)
    assert all((theta >= 0).all() for theta in made.fits_.values())


def test_a_job_shrinks_with_machines_and_grows_with_data() -> None:
    jobs = [run(query(m, fraction=f), target=JOB_TIME) for m in (1, 2, 4) for f in (0.1, 0.5, 1.0)]
    made = Ernest().fit(jobs)
    assert said(made, query(2, fraction=1.0), JOB_TIME) > said(made, query(2, fraction=0.2), JOB_TIME)


def test_a_workload_it_has_not_run_is_refused() -> None:
    [answer] = Ernest().fit(runs()).predict([query(2, name="another")])
    assert not answer.values
    assert "has run" in answer.why


def test_sampled_runs_are_counted_and_stay_under_the_budget() -> None:
    examples = runs()
    whole = sum(e.cost for e in examples)
    made = Ernest(budget=0.4).fit(examples)
    assert 0 < made.spent_ <= 0.4 * whole
    assert Ernest().fit(examples).spent_ == pytest.approx(whole)
    assert said(made, query(16, 64.0)) == pytest.approx(float(features(query(16, 64.0), STEP_TIME) @ THETA), rel=0.05)


def trace(table: np.ndarray, chosen: Sequence[int]) -> float:
    scaled = (table / np.abs(table).max(axis=0))[list(chosen)]
    return float(np.trace(np.linalg.inv(scaled.T @ scaled + 1e-9 * np.eye(4))))


def test_the_design_beats_runs_drawn_at_random() -> None:
    table = np.array([features(e.query, STEP_TIME) for e in runs()])
    costs = [1.0] * len(table)
    chosen = a_optimal(table, costs, 0.4)
    draw = np.random.default_rng(0)
    others = [trace(table, draw.permutation(len(table))[: len(chosen)].tolist()) for _ in range(50)]
    assert trace(table, chosen) < np.quantile(others, 0.1)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1, 512), st.floats(0.1, 100)), min_size=2, max_size=20),
       st.floats(0.05, 0.95))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_design_is_never_empty_and_costs_no_more_than_it_may(
    rows: list[tuple[int, float, float]], part: float
) -> None:
    table = np.array([[1.0, b / m, np.log(m), float(m)] for m, b, _ in rows])
    costs = [c for *_, c in rows]
    chosen = a_optimal(table, costs, part)
    assert chosen
    assert len(set(chosen)) == len(chosen)
    assert len(chosen) == 1 or sum(costs[i] for i in chosen) <= part * sum(costs) + max(costs)


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.5])
def test_a_budget_is_a_part(budget: float) -> None:
    with pytest.raises(InputError, match="budget"):
        Ernest(budget=budget)
