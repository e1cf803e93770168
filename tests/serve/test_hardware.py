"""Devices of a team's own: nobody else can name them, and all that the team asks can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.hardware.of_a_team import laid_out
from foretell.serve.access.keys import make_key
from foretell.serve.database.connect import Database
from foretell.serve.jobs.worker import made
from foretell.serve.listener.catalog import DeviceRequest
from tests.serve.conftest import Open

EXAMPLE = DeviceRequest.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]
NAME, TOML = "team-gpu", EXAMPLE["toml"]  # type: ignore[index,call-overload]


@pytest.fixture
def teams(open_service: Open, database_url: str, graph_file: bytes):  # type: ignore[no-untyped-def]
    database = Database(database_url)
    one, other = (open_service(database_url, make_key(database, team, "admin")) for team in ("one", "other"))
    answers = [client.post("/v1/graphs", content=graph_file) for client in (one, other)]
    assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
    graph = answers[0].json()["hash"]
    return one, other, graph


def test_a_device_belongs_to_its_team(teams) -> None:  # type: ignore[no-untyped-def]
    one, other, graph = teams
    question = {"graph": graph, "on": f"2x{NAME}"}
    assert one.post("/v1/forecasts", json=question).status_code == 422
    added = one.post("/v1/devices", json={"name": NAME, "toml": TOML})
    assert (added.status_code, added.json()["title"]) == (201, "My GPU")
    answer = one.post("/v1/forecasts", json=question)
    assert answer.json()["cluster"] == f"2x{NAME}"
    id = answer.headers["foretell-forecast"]
    assert f"2x{NAME}" in one.get(f"/forecasts/{id}").text
    assert NAME in {device["name"] for device in one.get("/v1/devices").json()}
    assert "your own, team-gpu" in one.get("/devices").text
    assert '<optgroup label="Your own"><option value="team-gpu"' in one.get("/").text
    assert one.post("/v1/measurements", json=question | {"seconds": 0.1}).status_code == 201
    assert one.get("/v1/check", params={"on": NAME}).status_code == 200
    assert len(one.get("/v1/measurements").json()) == 1

    assert other.post("/v1/forecasts", json=question).status_code == 422
    assert NAME not in {device["name"] for device in other.get("/v1/devices").json()}
    assert NAME not in other.get("/devices").text + other.get("/").text
    assert other.get("/v1/check", params={"on": NAME}).status_code == 422
    assert other.delete(f"/v1/devices/{NAME}").status_code == 404
    assert other.post("/v1/devices", json={"name": NAME, "toml": TOML}).status_code == 201, "a name of each team's own"


def test_a_device_that_is_added_again_is_another(teams) -> None:  # type: ignore[no-untyped-def]
    one, _, graph = teams
    question = {"graph": graph, "on": NAME, "model": "roofline"}
    one.post("/v1/devices", json={"name": NAME, "toml": TOML})
    first = one.post("/v1/forecasts", json=question)
    assert one.post("/v1/forecasts", json=question).headers["foretell-cache"] == "hit"
    assert one.delete(f"/v1/devices/{NAME}").status_code == 204
    assert one.post("/v1/forecasts", json=question).status_code == 422
    one.post("/v1/devices", json={"name": NAME, "toml": TOML.replace("864 GB/s", "86 GB/s")})
    second = one.post("/v1/forecasts", json=question)
    assert second.headers["foretell-cache"] == "miss"
    assert second.json()["device_time"]["seconds"] > 2 * first.json()["device_time"]["seconds"]


def test_long_work_of_the_team_knows_it(teams) -> None:  # type: ignore[no-untyped-def]
    """What a runner takes along is enough for a process without the database."""
    one, _, graph = teams
    one.post("/v1/devices", json={"name": NAME, "toml": TOML})
    asked = {"graph": graph, "on": NAME, "up_to": 2}
    job = one.post("/v1/scales", json=asked)
    assert job.status_code == 202
    service = one.app.state.service
    heads: list[dict[str, object]] = []

    class Stopped(Exception):
        """Before a process is started."""

    class Child:
        def __enter__(self):  # type: ignore[no-untyped-def]
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, message: bytes) -> None:
            heads.append(json.loads(message.partition(b"\n")[0]))
            raise Stopped

    service.jobs._start = Child
    held = service.jobs.queue.claim("here")
    with pytest.raises(Stopped):
        service.jobs._do(held, "here")
    assert heads[0]["devices"] == {NAME: TOML}
    assert made("scale", heads[0]["question"]).on == NAME  # type: ignore[arg-type,attr-defined]


def test_devices_are_checked_and_counted(open_service: Open, tmp_path: Path) -> None:
    client = open_service(f"sqlite:///{tmp_path}/few.sqlite", team_devices=1)
    for name, toml in (("h200", TOML), ("../x", TOML), ("x:y", TOML), (NAME, "title = 1"), (NAME, TOML.replace("142", "-1")),
                       (NAME, TOML.replace("pcie-4", "no-such-link")), (NAME, TOML.replace("size = 8", "size = 1000000000"))):  # fmt: skip
        refused = client.post("/v1/devices", json={"name": name, "toml": toml})
        assert refused.status_code == 422, (name, refused.text)
        assert "/tmp" not in refused.text
    assert client.post("/v1/devices", json={"name": NAME, "toml": TOML}).status_code == 201
    assert client.post("/v1/devices", json={"name": NAME, "toml": TOML}).status_code == 422
    more = client.post("/v1/devices", json={"name": "another", "toml": TOML})
    assert (more.status_code, "1 devices" in more.json()["what"]) == (409, True)


def test_a_folder_of_devices_is_named_by_its_content() -> None:
    one = laid_out({"a": TOML})
    assert one == laid_out({"a": TOML})
    assert one != laid_out({"a": TOML + "\n"})
    assert laid_out({}) is None
