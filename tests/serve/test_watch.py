"""A watched job tells a service what its steps took."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError
from foretell.serve.client import Client
from foretell.store.lines import RecordFile
from tests.watching.jobs import forecast, loader, train


def test_a_job_posts_its_steps(address: str, tmp_path: Path) -> None:
    with foretell.watch(forecast(), every=0, store=tmp_path / "kept.jsonl", server=address) as watch:
        train(watch.over(loader()))
    kept = [row.step_seconds for row in RecordFile(tmp_path / "kept.jsonl").steps()]
    with Client(address) as client:
        posted = client.measurements()
        assert len(client.graphs()) == len(client.forecasts()) == 1
    assert sorted(row["seconds"] for row in posted) == sorted(kept)
    assert {row["graph"] for row in posted} == {forecast().graph.content_hash}
    assert {row["predicted"] for row in posted} == {forecast().step_time.seconds}


def test_a_service_that_is_not_there_stops_no_job(tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match="posts no more") as said,
        foretell.watch(forecast(), every=0, store=tmp_path / "kept.jsonl", server="http://127.0.0.1:9") as watch,
    ):
        train(watch.over(loader()))
    assert len(said) == 1
    assert list(RecordFile(tmp_path / "kept.jsonl").steps())
    with pytest.raises(InputError, match="address of a service"):
        foretell.watch(forecast(), server="file:///etc/passwd")
