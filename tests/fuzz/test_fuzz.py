"""Five hundred cases of the fuzzer, the same every time, and every file that once broke something; `make fuzz` runs more."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell import Cluster, InputError, Plan
from foretell.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import FINE, Target, find_targets, numbers, run_case

CASES = 500
TARGETS, MISSING = find_targets()
NUMBERS = list(numbers(TARGETS, CASES, quick=True))


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found = TARGETS[request.param]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found.prepare()
        yield found


def test_nothing_breaks(target: Target) -> None:
    own = [number for name, number in NUMBERS if name == target.name]
    assert own
    outcomes = [run_case(target, number, seed=0, seconds=60) for number in own]
    bad = [f"{o.category} in case {o.number}: {o.text}" for o in outcomes if o.category not in FINE]
    assert not bad, "\n\n".join(bad)


def test_every_target_runs_here() -> None:
    assert not MISSING


@pytest.mark.parametrize(("name", "number"), [("catalog", 1542), ("model", 129), ("model", 528)])
def test_cases_of_tables_and_arrays_that_are_empty_are_made(name: str, number: int) -> None:
    assert run_case(TARGETS[name], number, seed=77, seconds=60).category in FINE


def test_requests_are_answered_before_they_are_broken() -> None:
    """A body that is refused unread is no case: bodies need the type that clients send."""
    from tests.fuzz.targets import service

    asks, graph = service.client()
    for path, question in service.questions(graph).items():
        answer = asks.post(path, json=question)
        assert answer.is_success, (path, answer.text)
    rng = Random(0)
    refused = 0
    for _ in range(60):
        try:
            service.case(rng)
        except InputError:
            refused += 1
    assert refused < 54


@given(st.text(alphabet="0123456789x×h200t4@ib-4g,/+:._e \x1b\ud800", max_size=60))
def test_any_text_is_a_cluster_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert 1 <= Cluster.parse(text).devices <= 2**20


@given(st.text(alphabet="dtpzeroc=,0123456789+-. ∞", max_size=40))
def test_any_text_is_a_plan_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert Plan.parse(text).devices >= 1


@given(st.text(alphabet="0123456789._eE+-TGMkiB/sFLOPuhbnaf ", max_size=30) | st.floats() | st.integers())
def test_any_quantity_is_finite_or_an_input_error(text: str | float) -> None:
    for parse in (parse_bytes, parse_bandwidth, parse_flops, parse_seconds):
        with contextlib.suppress(InputError):
            check_finite(parse(text))  # type: ignore[arg-type]
