"""Pages for people: forms, a forecast's report, hardware, with names from strangers in them. test_browser.py has the real one."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from foretell.hardware import Cluster
from foretell.serve.access.keys import make_key
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Audit
from foretell.serve.listener.pages.cluster_drawing import drawing
from tests.serve.conftest import Open


def renamed(graph_file: bytes, name: str) -> bytes:
    """The same graph under a name of a stranger's choice."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(graph_file)) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            if member == "header.json":
                data = json.dumps(json.loads(data) | {"name": name}).encode()
            new.writestr(member, data)
    return changed.getvalue()


def test_a_history_leads_to_reports(client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Ask for a forecast" in client.get("/history").text
    graph = client.post("/v1/graphs", content=renamed(graph_file, "<script>alert(1)</script>")).json()["hash"]
    answer = client.post("/v1/forecasts", json={"graph": graph, "on": "h200"})
    seconds = answer.json()["step_time"]["seconds"]
    client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 2 * seconds})
    page = client.get("/history")
    assert "<script>" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "−50" in page.text
    address = f"/forecasts/{answer.headers['foretell-forecast']}"
    assert address in page.text
    report = client.get(address)
    assert report.status_code == 200
    assert "<svg" in report.text
    for each in (
        page,
        report,
        client.get("/accuracy"),
        client.get("/"),
        client.get("/planner"),
        client.get("/devices"),
    ):
        assert "<script>" not in each.text
        assert "style=" not in each.text
        assert "unsafe" not in each.headers["content-security-policy"]
        assert "form-action 'self'" in each.headers["content-security-policy"]
    part = client.get(f"{address}/timeline", params={"begin": 0.25, "end": 0.5}).text
    assert part.startswith("<p class=")
    assert 'data-begin="0.250000000"' in part
    assert client.get(f"{address}/timeline", params={"begin": 0.5, "end": 0.5}).status_code == 422
    assert client.get(f"/forecasts/{'0' * 32}").status_code == 404
    monkeypatch.setattr("foretell.engine.engine_digest", lambda: "another")  # which would answer otherwise
    outdated = client.get(address)
    assert (outdated.status_code, "Forecast it again" in outdated.text) == (409, True)


def test_pages_are_of_one_team(open_service: Open, graph_file: bytes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/teams.sqlite"
    database = Database(url)
    keys = {team: make_key(database, team, "member") for team in ("one", "other")}
    one, other = (open_service(url, key) for key in keys.values())
    graph = one.post("/v1/graphs", content=graph_file).json()["hash"]
    id = one.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).headers["foretell-forecast"]
    assert other.get(f"/forecasts/{id}").status_code == 404
    assert other.get(f"/forecasts/{id}/timeline?begin=0&end=1").status_code == 404
    assert id not in other.get("/history").text
    assert graph not in other.get("/").text
    assert one.get("/history", headers={"Authorization": ""}).status_code == 401
    assert "Add hardware" not in one.get("/devices").text
    assert one.post("/devices", data={"name": "mine"}).status_code == 403


def test_a_person_signs_in(open_service: Open, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/teams.sqlite"
    key = make_key(Database(url), "one", "member")
    browser = open_service(url)
    browser.headers["accept"] = "text/html"
    first = browser.get("/")
    assert (first.status_code, 'action="/signin"' in first.text) == (401, True)
    assert browser.post("/signin", data={"key": "ftl_no"}).status_code == 401
    signed = browser.post("/signin", data={"key": key}, follow_redirects=False)
    assert all(said in signed.headers["set-cookie"] for said in ("HttpOnly", "SameSite=strict"))
    browser.cookies.set("foretell_key", key)
    assert "What will it take?" in browser.get("/").text
    assert ">one</span>" in browser.get("/history").text, "whose data this is"
    other_site = browser.post("/ask", data={}, headers={"Origin": "http://elsewhere.example"})
    assert other_site.status_code == 403
    service = browser.app.state.service  # type: ignore[attr-defined]
    service.audit.flush()
    with service.database.reading() as session:
        written = [(row.what, row.status, row.key_id) for row in session.scalars(select(Audit).order_by(Audit.id))]
    assert ("POST /signin", 401, None) in written
    left = browser.post("/signout", follow_redirects=False)
    assert left.status_code == 303
    assert all(said in left.headers["set-cookie"] for said in ('foretell_key=""', "Max-Age=0", "HttpOnly"))
    assert ("GET /", 200, key.split("_")[1]) in written


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        ("/ask?graph=1&on=h200", "/ask?graph=1&on=h200"), ("//evil.example", "/"), ("/\\evil.example", "/"),
        ("https://evil.example", "/"), ("", "/"), ("/a\r\nb", "/"),
    ],
)  # fmt: skip
def test_signing_in_leads_on_to_what_was_asked_for(open_service: Open, tmp_path: Path, asked: str, then: str) -> None:
    """A link that somebody shared; and to no other site."""
    url = f"sqlite:///{tmp_path}/teams.sqlite"
    key = make_key(Database(url), "one", "member")
    browser = open_service(url)
    signed = browser.post("/signin", data={"key": key, "then": asked}, follow_redirects=False)
    assert (signed.status_code, signed.headers["location"]) == (303, then)
    if asked == then:
        page = browser.get(asked, headers={"Accept": "text/html", "Cookie": ""})
        assert 'name="then" value="/ask?graph=1&amp;on=h200"' in page.text


def test_long_work_is_cancelled_and_begun_again(client: TestClient, graph_file: bytes) -> None:
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    asked = {"way": "kept", "graph": graph, "samples": "1e6", "term": "spot", "gpus": ["h100-sxm"], "max_devices": "2"}
    wait = client.post("/planner", data=asked)
    assert "It waits for its turn" in wait.text
    job = wait.url.path
    assert "was cancelled" in client.post(f"{job}/cancel").text
    assert "It waits for its turn" in client.post(f"{job}/resume").text
    refused = client.post("/planner", data=asked | {"region": "atlantis"})
    assert (refused.status_code, "no spot price in atlantis" in refused.text) == (422, True)
    assert 'value="atlantis"' in refused.text, "what was written is still there"


@pytest.mark.parametrize(
    ("on", "devices", "said"), [("h200", 1, ""), ("4x8xh100-sxm", 32, ""), ("64x8xh100-sxm", 56, "57 nodes more")]
)
def test_a_cluster_is_drawn(on: str, devices: int, said: str) -> None:
    drawn = drawing(Cluster.parse(on))
    assert drawn.count('class="device"') == 2 * devices, "for a desk and for a phone"
    assert said in drawn


def test_mistakes_are_said_above_the_form(client: TestClient, graph_file: bytes) -> None:
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    for asked, said in (
        ({"graph": graph, "on": "8xh1000"}, "no device"),
        ({"graph": graph, "on": "8xh100-sxm", "plan": "dp=3"}, "needs dp"),
        ({"graph": "0" * 64, "on": "h200"}, "there is no graph"),
        ({"graph": "x", "on": "h200"}, "no hash of a graph"),
    ):
        answer = client.get("/ask", params=asked)
        assert answer.status_code in (404, 422)
        assert said in answer.text.lower()
        assert "What will it take?" in answer.text
    for form, said in (
        ({"way": "named"}, "no network was named"),
        ({"way": "named", "source": "../../etc/passwd"}, "names no network"),
        ({"way": "named", "source": "torchvision/resnet50", "batch": "many"}, "no number"),
        ({"way": "named", "source": "torchvision/resnet50", "batch": "nan"}, "no number"),
        ({"way": "named", "source": "torchvision/resnet50", "batch": "1e999"}, "no number"),
        ({"way": "kept", "graph": "0" * 64, "count": "inf"}, "no number"),
        ({"way": "file"}, "no file was chosen"),
    ):
        answer = client.post("/ask", data=form)
        assert (answer.status_code, said in answer.text.lower()) == (422, True), answer.text
    assert "torchvision/resnet50" in client.get("/names?source=resnet50").text  # at once, before libraries are loaded
    assert client.get("/static/../app.py").status_code == 404
    html = client.get("/nowhere", headers={"Accept": "text/html"})
    assert (html.status_code, "There is no such thing here" in html.text) == (404, True)


def test_hardware_is_added(client: TestClient) -> None:
    fields = {
        "name": "new-gpu", "title": 'A "new" GPU', "vendor": "Us", "architecture": "Ada", "size": "48 GiB", "bandwidth": "864 GB/s",
        "l2": "96 MiB", "fp32": "91.6 TFLOP/s", "bf16": "362 TFLOP/s", "units": "142", "clock": "2520", "watts": "350", "node": "8",
        "source": "a datasheet", "inside": "pcie-4-host", "between": "eth-100g", "host": "epyc-genoa",
    }  # fmt: skip
    wrong = client.post("/devices", data=fields | {"size": "lots"})
    assert wrong.status_code == 422
    assert "memory.size" in wrong.text
    assert tempfile.gettempdir() not in wrong.text
    for name in ("../evil", "h200", "UPPER"):
        assert client.post("/devices", data=fields | {"name": name}).status_code == 422
    assert "A &quot;new&quot; GPU" in client.post("/devices", data=fields).text
    assert "new-gpu" in {device["name"] for device in client.get("/v1/devices").json()}
    assert client.post("/devices", data=fields).status_code == 422


def test_the_picture_of_a_node_of_thousands_is_small() -> None:
    """It once spun a thread for minutes."""
    drawn = drawing(Cluster.parse("1x100000xh100-sxm"))
    assert len(drawn) < 100_000
    assert "100000 devices" in drawn
