"""Profiles fitted on what a store or a record file holds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.learn.adapt.kept import kept_collectives, kept_steps
from foretell.measure.instrument import measure
from foretell.measure.record import Point, Record, StepRow
from foretell.profile import Profile
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from foretell.watching.expected import expect_forecast
from tests.watching.jobs import forecast

SMALL = Path(__file__).parents[2] / "measure" / "small.py"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def watched() -> Record:
    expected = expect_forecast(forecast())
    return Record(step=StepRow(**expected.columns, step_seconds=0.1), graph=expected.graph)


def all_reduce(nbytes: int, seconds: float) -> Record:
    settings = {"bytes": str(nbytes), "ranks": "16", "stride": "1", "groups": "1"}
    point = Point(source="all-reduce", settings=settings, kind="collective")
    return Record(step=StepRow(**point.columns, cluster="2x8xh100-sxm", step_seconds=seconds))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["store", "file.jsonl"])
def test_a_watched_workload_without_a_file_comes_with_its_graph(kind: str, tmp_path: Path) -> None:
    place = tmp_path / kind
    (RecordFile(place) if place.suffix else Store(place)).append([watched()])
    [step] = kept_steps(place)
    assert isinstance(step.workload, Graph)
    assert step.workload.content_hash == forecast().graph.content_hash
    assert (step.on, step.seconds) == ("cpu", 0.1)


@pytest.mark.parametrize("kind", ["store", "file.jsonl"])
def test_a_measured_step_comes_with_the_times_of_its_ops(kind: str, tmp_path: Path) -> None:
    record = measure(Point(source=f"{SMALL}:perceptron", settings={"width": "32"}), device="cpu")
    place = tmp_path / kind
    (RecordFile(place) if place.suffix else Store(place)).append([record])
    [step] = kept_steps(place)
    recorded, asked = step.timed_ops
    assert len(recorded.seconds) == len(recorded.graph.ops)
    assert 0 < sum(filter(None, recorded.seconds)) < 60
    assert {op.module for op in asked.ops} == {op.module for op in recorded.graph.ops}


def test_a_place_without_steps_or_collectives_is_named(tmp_path: Path) -> None:
    place = tmp_path / "file.jsonl"
    with pytest.raises(InputError, match="no record file"):
        kept_steps(place)
    RecordFile(place).append([all_reduce(1024, 1e-4)])
    with pytest.raises(InputError, match="no watched job"):
        kept_steps(place)
    Store(tmp_path / "store").append([watched()])
    with pytest.raises(InputError, match="measure --collectives"):
        kept_collectives(tmp_path / "store")


def test_collectives_are_of_the_cluster_named_or_of_the_ranks_as_they_lay(tmp_path: Path) -> None:
    place = tmp_path / "file.jsonl"
    RecordFile(place).append([all_reduce(1024, 1e-4)])
    assert str(kept_collectives(place)[1]) == "2x8xh100-sxm"
    [time], cluster = kept_collectives(place, "4x8xh100-sxm@eth-25g")
    assert str(cluster) == "4x8xh100-sxm@eth-25g"
    assert (len(time.cluster.nodes), time.cluster.between) == (2, cluster.between)


def test_the_command_fits_links(tmp_path: Path, run_foretell: Run) -> None:
    slow = [all_reduce(4**i, 6e-5 + 4**i / 6e8) for i in range(5, 13)]
    RecordFile(tmp_path / "network.jsonl").append(slow)
    asked = (
        "adapt",
        "--from",
        "network.jsonl",
        "--collectives",
        "--device",
        "2x8xh100-sxm@eth-25g",
        "--save",
        "ours.toml",
    )
    ended = run_foretell(*asked, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    made = Profile.load(tmp_path / "ours.toml")
    assert made.links.bandwidth < 0.5
    assert (made.card.error_after or 1.0) < (made.card.error_before or 0.0)
    assert run_foretell("adapt", "--collectives", "--save", "ours.toml", cwd=tmp_path).returncode == 2
