"""Pages for people: the history and a forecast's report, with names from strangers in them, in a real browser too."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from foretell.serve.access.keys import make_key
from foretell.serve.database.connect import Database
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
    assert "Ask for a forecast" in client.get("/").text
    graph = client.post("/v1/graphs", content=renamed(graph_file, "<script>alert(1)</script>")).json()["hash"]
    answer = client.post("/v1/forecasts", json={"graph": graph, "on": "h200"})
    seconds = answer.json()["step_time"]["seconds"]
    client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": 2 * seconds})
    page = client.get("/")
    assert "<script" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "−50" in page.text
    address = f"/forecasts/{answer.headers['foretell-forecast']}"
    assert address in page.text
    report = client.get(address)
    assert report.status_code == 200
    assert "<svg" in report.text
    for each in (page, report):
        assert "<script" not in each.text
        assert "script-src 'none'" in each.headers["content-security-policy"]
        assert "form-action 'self'" in each.headers["content-security-policy"]
    assert client.get(f"/forecasts/{'0' * 32}").status_code == 404
    monkeypatch.setattr("foretell.serve.questions.__version__", "9.9")  # another version would answer otherwise
    assert client.get(address).status_code == 409


def test_pages_are_of_one_team(open_service: Open, graph_file: bytes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/teams.sqlite"
    database = Database(url)
    one, other = (open_service(url, make_key(database, team, "member")) for team in ("one", "other"))
    graph = one.post("/v1/graphs", content=graph_file).json()["hash"]
    id = one.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).headers["foretell-forecast"]
    assert other.get(f"/forecasts/{id}").status_code == 404
    assert id not in other.get("/").text
    assert one.get("/", headers={"Authorization": ""}).status_code == 401


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_a_browser_draws_the_history(client: TestClient, graph_file: bytes, tmp_path: Path) -> None:
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    client.post("/v1/forecasts", json={"graph": graph, "on": "8xh100-sxm"})
    (tmp_path / "page.html").write_text(client.get("/").text)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    drawn = subprocess.run(
        [*command, "--dump-dom", str(tmp_path / "page.html")], capture_output=True, text=True, timeout=120
    )
    assert "8xh100-sxm" in drawn.stdout
