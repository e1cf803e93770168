"""Published systems that were fitted, asked of a service beside Foretell's own engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell import InputError
from foretell.graph import Graph
from foretell.methods import DNNAbacus, Ernest, made_up, query_of, save
from foretell.serve.access.keys import make_key
from foretell.serve.client import Client
from foretell.serve.database.connect import Database
from tests.serve.conftest import BASES, Open, listening


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two methods in folders of their own, fitted on the same examples."""
    place, examples = tmp_path_factory.mktemp("fitted"), made_up()
    return {
        name: save(method.fit(examples), place / name) for name, method in (("matrix", DNNAbacus()), ("law", Ernest()))
    }


def named(fitted: dict[str, Path]) -> str:
    return ":".join(str(folder) for folder in fitted.values())


def test_a_fitted_method_answers_as_in_python(
    open_service: Open, fitted: dict[str, Path], graph_file: bytes, tmp_path: Path
) -> None:
    client = open_service(methods=named(fitted))
    listed = client.get("/v1/methods").json()
    assert [(each["name"], each["method"]) for each in listed] == [("matrix", "DNNAbacus"), ("law", "Ernest")]
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    question = {"graph": graph, "on": "2xh100-sxm", "plan": "dp=2"}
    found = client.post("/v1/methods/matrix/predictions", json=question)
    assert found.status_code == 200, found.text
    [expected] = DNNAbacus().fit(made_up()).predict([query_of(Graph.from_bytes(graph_file), "2xh100-sxm", "dp=2")])
    assert found.json()["values"] == pytest.approx(expected.values)
    law = client.post("/v1/methods/law/predictions", json=question).json()
    assert law["values"] == {}
    assert law["why"]  # Ernest knows workloads that it was fitted on, and none like it


def test_a_method_that_was_fitted_anew_answers_anew(open_service: Open, graph_file: bytes, tmp_path: Path) -> None:
    examples = made_up()
    folder = save(DNNAbacus().fit(examples), tmp_path / "ours")
    client = open_service(methods=str(folder))
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    question = {"graph": graph, "on": "h100-sxm"}
    before = client.post("/v1/methods/ours/predictions", json=question).json()["values"]["step_time"]
    save(DNNAbacus().fit(examples[: len(examples) // 2]), folder)
    after = client.post("/v1/methods/ours/predictions", json=question).json()["values"]["step_time"]
    assert before != after


def test_what_cannot_be_asked_is_said(
    open_service: Open, fitted: dict[str, Path], graph_file: bytes, database_url: str
) -> None:
    database = Database(database_url)
    ours, others = (
        open_service(database_url, make_key(database, team, "member"), methods=named(fitted)) for team in ("a", "b")
    )
    graph = ours.post("/v1/graphs", content=graph_file).json()["hash"]
    question = {"graph": graph, "on": "h100-sxm"}
    unknown = ours.post("/v1/methods/matrx/predictions", json=question)
    assert unknown.status_code == 404
    assert "matrix" in unknown.json()["what"]
    assert others.post("/v1/methods/matrix/predictions", json=question).status_code == 404  # another team's graph
    assert ours.post("/v1/methods/matrix/predictions", json=question | {"plan": "dp=3"}).status_code == 422
    assert open_service(database_url, make_key(database, "a", "member")).get("/v1/methods").json() == []


def test_folders_are_looked_at_when_the_service_starts(open_service: Open, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no fitted method"):
        open_service(methods=str(tmp_path))
    twice = [save(Ernest().fit(made_up()), tmp_path / parent / "same") for parent in ("one", "two")]
    with pytest.raises(InputError, match="two fitted methods are called same"):
        open_service(methods=":".join(map(str, twice)))


def test_a_report_shows_methods_beside_the_forecast(
    open_service: Open, fitted: dict[str, Path], graph_file: bytes
) -> None:
    client = open_service(methods=named(fitted))
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    id = client.post("/v1/forecasts", json={"graph": graph, "on": "h100-sxm"}).headers["Foretell-Forecast"]
    assert f'hx-get="/forecasts/{id}/methods"' in client.get(f"/forecasts/{id}").text
    table = client.get(f"/forecasts/{id}/methods", headers={"HX-Request": "true"}).text
    assert table.startswith('<section id="methods">')
    assert "DNNAbacus" in table
    assert "law says nothing" in table
    assert "<html" in client.get(f"/forecasts/{id}/methods").text  # without scripts, a page of its own
    without = open_service()
    assert f"/forecasts/{id}/methods" not in without.get(f"/forecasts/{id}").text


def test_a_client_asks_methods(engine: object, fitted: dict[str, Path], tmp_path: Path) -> None:
    graph = Graph.load(BASES / "cnn.graph")
    with listening(f"sqlite:///{tmp_path}/a.sqlite", engine, methods=named(fitted)) as address, Client(address) as asks:
        assert [each["name"] for each in asks.methods()] == ["matrix", "law"]
        assert asks.predict("matrix", graph, "h100-sxm")["values"]["step_time"] > 0
