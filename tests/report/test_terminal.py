"""The terminal's tables: everything in words, at any width, whatever users call their things."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from foretell.report import terminal as tables
from foretell.report.inspection import inspection, inspection_dict
from foretell.units import GIB
from tests.report.examples import small_forecast


def drawn(what: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=width, no_color=True)
    console.print(what)
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 120])
def test_one_forecast_says_everything(width: int) -> None:
    text = drawn(tables.forecast_panel(small_forecast()), width)
    for expected in ("FITS", "1.43 GiB of 80 GiB", "99.9 %", "samples/s", "device-bound", "per hour", "activations",
                 "cache overhead", "free", "blocks.5.mlp.down", "op-without-model", "1 % of the step"):  # fmt: skip
        assert expected in text
    assert max(map(len, text.splitlines())) <= width


def test_a_long_plan_is_shown_whole() -> None:
    plan = "dp=2,tp=2,pp=2,zero=1,sequence_parallel=true,stages=6-6,overlap=false"
    assert "overlap=false" in drawn(tables.forecast_panel(small_forecast(plan=plan)))


def test_what_does_not_fit_is_said_without_colour() -> None:
    text = drawn(tables.forecast_panel(small_forecast(capacity=GIB)), width=120)
    assert "DOES NOT FIT" in text
    assert "more than the 1 GiB" in text


@pytest.mark.parametrize("width", [80, 120])
def test_several_forecasts_are_one_table(width: int) -> None:
    forecasts = [small_forecast(), small_forecast(cluster="2xl4", capacity=GIB), small_forecast(cluster="h200")]
    text = drawn(tables.forecast_table(forecasts, width=width), width)
    assert [line.split()[0] for line in text.splitlines() if " ms " in line] == ["8xh100-sxm", "2xl4", "h200"]
    assert "NO" in text
    assert "Fastest: 8xh100-sxm." in text
    assert text.count("aten.foo is priced") == 1
    assert max(map(len, text.splitlines())) <= width


def test_the_batch_that_fits_is_shown() -> None:
    assert "512, the largest that fits" in drawn(tables.forecast_panel(small_forecast(), batch=512))
    assert " 512 " in drawn(tables.forecast_table([small_forecast(), small_forecast()], batches=[512, 256]))


def test_names_are_not_markup() -> None:
    text = drawn(tables.forecast_panel(small_forecast(name="[bold]net[/nope]", cluster="[red]")))
    assert "[bold]net[/nope] on [red]" in text
    assert "[red]" in drawn(tables.forecast_table([small_forecast(cluster="[red]")] * 2))


def test_bars_have_an_ascii_form() -> None:
    assert drawn(tables.Bar(0.5, "red"), width=10, encoding="ascii").rstrip() == "#####"


@pytest.mark.parametrize("width", [80, 120])
def test_inspection_shows_ops_modules_and_memory(width: int) -> None:
    text = drawn(inspection(small_forecast(), top=2, depth=3, width=width), width)
    for expected in ("Top operators", "mm ", "0–5 (×6)", "Peak 714 MiB at op 20 of 72", "├ forward", "├ backward"):
        assert expected in text
    assert "_fused_adamw_" not in text  # third of the operators
    assert max(map(len, text.splitlines())) <= width


def test_inspection_as_data() -> None:
    facts = inspection_dict(small_forecast(), top=1, depth=1)
    assert facts["ops"] == 72
    assert [o["name"] for o in facts["top_operators"]] == ["aten.mm"]
    assert [(m["path"], m["depth"]) for m in facts["modules"]] == [("", 0), ("blocks", 1)]
    assert sum(facts["memory"]["at_peak"].values()) == facts["memory"]["peak_allocated"]
