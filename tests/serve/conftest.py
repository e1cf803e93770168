"""A service in this process, on SQLite and on a PostgreSQL of its own where there is one."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import uvicorn
from fastapi.testclient import TestClient

from foretell.serve.inference_engine import InferenceEngine
from foretell.serve.listener.app import make_app
from foretell.serve.service import Service
from foretell.serve.settings import Settings

BASES = Path(__file__).parents[1] / "fuzz" / "bases"
Open = Callable[..., TestClient]


class SharedEngine(InferenceEngine):
    """One that outlives the services that use it."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def engine() -> Iterator[InferenceEngine]:
    """One worker for all tests, in an interpreter of its own: a fork could inherit a lock that a thread here holds."""
    engine = SharedEngine(Settings(workers=1))
    yield engine
    engine.end()


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL of our own: its URL without a database's name, and how it is stopped and started again."""

    url: str
    stop: Callable[[], None]
    start: Callable[[], None]

    def new_database(self) -> str:
        import psycopg

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.url.replace("NAME", "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url.replace("NAME", name)


@contextmanager
def own_postgresql() -> Iterator[Server]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("there is no PostgreSQL here")
    user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
    folder = Path(tempfile.mkdtemp(prefix="ftl-pg-"))  # a socket's path is short
    if user is not None:
        shutil.chown(folder, user)

    def run(program: str, *arguments: str) -> None:
        command = [str(found[-1].parent / program), *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=120)

    def start() -> None:
        settings = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=200"
        run("pg_ctl", "-D", f"{folder}/data", "-w", "-l", f"{folder}/log", "-o", settings, "start")

    def stop() -> None:
        run("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")

    run("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "foretell", "--no-sync", "-E", "UTF8")
    start()
    yield Server(f"postgresql://foretell@/NAME?host={folder}", stop, start)
    stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with own_postgresql() as server:
        yield server


@contextmanager
def busy(url: str) -> Iterator[None]:
    """Somebody else writes to this SQLite database, and takes their time."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.sqlite'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture
def open_service(engine: InferenceEngine, tmp_path: Path) -> Iterator[Open]:
    """`open_service(database=…, key=…)`: a client of a service of its own."""
    opened: list[Service] = []

    def make(database: str | None = None, key: str | None = None, **settings: object) -> TestClient:
        url = database or f"sqlite:///{tmp_path / 'service.sqlite'}"
        chosen = {"workers": 1, "job_runners": 0, **settings}
        service = Service(Settings(database=url, **chosen), lambda _: engine)  # type: ignore[arg-type]
        opened.append(service)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return TestClient(make_app(service), "http://127.0.0.1", raise_server_exceptions=False, headers=headers)

    yield make
    for service in opened:
        service.jobs.close()
        service.audit.close()
        service.database.close()


@pytest.fixture
def client(open_service: Open) -> TestClient:
    return open_service()


@pytest.fixture
def address(engine: InferenceEngine, tmp_path: Path) -> Iterator[str]:
    """A service with a port of its own."""
    with listening(f"sqlite:///{tmp_path}/a.sqlite", engine) as place:
        yield place


@contextmanager
def listening(database: str, engine: InferenceEngine, methods: str | None = None) -> Iterator[str]:
    service = Service(Settings(database=database, workers=1, job_runners=1, methods=methods), lambda _: engine)
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="critical"))
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        thread = threading.Thread(target=server.run, args=([port],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port.getsockname()[1]}"
        service.stopping = server.should_exit = True
        thread.join(300)


@pytest.fixture(scope="session")
def graph_file() -> bytes:
    return (BASES / "cnn.graph").read_bytes()
