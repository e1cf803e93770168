"""Statements that no step needs and that fail: the next run passes over them, and leaves those that train as they are."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.set_aside import FIRST_WORDS, SET_ASIDE, set_aside
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

STATEMENTS = """
    import torch

    def report(loss, rows):
        print("loss", loss / rows)

    def check(path):
        raise RuntimeError("exists already: " + path)

    def width(settings):
        columns, _ = settings.terminal()
        return columns

    def forward(x, rows):
        y = x * rows.scale
        return y

    def build(settings):
        model = settings.make()
        return model

    def grow(optimizer):
        optimizer.step()
"""


def ended_in(path: Path, name: str, *args: Any, fake_data: bool = True) -> Ended:
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    try:
        names[name](*args)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        return Ended(script=foretell.Script(path=str(path), fake_data=fake_data), error=error)
    raise AssertionError("it did not fail")


@pytest.fixture
def statements(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(STATEMENTS).strip())
    return path


def test_reports_checks_and_other_versions_are_passed_over(statements: Path) -> None:
    for name, args, line in (("report", (1.0, 0), 4), ("check", ("out",), 7), ("width", (object(),), 10)):
        shown = set_aside(ended_in(statements, name, *args), Guesses())
        assert [entry[2] for entry in shown[SET_ASIDE]] == [line]
        assert "line" in shown[FIRST_WORDS]


def test_what_trains_is_not(statements: Path) -> None:
    learnt = torch.ones(2, requires_grad=True) * 2
    for name, args in (("forward", (learnt, object())), ("build", (object(),)), ("grow", (object(),))):
        assert set_aside(ended_in(statements, name, *args), Guesses()) == {}
    assert set_aside(ended_in(statements, "report", 1.0, 0, fake_data=False), Guesses()) == {}


AROUND = """
    import torch

    def report(loss, rows):
        print("loss", loss / rows)

    def train():
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        best = 0
        for i in range(5):
            loss = model(torch.randn(4, 8).cuda()).sum()
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            report(loss.item(), 0)
            score = {}["missing"]
            best = max(best, score)
            print(f"{score:.3f}")

    try:
        train()
    except KeyboardInterrupt:
        pass
"""


def test_a_report_that_fails_does_not_keep_a_script_from_its_step(script: Write) -> None:
    graph = foretell.capture_graph(script(AROUND, fake_data=True))
    assert graph.facts.parameters == 72
    assert graph.samples == 4
    (assumed,) = [c.text for c in graph.caveats if c.code == "assumed-size"]
    assert "line 5 of train.py" in assumed
    assert 'line 15 of train.py (score = {}["missing"]) (passed over: it fails)' in assumed


def test_where_it_does_not_help_the_first_error_is_said(script: Write) -> None:
    text = """
        import torch
        print({}["first"])
        torch.nn.Linear(2, 2)(torch.zeros(2, 3)).sum().backward()
    """
    with pytest.raises(WorkloadError, match=r"line 3 of train\.py.*first"):
        foretell.capture_graph(script(text, fake_data=True))
