"""Profiles: a file a person can read, factors that pass through the simulator, seconds that are added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretell import Profile, forecast
from foretell.errors import ProfileError
from foretell.forecasting.scale import scale
from foretell.plans import Plan
from foretell.profile import Card, Purpose

from .parallel.models import graph

FITTED = Profile(
    name="lab", device=1.25, host=0.9, communication=2.0, fixed_seconds=0.012,
    purpose=Purpose(device="a100-40g-sxm", trainer='Megatron "2023"'),
    card=Card(rows=24, sources=("vtrain_single_node",), error_before=0.21, error_after=0.08, rows_left_out=12),
)  # fmt: skip


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = FITTED.save(tmp_path / "made" / "lab.toml")
    assert Profile.load(path) == FITTED
    assert Profile.load(str(path)) == FITTED
    assert "[factors]\ndevice = 1.25\n" in path.read_text()


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_PROFILES", str(tmp_path))
    FITTED.save(tmp_path / "lab.toml")
    assert Profile.load("lab") == FITTED
    with pytest.raises(ProfileError, match="Did you mean 'lab'"):
        Profile.load("laab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2\nname = 'x'\n", "version 2"),
        ("name = 'x'\n", "version None"),
        ("version = 1\n[factors]\ndevise = 2\n", "Did you mean 'device'"),
        ("version = 1\n[factors]\ndevice = 0\n", "above 0, got 0"),
        ("version = 1\n[factors]\nfixed_seconds = -1\n", "0 or more"),
        ("version = 1\nfactors = 3\n", "must be a table"),
        ("version = 1\nextra = 3\n", "extra is not known"),
        ("version = 1 2\n", "is no profile"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        Profile.load(path)


def test_a_forecast_names_its_profile(tmp_path: Path) -> None:
    plain = forecast(graph("cnn"), "h200")
    assert plain.to_dict()["profile"] is None
    same = forecast(graph("cnn"), "h200", profile=Profile(name="nothing"))
    assert same.profile == "nothing"
    assert same.step_time == plain.step_time
    assert forecast(graph("cnn"), "h200", profile=FITTED.save(tmp_path / "x.toml")).profile == "lab"


def test_fixed_seconds_are_added_to_the_step_and_its_interval() -> None:
    plain = forecast(graph("cnn"), "h200").step_time
    later = forecast(graph("cnn"), "h200", profile=Profile(name="later", fixed_seconds=0.5)).step_time
    assert later.seconds == pytest.approx(plain.seconds + 0.5)
    assert plain.low is not None
    assert later.low == pytest.approx(plain.low + 0.5)


def test_factors_pass_through_the_simulator() -> None:
    """Twice the time of everything is twice the step, bubbles and exposed communication too."""
    plan, on = Plan(dp=2, pp=2, grad_accumulation=4), "4xh100-sxm"
    plain = forecast(graph("llama"), on, plan)
    double = Profile(name="double", device=2.0, host=2.0, communication=2.0)
    slower = forecast(graph("llama"), on, plan, profile=double)
    for part in ("step_time", "device_time", "host_time", "exposed_communication", "bubble"):
        assert getattr(slower, part).seconds == pytest.approx(2 * getattr(plain, part).seconds, rel=0.02), part
    assert slower.memory == plain.memory


def test_a_host_factor_is_hidden_behind_a_busy_device() -> None:
    busy = Profile(name="busy", device=1e3)
    plain = forecast(graph("cnn"), "h200", profile=busy).step_time.seconds
    slower = forecast(graph("cnn"), "h200", profile=replace(busy, host=2.0)).step_time.seconds
    assert slower < 1.02 * plain


def test_scale_takes_a_profile() -> None:
    points = scale(graph("cnn"), "h100-sxm", up_to=2, profile=FITTED)
    assert {point.forecast.profile for point in points} == {"lab"}
