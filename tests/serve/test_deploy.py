"""Files to deploy with: valid by their schemas, and what they say is what the program takes. Backups come back."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from typer.main import get_command

from foretell.cli.serve import app
from foretell.errors import InputError
from foretell.serve.database.backup import back_up, restore
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Base
from foretell.serve.settings import DATABASE, PREFIX, Settings, gathered
from tests.serve.conftest import Open

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VARIABLES = {PREFIX + field.name.upper() for field in fields(Settings)} | {DATABASE, "FORETELL_SERVICE"}


def tool(name: str, *arguments: str | Path) -> None:
    program = Path(sys.executable).parent / name
    if not program.is_file():
        pytest.skip(f"{name} is not installed")
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dockerfile_is_clean_and_copies_what_there_is() -> None:
    tool("hadolint", DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()[:-1])
    assert set(re.findall(r"FORETELL_\w+", text)) <= VARIABLES
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"\.\[([\w,]+)\]", text)
    assert asked is not None
    assert set(asked[1].split(",")) <= set(extras)


def test_compose_and_kubernetes_files_follow_their_schemas() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    tool("kubernetes-validate", DEPLOY / "kubernetes.yaml")
    for name in ("compose.yaml", "kubernetes.yaml"):
        assert set(re.findall(r"FORETELL_\w+", (DEPLOY / name).read_text())) <= VARIABLES
    pods = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if each["kind"] != "Service"]
    for pod in pods:
        container = pod["spec"]["template"]["spec"]["containers"][0]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        if args := container.get("args"):  # the image's program is `foretell serve`
            assert args[0] in {"key", "keys", "revoke", "backup", "restore"}


def test_the_unit_starts_what_there_is(tmp_path: Path) -> None:
    text = (DEPLOY / "foretell.service").read_text()
    started = re.search(r"^ExecStart=(.*)", text, re.MULTILINE)
    assert started is not None
    program, verb, *options = shlex.split(started[1])
    assert (Path(program).name, verb) == ("foretell", "serve")
    assert options[0] in {option for parameter in get_command(app).params for option in parameter.opts}
    if shutil.which("systemd-analyze"):
        checked = tmp_path / "foretell.service"
        checked.write_text(text.replace(program, "/bin/true"))
        ran = subprocess.run(
            ["systemd-analyze", "verify", checked], capture_output=True, text=True, timeout=60, check=False
        )
        assert "foretell.service" not in ran.stderr, ran.stderr


def test_settings_come_from_the_command_line_the_environment_and_a_file(tmp_path: Path) -> None:
    assert gathered({}, {}, DEPLOY / "foretell.toml").host == "0.0.0.0"
    file = tmp_path / "foretell.toml"
    file.write_text("port = 1\nworkers = 1\nrate = 1\n")
    found = gathered(
        {"port": 3, "rate": None}, {"FORETELL_SERVE_PORT": "2", "FORETELL_SERVE_WORKERS": "2", DATABASE: "x"}, file
    )
    assert (found.port, found.workers, found.rate, found.database) == (3, 2, 1, "x")
    for environment, text, said in (
        ({"FORETELL_SERVE_PROT": "1"}, "", "FORETELL_SERVE_PORT"), ({"FORETELL_SERVE_PORT": "http"}, "", "whole number"),
        ({}, "prot = 1", "Did you mean 'port'"), ({}, "port = true", "whole number"), ({}, "port =", "no settings"),
        ({}, "port = 100000", "65535"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(InputError, match=re.escape(said)):
            gathered({}, environment, file)


def test_a_backup_comes_back(open_service: Open, database_url: str, graph_file: bytes, tmp_path: Path) -> None:
    """From either kind of database into an embedded one, and back."""
    client: TestClient = open_service(database_url)
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    asked = {"graph": graph, "on": "h200"}
    answer = client.post("/v1/forecasts", json=asked)
    client.post("/v1/measurements", json=asked | {"seconds": 0.1})
    client.post("/v1/scales", json=asked | {"up_to": 2})
    service = client.app.state.service  # type: ignore[attr-defined]
    service.audit.flush()
    file = tmp_path / "all.zip"
    rows = back_up(service.database, file)
    assert file.stat().st_mode & 0o077 == 0
    other_url = f"sqlite:///{tmp_path}/other.sqlite"
    other = Database(other_url)
    assert restore(other, file) == rows
    with pytest.raises(InputError, match="not empty"):
        restore(other, file)
    with service.database.reading() as here, other.reading() as there:
        for table in Base.metadata.sorted_tables:
            assert [*map(tuple, here.execute(table.select()))] == [*map(tuple, there.execute(table.select()))]
    again = open_service(other_url)
    assert again.get("/v1/forecasts/" + answer.headers["foretell-forecast"]).json() == answer.json()
    assert again.get(f"/v1/graphs/{graph}/file").content == graph_file
    assert again.post("/v1/scales", json=asked | {"up_to": 2}).status_code == 202
    file.write_bytes(b"PK")
    with pytest.raises(InputError, match="no backup"):
        restore(Database(f"sqlite:///{tmp_path}/third.sqlite"), file)
