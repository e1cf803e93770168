"""How fast a host issues ops, measured for real."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from foretell.cli import app
from foretell.measure.host_speed import host_speed


@pytest.mark.nightly
def test_a_host_has_a_speed() -> None:
    found = host_speed("cpu", seconds=0.05)
    assert 1e-7 < found.low <= found.op_seconds <= found.high < 1e-2
    assert found.ops > 500


@pytest.mark.nightly
def test_the_command_prints_it() -> None:
    result = CliRunner().invoke(app, ["measure", "--host", "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["op_seconds"] > 0


def test_a_probe_takes_no_source() -> None:
    result = CliRunner().invoke(app, ["measure", "timm/resnet18", "--host"])
    assert result.exit_code == 2
    assert "leave out SOURCE" in result.output
