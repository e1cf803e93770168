"""`foretell bench speed` on small data."""

import json
import random
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from foretell_bench.speed import forecasts, service_load, service_soak, store, watching

from foretell import Graph
from foretell.cost.model import load_model


def test_a_store_of_a_few_rows_is_written_merged_and_queried(capsys: pytest.CaptureFixture[str]) -> None:
    store.run(rows=2 * store.OPS_A_STEP, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2 * store.OPS_A_STEP
    assert found["before"]["segments"] > found["after"]["segments"] > 0
    assert {*store.QUERIES, "append", "merge"} <= found["seconds"].keys()
    store.run(rows=1)
    assert "bytes a row, all tables" in capsys.readouterr().out


def test_a_forecast_is_timed() -> None:
    graph = Graph.load(service_soak.BASES / "cnn.graph")
    assert forecasts.best(load_model, graph) > 0


def test_a_watched_loop_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    watching.run(seconds=0.0, every=60.0, width=8)
    shown = capsys.readouterr().out
    assert "inside watch.step()" in shown
    assert "1 windows written" in shown


def test_requests_of_a_soak_are_of_many_kinds() -> None:
    graphs, rng = ["abc"], random.Random(0)
    for way in (service_soak.known, service_soak.new, service_soak.pages, service_soak.long_work):
        method, address, _ = next(way(graphs, rng))
        assert method in ("GET", "POST")
        assert address.startswith("/")
    _, _, what = next(service_soak.malformed(graphs, rng))
    assert isinstance(what["content"], bytes)
    files = list(service_soak.files())
    with zipfile.ZipFile(BytesIO(files[1])) as changed:
        assert json.loads(changed.read("header.json"))["samples"] == 2
    assert service_soak.halves([9, 1, 1, 2, 2]) == ([1, 1], [2, 2])


def test_parts_of_a_file_of_results_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["foretell", "bench", "speed", "load"])
    file = tmp_path / "service.json"
    service_load.save(file, "load", {"requests": 1})
    service_load.save(file, "soak", {"requests": 2})
    found = json.loads(file.read_text())
    assert (found["load"]["requests"], found["soak"]["requests"]) == (1, 2)
    assert found["load"]["command"] == "foretell bench speed load"
