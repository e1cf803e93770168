"""The fuzzer itself: what it calls a crash, a hang, too much memory and nonsense."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.errors import CaptureError, InputError
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import Target, find_targets, numbers, run_case


def target(case: Callable[[random.Random], Any], **more: Any) -> Target:
    return Target(name="made", module=SimpleNamespace(case=case, **more))  # type: ignore[arg-type]


def fail(error: BaseException) -> Callable[[random.Random], None]:
    def case(rng: random.Random) -> None:
        raise error

    return case


@pytest.mark.parametrize(
    ("case", "category"),
    [
        (lambda rng: None, "answered"),
        (fail(InputError("the file is cut short")), "refused"),
        (fail(InputError(" ")), "nonsense"),
        (fail(KeyError("x")), "crash"),
        (fail(SystemExit(1)), "crash"),
        (fail(CaptureError("our fault")), "crash"),
        (fail(MemoryError()), "memory"),
        (lambda rng: time.sleep(60), "hang"),
        (lambda rng: check_finite({"a": [1.0, {"b": float("nan")}]}), "nonsense"),
    ],
)
def test_what_becomes_of_a_case(case: Callable[[random.Random], None], category: str) -> None:
    outcome = run_case(target(case), 0, 0, seconds=0.2 if category == "hang" else 60)
    assert outcome.category == category
    assert "answer.a[1].b is nan" in outcome.text or category != "nonsense" or "without a word" in outcome.text


def test_a_case_is_the_same_every_time() -> None:
    made: list[float] = []
    for number, seed in ((3, 0), (3, 0), (3, 1), (4, 0)):
        run_case(target(lambda rng: made.append(rng.random())), number, seed)
    assert made[0] == made[1]
    assert len(set(made)) == 3


def test_cases_are_shared_out_by_weight() -> None:
    both = {
        "a": Target(name="a", module=target(print, WEIGHT=3).module),
        "b": Target(name="b", module=target(print).module),
    }
    shared = [name for name, _ in numbers(both, 100)]
    assert (shared.count("a"), shared.count("b")) == (75, 25)
    assert "graph" in find_targets()[0]
