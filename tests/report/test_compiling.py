"""Compile or not: `predict` and `compare` show a compiled step beside its eager one, `inspect` what was fused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import foretell
from foretell.cli import app
from foretell.cost.compile_time import COSTS, compile_time
from foretell.forecasting.compile_gain import CompileGain, compile_gain
from foretell.forecasting.result import Duration
from foretell.graph import Graph
from foretell.graph.operators import FUSED
from foretell.report.compiling import fused_uses, show_modules
from tests.capture.test_compiled import block, compiled, eager


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """SOURCE is always the two blocks of the tests of captures, compiled where compile=true is set."""

    def capture(source: str, settings: Any = None, *, compiled: bool = True, **how: Any) -> Graph:
        asked = compiled and (settings or {}).get("compile") == "true"
        return graph_of(asked)

    monkeypatch.setattr(foretell, "capture_graph", capture)


def graph_of(asked: bool) -> Graph:
    return compiled() if asked else eager()


def call(*arguments: str) -> Result:
    ran = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert ran.exit_code == 0, ran.output
    return ran


def gain() -> CompileGain:
    return compile_gain(*(foretell.forecast(graph, on="h200") for graph in (compiled(), eager())))


def test_a_speed_up_is_the_eager_step_over_the_compiled_one() -> None:
    found, ours, theirs = gain(), *(foretell.forecast(graph, on="h200") for graph in (compiled(), eager()))
    assert found.speed_up.value == pytest.approx(theirs.step_time.seconds / ours.step_time.seconds)
    assert found.memory_change == ours.memory.total - theirs.memory.total
    assert found.fused_kernels == sum(op.signature.name == FUSED for op in compiled().ops) >= found.different_kernels


def test_its_interval_counts_what_both_steps_share() -> None:
    found = gain().speed_up
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    steps = [foretell.forecast(graph, on="h200").step_time for graph in (compiled(), eager())]
    ends = [(step.seconds / (step.low or 0.0), (step.high or 0.0) / step.seconds) for step in steps]
    alone = found.value * math.exp(-math.hypot(math.log(ends[0][1]), math.log(ends[1][0])))
    assert alone < found.low, "errors of the two go together"
    sure = [replace(f, step_time=Duration(seconds=f.step_time.seconds)) for f in (gain().eager, gain().eager)]
    assert compile_gain(*sure).speed_up.low is None


def test_compiling_pays_after_as_many_steps_as_it_takes_to_save_its_time() -> None:
    assert gain().compile_time.seconds == pytest.approx(compile_time(compiled(), COSTS.op_seconds).median)
    half = replace(gain(), speed_up=replace(gain().speed_up, value=2.0), eager_step_time=Duration(seconds=0.2))
    assert half.steps_to_pay == pytest.approx(half.compile_time.seconds / 0.1)
    assert replace(half, speed_up=replace(half.speed_up, value=0.9)).steps_to_pay is None


def test_kernels_of_repeated_blocks_are_compiled_once() -> None:
    once = compile_time(compiled(), COSTS.op_seconds).median
    twice = replace(compiled(), ops=compiled().ops * 2)
    kernels = sum(op.signature.name == FUSED for op in compiled().ops)
    assert compile_time(twice, COSTS.op_seconds).median == pytest.approx(once + kernels * COSTS.kernel)
    assert compile_time(compiled(), 2 * COSTS.op_seconds).median == pytest.approx(2 * once), "a slower host"


@pytest.mark.usefixtures("captured")
def test_predict_shows_the_eager_step_beside_the_compiled_one() -> None:
    shown = call("predict", "x", "--on", "h200", "--set", "compile=true").stdout
    assert "Compiled, beside the eager step" in shown
    assert "Speed-up" in shown
    answer = json.loads(call("predict", "x", "--on", "h200", "--set", "compile=true", "--json").stdout)
    plain = json.loads(call("predict", "x", "--on", "h200", "--json").stdout)
    assert answer["compiled"]["eager_step_time"] == plain["step_time"]
    assert answer["compiled"]["memory_change"] == answer["memory"]["total"] - plain["memory"]["total"]
    assert "compiled" not in plain
    several = call("predict", "x", "--on", "h200", "--on", "h100-sxm", "--set", "compile=true").stdout
    assert "Compiling takes" in several


@pytest.mark.usefixtures("captured")
def test_compare_has_the_gain_of_each_question_that_compiles(tmp_path: Path) -> None:
    asked = ("compare", "x", "x compile=true", "--on", "h200")
    rows = json.loads(call(*asked, "--json", "--html", str(tmp_path / "page.html")).stdout)
    assert "compiled" not in rows[0]
    gained = rows[1]["compiled"]
    steps = [row["forecast"]["step_time"]["seconds"] for row in rows]
    assert math.isclose(gained["speed_up"]["value"], steps[0] / steps[1])
    assert "Compiled, beside the eager step" in call(*asked).stdout
    assert "Compiling takes" in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("captured")
def test_inspect_lists_fused_kernels_with_their_operators_and_modules() -> None:
    answer = json.loads(call("inspect", "x", "--set", "compile=true", "--on", "h200", "--json").stdout)
    assert any("erf" in use["operators"] and use["modules"] == ["0", "1"] for use in answer["fused_kernels"])
    assert "Fused kernels" in call("inspect", "x", "--set", "compile=true", "--on", "h200").stdout
    plain = call("inspect", "x", "--on", "h200").stdout
    assert "Fused kernels" not in plain


def test_fused_kernels_are_those_of_the_step() -> None:
    forecast = foretell.forecast(compiled(), on="h200")
    uses = fused_uses(forecast)
    fused = [op for op in compiled().ops if op.signature.name == FUSED]
    assert sum(use.calls for use in uses) == len(fused)
    assert sum(use.traffic for use in uses) == sum(int(str(op.signature.argument("traffic"))) for op in fused)
    assert [use.seconds for use in uses] == sorted((use.seconds for use in uses), reverse=True)
    assert show_modules(("layers.0.norm", "layers.11.norm")) == "layers.*.norm (×2)"
    assert show_modules(("",)) == "–"


def test_a_step_is_captured_as_it_is_written_where_that_is_asked() -> None:
    made = block()
    assert foretell.capture_graph(made).is_compiled
    plain = foretell.capture_graph(made, compiled=False)
    assert plain.content_hash == eager().content_hash
    assert foretell.capture_graph(made).is_compiled, "each is kept beside the other"
