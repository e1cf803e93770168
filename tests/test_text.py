"""What leaves as text: nothing in it that a terminal obeys, and JSON that every reader takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import foretell
from foretell import cli
from foretell.cli.terminal import console_of
from foretell.errors import InputError, did_you_mean
from foretell.graph.modules import prefixes
from foretell.parallel import parallelize
from foretell.report.html import write_html
from foretell.report.inspection import inspection
from foretell.report.terminal import forecast_panel, forecast_table
from foretell.report.tree import module_tree
from foretell.text import json_text, plain
from tests.fuzz.targets.command_line import OBEYED, TESTS
from tests.report.examples import small_forecast

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egpj.exe\r\x7f\ud800"


def test_what_a_terminal_obeys_becomes_a_picture() -> None:
    assert plain("a\x1b[31mb\rc\x7fd\x9be\u202ef\tg\nh") == "a␛[31mb␍c␡d�e�f\tg\nh"
    assert plain("ResNet-50 × 8, größer, 模型 🦆") == "ResNet-50 × 8, größer, 模型 🦆"


@settings(max_examples=30)
@given(st.text())
def test_plain_text_keeps_its_length_and_is_never_obeyed(text: str) -> None:
    assert len(plain(text)) == len(text)
    assert OBEYED.search(plain(text)) is None
    plain(text).encode()


@settings(max_examples=30)
@given(
    st.recursive(
        st.floats() | st.text() | st.none() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_strict_and_reads_back(value: object) -> None:
    text = json_text({"value": value})
    assert OBEYED.search(text) is None
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


@settings(max_examples=50)
@given(
    st.recursive(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.text('ab"\\é ')
        | st.none()
        | st.integers()
        | st.booleans(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('ab"') | st.integers(), inner),
    )
)
def test_json_is_laid_out_as_the_library_does(value: object) -> None:
    assert json_text(value) == json.dumps(value, indent=2, ensure_ascii=False)


def test_errors_are_plain_and_short() -> None:
    error = InputError(f"the model {HOSTILE} {'x' * 10**6} is too large. Choose another.")
    assert OBEYED.search(str(error)) is None
    assert len(str(error)) < 300
    assert str(error).endswith("is too large. Choose another.")
    assert did_you_mean("h200" * 10**6, ["h200"]) == ""


def _drawn(*what: object) -> str:
    console = console_of()
    with console.capture() as drawn:
        console.print(*what)
    return drawn.get()


def test_names_from_files_are_drawn_plain(tmp_path: Path) -> None:
    forecast = small_forecast()
    ops = tuple(replace(op, module=f"{op.module}.{HOSTILE}" if op.module else HOSTILE) for op in forecast.graph.ops)
    hostile = replace(
        forecast, workload=HOSTILE, cluster=HOSTILE, plan=HOSTILE, graph=replace(forecast.graph, ops=ops, name=HOSTILE)
    )
    panel = forecast_panel(hostile)
    for text in (
        _drawn(panel),
        _drawn(forecast_table([hostile, hostile])),
        _drawn(inspection(hostile, top=5, depth=None, width=80)),
    ):
        assert "owned" in text
        assert OBEYED.search(text) is None
    assert len({len(line) for line in _drawn(panel).splitlines()[1:6]}) == 1  # the frame stays straight
    assert OBEYED.search(hostile.to_json()) is None
    write_html([hostile], tmp_path / "page.html")
    assert OBEYED.search((tmp_path / "page.html").read_text("utf-8")) is None


@pytest.mark.parametrize(
    "arguments", [(HOSTILE,), ("predict", HOSTILE, "--on", HOSTILE), ("devices", HOSTILE), ("devices", f"--{HOSTILE}")]
)
def test_command_lines_are_quoted_plain(arguments: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(cli.app, arguments)
    assert "owned" in ended.stderr
    assert OBEYED.search(ended.output) is None


@pytest.mark.parametrize("deep", [lambda module: module + ".0" * 100_000, lambda module: f"{module}.{'m' * 5_000_000}"])
def test_reports_and_plans_take_endless_module_names(deep: Callable[[str], str]) -> None:
    whole = foretell.Graph.load(TESTS / "fuzz/bases/llama.graph")
    names = {module: module and deep(module) for module in {op.module for op in whole.ops}}
    ops = tuple(replace(op, module=names[op.module]) for op in whole.ops)
    endless = replace(whole, ops=ops)
    sharded = parallelize(endless, foretell.Plan(dp=2, zero=3)).roles[0]
    assert any("all-gather layers.0" in c.name for c in sharded.collectives)
    assert module_tree(foretell.forecast(endless, on="h200", model="roofline")).ops == sum(op.times for op in ops)


def test_prefixes_are_the_modules_around() -> None:
    assert prefixes("layers.0.attention") == ["layers", "layers.0", "layers.0.attention"]
    assert prefixes("") == []
    assert prefixes("a" + ".b" * 10**5)[-1] == "a" + ".b" * 10**5
    assert len(prefixes("a" + ".b" * 10**5)) == 64
