"""`foretell scale`: more and more devices of a kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretell.cli import app
from foretell.errors import InputError, PlanError
from foretell.forecasting.scale import scale
from foretell.report.scale import scaling_page
from tests.parallel.models import graph


def test_devices_double_and_efficiency_is_relative_to_the_first() -> None:
    points = scale(graph("llama"), "h100-sxm", "tp=2,zero=1", up_to=12, model="roofline")
    assert [p.devices for p in points] == [2, 4, 8, 12]
    assert [p.forecast.plan for p in points] == [f"dp={n},tp=2,zero=1" for n in (1, 2, 4, 6)]
    assert points[0].efficiency == 1
    assert all(p.efficiency <= 1 + 1e-9 for p in points)


def test_one_device_has_the_trainer_of_several() -> None:
    for plan, adds in ((None, False), ("zero=3", True)):
        points = scale(graph("llama"), "h200", plan, up_to=2)
        shares = [p.forecast.trainer.seconds / p.forecast.step_time.seconds for p in points]
        assert shares[0] == pytest.approx(shares[1])
        assert (shares[0] > 0) is adds


def test_what_cannot_grow_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(InputError, match=r"tp × pp × cp = 2 × 1 × 2 = 4"):
        scale(graph("llama"), "h100-sxm", "tp=2,cp=2", up_to=2, model="roofline")
    with pytest.raises(PlanError, match="dp=4 is what grows here"):
        scale(graph("llama"), "h100-sxm", "dp=4", up_to=8, model="roofline")


def test_the_page_shows_throughput_and_where_the_time_goes() -> None:
    page = scaling_page(scale(graph("llama"), "h100-sxm", up_to=8, model="roofline"))
    assert page.count("<figure") == 3
    assert "efficiency over devices" in page
    assert "perfect scaling" in page
    assert page.count("<tr>") == 1 + 4  # what the terminal has: a row for each number of devices,
    assert "samples" in page or "batch" in page  # what was asked
    assert page.count("<code>roofline-costs</code>") == 1  # and each caveat once


def test_the_verb(tmp_path: Path) -> None:
    graph("cnn").save(tmp_path / "cnn.graph")
    asked = ["scale", str(tmp_path / "cnn.graph"), "--on", "h100-sxm", "--model", "roofline"]
    ran = CliRunner().invoke(app, [*asked, "--up-to", "4", "--json", "--html", str(tmp_path / "page.html")])
    assert ran.exit_code == 0
    assert [p["devices"] for p in json.loads(ran.stdout)] == [1, 2, 4]
    assert (tmp_path / "page.html").exists()
    assert CliRunner().invoke(app, [*asked[:3], "8xh100-sxm", "--up-to", "4"]).exit_code == 2
