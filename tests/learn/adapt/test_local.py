"""Steps measured on this machine for a profile, with an instrument that stands in for the real one; and the verbs."""

from __future__ import annotations

import io
import json
import tempfile
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import foretell
from foretell import cli
from foretell.campaign.executor import LocalExecutor
from foretell.errors import CatalogError, InputError
from foretell.learn.adapt import local
from foretell.learn.adapt.local import measure_here
from foretell.learn.adapt.pool import usual_points
from foretell.measure import this_cpu
from foretell.measure.host_speed import HostSpeed
from foretell.measure.record import Point
from foretell.profile import Card
from foretell.report.profiles import profile_table
from foretell.store.store import Store

from ...parallel.models import graph

ROOT = Path(__file__).parents[3]
SMALL = ROOT / "tests" / "measure" / "small.py"
POINTS = [Point(source=f"{SMALL}:perceptron", settings={"width": str(width)}) for width in (32, 64, 96, 128)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a folder of its own, with workers that start at once; what they measured is in the log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("FORETELL_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.delenv("FORETELL_STORE", raising=False)
    monkeypatch.setattr(local, "LocalExecutor", partial(LocalExecutor, instrument="tests.measure.stand_in"))
    return tmp_path / "log"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "120"})


def test_what_was_measured_is_not_measured_again(log: Path) -> None:
    store = Store("measurements")
    first = measure_here(POINTS, "cpu", store, place="cpu", runs=3)
    assert len(first) == 3
    assert len(log.read_text().splitlines()) == 6
    more = measure_here(POINTS, "cpu", store, place="cpu", runs=4)
    assert len(more) == 4
    assert len(log.read_text().splitlines()) == 8, "three were in the store"


def test_too_few_candidates_are_an_error(log: Path) -> None:
    with pytest.raises(InputError, match="2 steps can be captured"):
        measure_here(POINTS[:2], "cpu", Store("measurements"), place="cpu")


def test_the_verb_measures_fits_and_saves(log: Path) -> None:
    made = call(
        "adapt",
        f"{SMALL}:perceptron",
        "--set",
        "width=32,64,128",
        "--device",
        "cpu",
        "--runs",
        3,
        "--save",
        "lab",
        "--json",
    )
    assert made.exit_code == 0, made.output
    answer = json.loads(made.stdout)
    assert answer["card"]["rows"] == 3
    assert answer["for"]["device"] == "cpu"
    assert Path(answer["file"]).parent == log.parent / "profiles"
    listed = call("profiles")
    assert "lab" in listed.stdout
    assert "cpu" in listed.stdout
    assert foretell.Profile.load("lab").intervals.width is not None


def test_the_verb_reads_step_times(log: Path) -> None:
    for name in ("cnn", "llama"):
        graph(name).save(f"{name}.graph")
    rows = [f"{name}.graph,{on},{0.01 * scale}" for name in ("cnn", "llama") for on, scale in (("t4", 1), ("l4", 2))]
    Path("steps.csv").write_text("\n".join(["source,cluster,seconds", *rows]))
    made = call("adapt", "--from", "steps.csv", "--save", "here.toml", "--trainer", "ours")
    assert made.exit_code == 0, made.output
    assert "Use it with" in made.stderr
    found = foretell.Profile.load("here.toml")
    assert (found.name, found.purpose.trainer, found.card.rows) == ("here", "ours", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "what shall forecasts fit"),
        (("--from", "steps.csv", "--runs", "3"), "Give one or the other"),
        (("--device", "nosuch"), "no device 'nosuch'"),
        (("--device", "cpu", "--budget", "0s"), "leaves no time"),
    ],
)
def test_slips(log: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = call("adapt", "--save", "x", *arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr


def test_there_are_no_profiles(log: Path) -> None:
    assert "There are no profiles" in call("profiles").stderr
    assert json.loads(call("profiles", "--json").stdout) == []


def test_this_cpu_becomes_a_device(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = HostSpeed(op_seconds=2e-5, low=1e-5, high=3e-5, ops=10, cpu="some")
    monkeypatch.setattr(this_cpu, "host_speed", lambda device: speed)
    monkeypatch.setattr(this_cpu, "_TIMES", 1)
    this_cpu.describe_this_cpu("my-box")
    device = foretell.device("my-box")
    assert device.kind == "cpu"
    assert device.peaks["fp32"] > 1e6
    assert foretell.host(device.host).op_seconds == pytest.approx(2e-5)
    assert foretell.forecast(graph("cnn"), "my-box").step_time.seconds > 0
    assert {p.settings["precision"] for p in usual_points(device)} == {"fp32"}
    with pytest.raises(CatalogError, match="lower-case"):
        this_cpu.describe_this_cpu("../x")


def test_a_cpu_waits_for_its_ops() -> None:
    """Host and device are the same cores: their times add up."""
    found = foretell.forecast(graph("cnn"), "cpu")
    assert found.step_time.seconds == pytest.approx(found.device_time.seconds + found.host_time.seconds, rel=0.02)


def test_a_table_of_profiles_shows_the_last_levels() -> None:
    from rich.console import Console

    made = foretell.Profile(name="lab", card=Card(form="device, host, kinds, families"))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(profile_table([made, foretell.Profile(name="plain")]))
    text = console.export_text()
    assert "… kinds, families" in text
    assert "host" not in text
