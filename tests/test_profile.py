"""Profiles: a file a person can read, factors that pass through the simulator, seconds that are added."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from foretell import Profile, forecast
from foretell.cost.collectives import collective_seconds
from foretell.errors import ProfileError
from foretell.forecasting.scale import scale
from foretell.graph import Input, Layout, Signature
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Card, Intervals, Links, MemoryFactors, Purpose, family_of
from foretell.program import Collective, Group

from .parallel.models import graph

DATA = Path(__file__).parent / "data"
VERSION_1 = Profile(
    name="lab", device=1.25, host=0.9, communication=2.0, fixed_seconds=0.012,
    purpose=Purpose(device="a100-40g-sxm", trainer='Megatron "2023"'),
    card=Card(rows=24, sources=("vtrain_single_node",), error_before=0.21, error_after=0.08, rows_left_out=12),
)  # fmt: skip
FITTED = replace(
    VERSION_1, families={"convolution": 1.3, "elementwise": 0.8}, intervals=Intervals(width=0.15),
    links=Links(bandwidth=0.8, latency=1.5, crowding=0.5, neighbours=1.2), memory=MemoryFactors(allocated=1.1),
    purpose=replace(VERSION_1.purpose, host="epyc-milan", versions="torch 2.9"),
    card=replace(VERSION_1.card, form="device, families"),
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
        ("version = 4\nname = 'x'\n", "version 4"),
        ("version = 3\n[host_of_ranks]\nfour = 2\n", "by number of ranks, like '4'"),
        ("version = 3\n[communication_of_ranks]\n4 = -2\n", "factor above 0"),
        ("version = 2\n[families]\nmatmull = 2\n", "Did you mean 'matmul'"),
        ("version = 2\n[families]\nmatmul = -2\n", "factor above 0"),
        ("version = 2\n[links]\ncrowding = 9\n", "exponent"),
        ("version = 2\n[intervals]\nwidth = -1\n", "half-width"),
        ("version = 2\n[memory]\nallocated = 'all'\n", "factor above 0"),
        ("name = 'x'\n", "version None"),
        ("version = 1\n[factors]\ndevise = 2\n", "Did you mean 'device'"),
        ("version = 1\n[factors]\ndevice = 0\n", "above 0.*got 0"),
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
    plain = forecast(graph("llama"), on, plan, profile=Profile(name="as it is"))
    double = Profile(name="double", device=2.0, host=2.0, communication=2.0)
    slower = forecast(graph("llama"), on, plan, profile=double)
    for part in ("step_time", "device_time", "host_time", "exposed_communication", "bubble"):
        assert getattr(slower, part).seconds == pytest.approx(2 * getattr(plain, part).seconds, rel=0.02), part
    assert slower.memory == plain.memory


def test_files_of_each_version_are_read() -> None:
    assert Profile.load(DATA / "version-1.profile.toml") == VERSION_1
    assert Profile.load(DATA / "version-2.profile.toml") == FITTED


def test_a_family_factor_scales_its_ops_alone() -> None:
    plain = forecast(graph("cnn"), "h200", model="roofline")
    none = forecast(graph("cnn"), "h200", model="roofline", profile=Profile(name="x", families={"rnn": 9.0}))
    assert none.device_time == plain.device_time
    convolutions = Profile(name="x", families={"convolution": 3.0, "convolution_backward": 3.0})
    slower = forecast(graph("cnn"), "h200", model="roofline", profile=convolutions).device_time.seconds
    assert plain.device_time.seconds < slower < 3 * plain.device_time.seconds


def test_convolutions_with_channels_side_by_side_are_a_family_of_their_own() -> None:
    weight = Layout((32, 8, 3, 3), (72, 9, 3, 1), "float16")
    arguments = (("input", Input(0)), ("weight", Input(1)), ("groups", 4))
    last, first = (
        Signature("aten.convolution.default", (Layout((1, 32, 8, 8), strides, "float16"), weight), (), arguments)
        for strides in ((2048, 1, 256, 32), (2048, 64, 8, 1))
    )
    assert [family_of(s) for s in (last, first)] == ["channels_last_grouped_convolution", "grouped_convolution"]
    both = Profile(name="x", families={"grouped_convolution": 2.0})
    own = Profile(name="x", families={"grouped_convolution": 2.0, "channels_last_grouped_convolution": 5.0})
    assert [p.device_factor(family_of(last), "fp32") for p in (both, own)] == [2.0, 5.0]
    assert own.device_factor(family_of(first), "fp32") == 2.0


def test_devices_that_share_a_bus_less_than_listed_are_faster() -> None:
    """But never faster than without sharing."""
    reduce = Collective(
        kind="all-reduce", nbytes=10**8, group=Group(size=8), name="gradients", starts_after=0, waited_for_by=0
    )
    cluster = Cluster.parse("8xt4")
    listed, less, none, least = (
        collective_seconds(reduce, cluster, links=Links(crowding=by)) for by in (0.0, -1.0, -2.5, -3.0)
    )
    assert least == none < less < listed


@pytest.mark.parametrize("links", [Links(bandwidth=0.1), Links(latency=50.0), Links(crowding=2.0)])
def test_links_of_a_profile_slow_collectives(links: Links) -> None:
    waits = Profile(name="x", device=1e-3, host=1e-3)  # for nothing but communication
    plain, slower = (
        forecast(graph("cnn"), "1x8xt4@pcie-3", profile=replace(waits, links=of)) for of in (Links(), links)
    )
    assert slower.exposed_communication.seconds > 1.2 * plain.exposed_communication.seconds
    assert slower.network == plain.network  # as many bytes


def test_neighbours_slow_what_leaves_a_node() -> None:
    plain = Profile(name="x", device=1e-3, host=1e-3)
    slow = replace(plain, links=Links(neighbours=5.0))
    for on, changes in (("2xh100-sxm", False), ("2x1xh100-sxm", True)):
        plain_s, slower = (forecast(graph("llama"), on, profile=p).step_time.seconds for p in (plain, slow))
        assert (slower > 1.01 * plain_s) is changes


@pytest.mark.parametrize("on", ["h200", "8xh100-sxm", "cpu"])
def test_an_interval_of_a_profile_is_the_forecasts(on: str) -> None:
    found = forecast(graph("cnn"), on, profile=Profile(name="x", fixed_seconds=0.1, intervals=Intervals(width=0.2)))
    step = found.step_time
    assert step.low is not None
    assert step.high is not None
    assert step.high / step.seconds == pytest.approx(step.seconds / step.low) == pytest.approx(math.exp(0.2))
    assert any(caveat.code == "calibrated-by-profile" for caveat in found.caveats)


def test_memory_factors_scale_what_is_allocated() -> None:
    plain = forecast(graph("cnn"), "h200").memory
    more = forecast(graph("cnn"), "h200", profile=Profile(name="x", memory=MemoryFactors(allocated=2.0))).memory
    assert more.allocated == pytest.approx(2 * plain.allocated, rel=1e-6)
    assert sum(asdict(more.breakdown).values()) == more.allocated <= more.reserved
    assert more.total == more.reserved + more.context + more.communicator
    huge = forecast(graph("cnn"), "h200", profile=Profile(name="x", memory=MemoryFactors(allocated=1e6))).memory
    assert not huge.fits


def test_a_host_factor_is_hidden_behind_a_busy_device() -> None:
    busy = Profile(name="busy", device=1e3)
    plain = forecast(graph("cnn"), "h200", profile=busy).step_time.seconds
    slower = forecast(graph("cnn"), "h200", profile=replace(busy, host=2.0)).step_time.seconds
    assert slower < 1.02 * plain


def test_scale_takes_a_profile() -> None:
    points = scale(graph("cnn"), "h100-sxm", up_to=2, profile=FITTED)
    assert {point.forecast.profile for point in points} == {"lab"}


def test_a_profile_of_another_device_says_so_and_gives_no_interval() -> None:
    profile = Profile(name="lab", device=1.5, intervals=Intervals(width=0.05), purpose=Purpose(device="A100-40G-SXM"))
    own = forecast(graph("llama"), "a100-40g-sxm", model="roofline", profile=profile)
    other = forecast(graph("llama"), "h100-sxm", model="roofline", profile=profile)
    codes = [{c.code for c in f.caveats} for f in (own, other)]
    assert "profile-of-other-devices" not in codes[0]
    assert "calibrated-by-profile" in codes[0]
    assert "profile-of-other-devices" in codes[1]
    assert "calibrated-by-profile" not in codes[1]
    assert other.step_time.low is None
