"""Graphs go in, forecasts come out: the same as `foretell.forecast` gives, kept, found again, and refused in words."""

from __future__ import annotations

import io
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

import foretell
from foretell import Graph
from foretell.profile import Profile, Residuals
from foretell.serve.database.connect import now
from foretell.serve.database.tables import StoredForecast, StoredProfile
from foretell.serve.inference_engine import InferenceEngine
from foretell.serve.problems import Problem
from foretell.serve.requests import ForecastRequest
from foretell.serve.settings import Settings
from foretell.serve.worker import pack
from foretell.supervisor import Child
from tests.fuzz.targets import graph as graph_target
from tests.serve.conftest import Open


def send(client: TestClient, graph_file: bytes) -> str:
    answer = client.post("/v1/graphs", content=graph_file)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["hash"]
    return found


def test_an_answer_is_exactly_that_of_the_library(open_service: Open, database_url: str, graph_file: bytes) -> None:
    client = open_service(database_url)
    graph = Graph.from_bytes(graph_file)
    asked = {
        "graph": send(client, graph_file),
        "on": "2xh100-sxm",
        "plan": "dp=2",
        "conditions": {"jitter": 0.01, "host": "epyc-turin", "software": "torch-1.13"},
    }
    answer = client.post("/v1/forecasts", json=asked)
    assert asked["graph"] == graph.content_hash
    expected = foretell.forecast(
        graph,
        "2xh100-sxm",
        "dp=2",
        conditions=foretell.Conditions(jitter=0.01, host="epyc-turin", software="torch-1.13"),
    )
    assert answer.json() == json.loads(expected.to_json())


def test_an_answer_is_found_again_after_a_restart(open_service: Open, database_url: str, graph_file: bytes) -> None:
    client = open_service(database_url)
    asked = {"graph": send(client, graph_file), "on": "h200", "job": {"samples": 1e6}}
    first, second = (client.post("/v1/forecasts", json=asked) for _ in range(2))
    third = open_service(database_url).post("/v1/forecasts", json=asked)
    assert [a.headers["foretell-cache"] for a in (first, second, third)] == ["miss", "hit", "miss"]
    assert len({a.headers["foretell-forecast"] for a in (first, second, third)}) == 1
    assert first.content == second.content == third.content
    listed = client.get("/v1/forecasts").json()
    assert [(each["cluster"], each["plan"]) for each in listed] == [("h200", "dp=1")]
    assert client.get(f"/v1/forecasts/{listed[0]['id']}").content == first.content


def test_a_cluster_is_read_once_for_each_state_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new question looks at its cluster four times: to check it, to name the answer here and in the worker, to price it."""
    question = ForecastRequest(graph="0" * 64, on="24x8xh100-sxm")
    first = question.arguments(None)["on"]
    assert question.arguments(None)["on"] is first
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "my-gpu.toml").write_text("")
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    assert question.arguments(None)["on"] is not first


def test_arrays_of_a_profile_that_were_fitted_again_name_another_answer(tmp_path: Path) -> None:
    """They lie beside it under a name that the profile says, which need not be its own."""
    arrays = Residuals(columns=("a",), scales=(1.0,), points=((0.0,),), weights=(0.5,))
    path = Profile(name="first", residuals=arrays).save(tmp_path / "first.toml").rename(tmp_path / "ours.toml")
    question = ForecastRequest(graph="0" * 64, on="h200", profile="ours")
    before = question.key(path)
    replace(arrays, weights=(0.25,)).save(tmp_path / "first.safetensors")
    assert question.key(path) != before


def test_a_worker_with_other_files_keeps_no_answer(
    client: TestClient, graph_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prices by is not what the question was named by: the catalog is another one there."""
    question = {"graph": send(client, graph_file), "on": "l40s"}
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "ours.toml").write_text("")
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))  # of this process, not of its workers
    answer = client.post("/v1/forecasts", json=question)
    assert answer.status_code == 503
    assert "changed while this was priced" in answer.json()["what"]
    assert client.get("/v1/forecasts").json() == []


@pytest.mark.parametrize("on", ["262144x1xh100-sxm", "1048576xh100-sxm", "20000x4xt4", "9000xt4+" * 50 + "t4"])
def test_a_question_is_bounded_before_it_is_read(client: TestClient, on: str) -> None:
    answer = client.post("/v1/forecasts", json={"graph": "0" * 64, "on": on})
    assert answer.status_code == 422
    assert "a cluster has at most" in answer.json()["what"]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 4000, "9" * 5000])
def test_a_number_that_json_cannot_answer_with_is_refused(client: TestClient, number: str) -> None:
    """What was given is part of the answer, which once was a crash of its own."""
    body = '{"graph": "' + "0" * 64 + '", "on": "h200", "conditions": {"loader": ' + number + "}}"
    answer = client.post("/v1/forecasts", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["next"]


def test_a_question_without_a_length_is_cut_off_where_it_is_too_long(client: TestClient) -> None:
    chunks = (b" " * 1000 for _ in range(1000))
    answer = client.post("/v1/forecasts", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_a_body_that_never_ends_is_given_up(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.serve.access.guard.PATIENCE", 0.0)
    answer = client.post("/v1/forecasts", json={"graph": "0" * 64, "on": "h200"})
    assert answer.status_code == 408


def test_a_profile_that_was_fitted_again_answers_anew(client: TestClient, graph_file: bytes) -> None:
    """Though the question is the same in every word."""
    service = client.app.state.service  # type: ignore[attr-defined]
    question = {"graph": send(client, graph_file), "on": "h200", "profile": "ours"}
    seconds = []
    for factor in (1.0, 4.0):
        row = {"name": "ours", "device": "h200", "steps": 3, "created": now(), "arrays": None}
        text = f"version = 1\n[factors]\ndevice = {factor}\nhost = {factor}\n"
        with service.database.writing() as session:
            session.merge(StoredProfile(team_id=service.local.team, text=text, **row))
        answers = [client.post("/v1/forecasts", json=question) for _ in range(2)]
        assert [answer.headers["foretell-cache"] for answer in answers] == ["miss", "hit"]
        seconds.append(answers[1].json()["step_time"]["seconds"])
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=0.1)


def test_another_engine_answers_anew(open_service: Open, graph_file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of its version: an upgraded service has the answers of the one before in its database."""
    client = open_service()
    question = {"graph": send(client, graph_file), "on": "h200"}
    first = client.post("/v1/forecasts", json=question)
    with monkeypatch.context() as before:
        before.setattr("foretell.engine.engine_digest", lambda *rooms: "another")
        key = ForecastRequest(**question).key(None)
        assert client.post("/v1/forecasts", json=question).status_code == 503  # its workers are of this one
    with client.app.state.service.database.writing() as session:  # type: ignore[attr-defined]
        session.execute(update(StoredForecast).values(key=key))
    upgraded = open_service()
    again, at_hand = (upgraded.post("/v1/forecasts", json=question) for _ in range(2))
    found = [answer.headers["foretell-forecast"] for answer in (first, again, at_hand)]
    assert found[0] != found[1] == found[2]


def test_the_same_question_at_once_is_priced_once(client: TestClient, graph_file: bytes) -> None:
    asked = {"graph": send(client, graph_file), "on": "a100-80g-sxm"}
    with client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post("/v1/forecasts", json=asked), range(8)))
    assert len({a.headers["foretell-forecast"] for a in answers}) == 1


@pytest.mark.parametrize(
    ("change", "what", "got"),
    [
        ({"on": "8xh1000"}, "h1000", "8xh1000"),
        ({"on": "8xh100-sxm", "plan": "dp=4"}, "needs dp", "dp=4"),
        ({"model": "/etc"}, "no model", "/etc"),
        ({"profile": "../../etc/passwd"}, "no profile", "../../etc/passwd"),
        ({"conditions": {"jitter": 2.0}}, "jitter", None),
        ({"job": {}}, "samples or its tokens", None),
        ({"source": "evil.py:run"}, "source", "evil.py:run"),
        ({"on": 8}, "on", 8),
        ({"graph": "../graph"}, "graph", "../graph"),
    ],
)
def test_a_wrong_question_is_refused_in_words(
    client: TestClient, graph_file: bytes, change: dict[str, Any], what: str, got: Any
) -> None:
    asked = {"graph": send(client, graph_file), "on": "h200"} | change
    answer = client.post("/v1/forecasts", json=asked)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert what in problem["what"]
    assert problem["next"]
    if got is not None:
        assert problem["got"] == got


def test_what_is_not_there(client: TestClient) -> None:
    unknown = "0" * 64
    for answer in (
        client.post("/v1/forecasts", json={"graph": unknown, "on": "h200"}),
        client.get(f"/v1/graphs/{unknown}"),
        client.get(f"/v1/forecasts/{unknown[:32]}"),
        client.get("/nosuch"),
    ):
        assert answer.status_code == 404
        assert answer.json()["status"] == 404
    assert client.put("/v1/graphs").status_code == 405


def test_malformed_graphs_are_refused_and_the_service_goes_on(client: TestClient, graph_file: bytes) -> None:
    """The fuzzer's own mutations; `make fuzz` makes twenty thousand of them against the same reader."""
    rng = random.Random(21)
    statuses = {client.post("/v1/graphs", content=graph_target.make(rng)).status_code for _ in range(60)}
    assert statuses <= {201, 422}
    assert 422 in statuses
    refused = client.post("/v1/graphs", content=graph_file[:-100])
    assert refused.status_code == 422
    assert "not a whole Foretell graph file" in refused.json()["what"]
    assert send(client, graph_file)


def test_a_body_is_only_so_large(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.post("/v1/forecasts", content=b"[" * 300_000).status_code == 413
    monkeypatch.setenv("FORETELL_LIMITS", "1e-4")  # 6.7 kB of a graph
    assert client.post("/v1/graphs", content=b"x" * 10_000).status_code == 413
    chunks = (b"x" * 1000 for _ in range(10))
    assert client.post("/v1/graphs", content=chunks).status_code == 413
    assert client.post("/v1/forecasts", content=b"[" * 200_000).status_code == 422


def test_measured_steps_stand_beside_what_was_forecast(
    open_service: Open, database_url: str, graph_file: bytes
) -> None:
    client = open_service(database_url)
    graph = send(client, graph_file)
    before = client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 0.5}).json()
    assert (before["predicted"], before["error"]) == (None, None)
    predicted = client.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).json()["step_time"]["seconds"]
    after = client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 2 * predicted})
    assert after.status_code == 201
    assert after.json()["predicted"] == predicted
    assert after.json()["error"] == pytest.approx(-0.5)
    assert [row["seconds"] for row in client.get("/v1/measurements").json()] == [2 * predicted, 0.5]
    refused = client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": -1.0})
    assert refused.status_code == 422


def test_what_a_question_can_name_is_listed(client: TestClient) -> None:
    assert {"h200", "h100-sxm"} <= {device["name"] for device in client.get("/v1/devices").json()}
    models = client.get("/v1/models").json()
    assert [model["device"] for model in models if model["default"]] == ["h200"]
    assert client.get("/v1/profiles").json() == []


def test_the_service_says_how_it_is(client: TestClient, graph_file: bytes) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    send(client, graph_file)
    text = client.get("/metrics").text
    assert 'foretell_requests_total{method="POST",path="/v1/graphs",status="201"} 1.0' in text
    client.get("/nosuch/1")
    client.get("/nosuch/2")
    assert 'path="/?",status="404"} 2.0' in client.get("/metrics").text


def test_every_address_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert {"/v1/graphs", "/v1/forecasts", "/v1/measurements", "/v1/devices", "/v1/models", "/v1/profiles"} <= set(
        described["paths"]
    )
    assert described["components"]["schemas"]["ForecastRequest"]["examples"]


def test_a_question_that_takes_too_long_is_stopped(graph_file: bytes) -> None:
    """And the next one finds a new worker."""

    def hangs(link: Connection) -> None:
        link.send_bytes(b"ready")
        link.recv_bytes()
        while True:
            pass

    def answers(link: Connection) -> None:
        link.send_bytes(b"ready")
        link.recv_bytes()
        link.send_bytes(pack({"ops": 7}))

    serves = [hangs, answers]
    engine = InferenceEngine(Settings(workers=1, seconds=0.5), lambda: Child.forked(serves.pop(0)))
    try:
        with pytest.raises(Problem, match="longer than"):
            engine.read(graph_file)
        assert engine.read(graph_file) == {"ops": 7}
    finally:
        engine.close()


def test_too_many_at_once_are_sent_away(client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "_pending", 64)
    answer = client.post("/v1/graphs", content=io.BytesIO(graph_file).getvalue())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
