"""Five hundred cases of the fuzzer, the same every time, and every file that once broke something; `make fuzz` runs more."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell import Cluster, InputError, Plan
from foretell.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import FINE, Target, find_targets, numbers, run_case
from tests.fuzz.mutate import scale

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


@pytest.mark.parametrize("number", [129, 528])
def test_cases_of_arrays_that_are_empty_are_made(number: int) -> None:
    assert run_case(TARGETS["model"], number, seed=77, seconds=60).category in FINE


@pytest.mark.parametrize("data", [{}, {"memory": {}}, {"memory": {"size": "1.5 GiB"}, "count": 8, "on": True}])
def test_files_of_any_tables_are_made(data: dict[str, Any]) -> None:
    from tests.fuzz.targets.catalog import spoil, written

    for number in range(50):
        changed = deepcopy(data)
        spoil(Random(number), changed)
        assert "\0" not in "\n".join(written(changed))


def test_what_lies_in_a_number_keeps_its_unit() -> None:
    data: dict[str, Any] = {"size": "80 GiB", "text": "1.2.3 x", "count": 8, "many": 10**400}
    for number in range(50):
        scale(Random(number), data)
    assert re.fullmatch(r"[-+.e0-9]+ GiB", data["size"])
    assert data["text"] == "1.2.3 x"


def test_a_call_is_of_what_torch_says_the_operator_takes() -> None:
    from tests.fuzz.targets import operator

    assert {"aten.mm", "aten._softmax", "aten._fused_adamw_", "foretell.rotary"} <= set(operator.names())
    assert [name for name, _, _ in operator.parameters("aten.mm")] == ["self", "mat2"]
    called = {operator.call(Random(number)).name for number in range(300)}
    assert len(called) > 150


def test_every_field_of_a_page_is_filled_in() -> None:
    from tests.fuzz.targets import service

    assert {"plan", "jitter", "trainer", "failures"} <= set(service.asked_by("/ask"))
    assert {"micro_batches", "recompute", "price", "term"} <= set(service.asked_by("/planner"))


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
