"""The conformance suite: every registered method keeps to it, and it tells who does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.methods import METHODS, method
from foretell.methods.conformance import CHECKS, NotConforming, check, made_up, perceptron
from foretell.methods.protocol import STEP_TIME, Example, Prediction, Query

# Networks are trained for a moment only: the suite asks how they behave, not how good they are.
_ELSEWHERE = {"scaledl": "tests/methods/test_scaledl.py", "driple": "tests/methods/test_driple.py",
              "predictddl": "tests/methods/test_predictddl.py"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in METHODS if name not in _ELSEWHERE])
def test_registered_methods_conform(name: str) -> None:
    assert check(method(name)) == tuple(CHECKS)


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_can_be_made(name: str) -> None:
    assert method(name)().name


def test_a_method_of_ones_own_is_named_by_its_place() -> None:
    assert method(f"{__name__}:Mean") is Mean


@pytest.mark.parametrize(("name", "said"), [("ernst", "Did you mean 'ernest'"), ("nowhere.at_all:Method", "cannot be loaded"),
                                            ("foretell.methods.ernest:Nobody", "cannot be loaded")])  # fmt: skip
def test_an_unknown_method_is_told(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        method(name)


class Mean:
    """Says the mean of what it saw: as plain as a method can be."""

    def __init__(self) -> None:
        self.mean_ = 0.0

    @property
    def name(self) -> str:
        return "mean"

    def fit(self, examples: Sequence[Example]) -> Self:
        seen = [e.measured[STEP_TIME] for e in examples if STEP_TIME in e.measured]
        if not seen:
            raise InputError("nothing was measured.")
        self.mean_ = float(np.mean(seen))
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(values={STEP_TIME: self.mean_}) for _ in queries]


class ReturnsNothing(Mean):
    def fit(self, examples: Sequence[Example]) -> Any:
        super().fit(examples)


class Remembers(Mean):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Example] = []

    def fit(self, examples: Sequence[Example]) -> Self:
        self.seen += examples
        return super().fit(self.seen)


class SaysNan(Mean):
    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(values={STEP_TIME: float("nan") if q.graph is None else self.mean_}) for q in queries]


class SaysNothing(Mean):
    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(values={STEP_TIME: self.mean_} if q.graph is not None else {}) for q in queries]


class Turns(Mean):
    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(values={STEP_TIME: 1.0 + i}) for i, _ in enumerate(queries)]


class Gambles(Mean):
    seeds = iter(range(1000))

    def fit(self, examples: Sequence[Example]) -> Self:
        super().fit(examples)
        self.mean_ *= 1 + next(self.seeds)
        return self


class Scribbles(Mean):
    def fit(self, examples: Sequence[Example]) -> Self:
        for e in examples:
            e.measured["seen"] = 1.0  # type: ignore[index]
        return super().fit(examples)


class Crashes(Mean):
    def fit(self, examples: Sequence[Example]) -> Self:
        self.mean_ = sum(e.measured.get(STEP_TIME, 0.0) for e in examples) / len(examples)
        return self


class Holds(Mean):
    def __init__(self) -> None:
        super().__init__()
        self.held = lambda: None


class Outside(Mean):
    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(values={STEP_TIME: self.mean_}, low={STEP_TIME: 2 * self.mean_}) for _ in queries]


def test_a_plain_method_conforms() -> None:
    assert check(Mean) == tuple(CHECKS)


@pytest.mark.parametrize(("broken", "fails"), [
    (ReturnsNothing, "fit returns the method"), (Remembers, "forgets earlier fits"), (SaysNan, "answers are numbers"),
    (SaysNothing, "answers are numbers"), (Turns, "answers in order"), (Gambles, "is deterministic"),
    (Scribbles, "does not change"), (Crashes, "refuses to fit on nothing"), (Outside, "answers are numbers"),
])  # fmt: skip
def test_what_is_broken_is_named(broken: Callable[[], Any], fails: str) -> None:
    with pytest.raises(NotConforming, match=fails):
        check(broken)


ALIEN = """
from foretell.methods.protocol import STEP_TIME, Prediction
from foretell.errors import InputError

class Median:
    name = "median"

    def fit(self, examples):
        seen = sorted(e.measured[STEP_TIME] for e in examples if STEP_TIME in e.measured)
        if not seen:
            raise InputError("nothing was measured.")
        self.middle_ = seen[len(seen) // 2]
        return self

    def predict(self, queries):
        return [Prediction(values={STEP_TIME: self.middle_}) for _ in queries]

class Careless(Median):
    def fit(self, examples):
        super().fit(examples)
"""


def test_a_stranger_runs_the_suite_and_the_comparison(tmp_path: Path) -> None:
    """A method in a file of one's own, from outside the project, by the commands that the docs give."""
    (tmp_path / "alien.py").write_text(ALIEN)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
        )

    suite = run("foretell.methods.conformance", "alien:Median")
    assert suite.stdout.splitlines() == list(CHECKS), suite.stderr
    broken = run("foretell.methods.conformance", "alien:Careless")
    assert broken.returncode == 1
    assert "fails 'fit returns the method'" in broken.stderr
    stores = Path(__file__).parents[2] / "bench" / "data"
    table = run("foretell.cli", "bench", "methods", "--only", "alien:Median", "--source", "box", "--stores", str(stores),
                "--rows", "60", "--save", str(tmp_path / "found.json"), "--json")  # fmt: skip
    lines = json.loads(table.stdout)["lines"]
    assert {line["method"] for line in lines} == {"alien:Median"}
    assert any(line["target"] == STEP_TIME and line["mean"] for line in lines)


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(Exception, match="pickle"):
        check(Holds)


def test_made_up_steps_are_whole() -> None:
    examples = made_up()
    assert all(len(e.ops) == len(e.query.graph.ops) for e in examples if e.query.graph)
    assert len({e.query.architecture for e in examples}) == 4
    read = type(perceptron(64, layers=2, batch=4)).from_bytes(perceptron(64, layers=2, batch=4).to_bytes())
    assert [op.target for op in read.ops] == [op.target for op in perceptron(64, layers=2, batch=4).ops]


def test_others_run_the_suite_where_their_settings_are() -> None:
    root = Path(__file__).parents[2]
    for file in set(_ELSEWHERE.values()):
        assert "check(" in (root / file).read_text(), file
