"""What `capture` takes: a Workload, a Graph, a SOURCE or a `.graph` file; and that no setting is ignored."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell import forecast
from foretell.capture import capture
from foretell.cli import app
from foretell.errors import InputError
from foretell.graph import Graph
from tests.capture.tiny import mlp


@cache
def graph() -> Graph:
    return capture(mlp())


def test_a_graph_and_its_file_are_taken_as_they_are(tmp_path: Path) -> None:
    graph().save(tmp_path / "a.graph")
    assert capture(graph()) is graph()
    assert capture(graph(), {}) is graph()
    assert capture(str(tmp_path / "a.graph")) == graph()


@pytest.mark.parametrize("settings", [{"batch": "4096"}, {"nonsense": "1"}])
def test_a_setting_that_cannot_apply_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    graph().save(tmp_path / "a.graph")
    for given, text in (
        (graph(), "'tiny' is captured already"),
        (str(tmp_path / "a.graph"), "a.graph is captured already"),
        (mlp(), "'tiny' is made already"),
    ):
        for refuses in (
            lambda g=given: capture(g, settings),
            lambda g=given: forecast(g, "h100-sxm", settings=settings),
        ):
            with pytest.raises(InputError, match=text):
                refuses()


@pytest.mark.parametrize(
    "command", [["predict", "--on", "h100-sxm"], ["inspect"], ["scale", "--on", "h200", "--up-to", "2"]]
)
def test_the_command_line_refuses_settings_of_a_graph(tmp_path: Path, command: list[str]) -> None:
    graph().save(tmp_path / "a.graph")
    result = CliRunner().invoke(app, [command[0], str(tmp_path / "a.graph"), *command[1:], "--set", "nonsense=1"])
    assert result.exit_code == 2
    assert "nonsense=1 cannot be set" in result.output
