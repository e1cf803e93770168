"""The same question has the same answer on the command line and in Python; a narrower interval lies in a wider one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import foretell
from foretell.cli import app
from foretell.distribution import Distribution, Empirical, LogNormal
from tests.laws.steps import captured

pytestmark = pytest.mark.slow  # steps are captured


@pytest.mark.parametrize(("on", "plan"), [("t4", ""), ("8xh200", "dp=8,zero=2"), ("mi300x", "dp=1")])
def test_command_line_and_python_answer_alike(on: str, plan: str, tmp_path: Path) -> None:
    file = tmp_path / "step.graph"
    captured("dense", "fp32", 8).save(file)
    line = ["predict", str(file), "--on", on, "--json", *(["--plan", plan] if plan else [])]
    found = CliRunner().invoke(app, line)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == json.loads(foretell.forecast(str(file), on, plan or None).to_json())


def test_laws_are_checked_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "step.graph"
    captured("dense", "fp32", 8).save(file)
    line = ["laws", str(file), "--on", "t4", "--only", "roofline", "--only", "memory-adds-up", "--json"]
    found = CliRunner().invoke(app, line)
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["kept"]
    assert [law["law"] for law in answer["laws"]] == ["roofline", "memory-adds-up"]


@given(st.floats(1e-6, 1e3), st.floats(0, 2), st.floats(0, 2), st.integers(0, 9))
def test_half_of_an_interval_lies_in_nine_tenths_of_it(median: float, below: float, above: float, seed: int) -> None:
    drawn = median * np.exp(np.random.default_rng(seed).normal(0, 0.3, 50))
    known: list[Distribution] = [
        LogNormal(median=median, below=below, above=above),
        Empirical(median=median, values=drawn, margin=0.1),
    ]
    for each in known:
        levels = [each.quantile(level) for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
        assert levels == sorted(levels)
