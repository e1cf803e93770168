"""Whole services on one database, each killed at some moment: accepting over HTTP, taking, doing or ending a job.

The jobs are real, each in a process of its own. Whatever was accepted is done or can be, and what was done stays done.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import uvicorn
from sqlalchemy.exc import DBAPIError

from foretell.errors import ForetellError
from foretell.serve.access.keys import local_caller
from foretell.serve.database.connect import Database, now
from foretell.serve.database.tables import StoredGraph
from foretell.serve.jobs import queue
from foretell.serve.jobs.work import Done
from foretell.serve.jobs.worker import made
from foretell.serve.listener.app import make_app
from foretell.serve.service import Service
from foretell.serve.settings import Settings

SIDE_BY_SIDE = 2
SECONDS = 4.0  # a job takes one or two of them
GRAPH = "0" * 64
_FILE = Path(__file__).parents[2] / "fuzz" / "bases" / "cnn.graph"
_ASKED = {"graph": GRAPH, "on": "h200", "up_to": 1, "model": "roofline"}
_PATIENCE = 60.0  # seconds in which jobs that were left are done for real; the rest is taken and ended here


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    with _serving(folder) as (http, _):
        seen: set[str] = set()
        accepted = False
        while True:
            if not accepted:
                answer = _answered(http.post("/v1/scales", json=_ASKED))
                accepted = answer.status_code == httpx.codes.ACCEPTED
                if accepted:
                    say(f"accepted {answer.json()['id']}")
            listed = _answered(http.get("/v1/jobs", params={"most": 20}))
            for job in listed.json() if listed.is_success else ():
                if job["state"] == "done" and job["id"] not in seen:
                    seen.add(job["id"])
                    say(f"done {job['id']}")
            time.sleep(0.05)


def verify(folder: Path, said: Sequence[str]) -> str:
    accepted = {line.split()[1] for line in said if line.startswith("accepted")}
    done = {line.split()[1] for line in said if line.startswith("done")}
    assert done <= accepted | _unsaid(folder), "a job that nobody asked for"
    with _serving(folder) as (_, jobs):
        ends = time.monotonic() + _PATIENCE
        while jobs.waiting() and time.monotonic() < ends:
            time.sleep(0.2)
    database = _opened(folder)
    jobs, caller = queue.Queue(database), local_caller(database)
    real = {id for id in accepted if jobs.get(caller, id).state == "done"}
    assert done <= real | _unsaid(folder)
    while (held := jobs.claim("last")) is not None or jobs.waiting():
        assert held is None or jobs.done(held.id, "last", made(held.kind, held.question), Done(result="[]"))
        time.sleep(0 if held else 0.1)  # until the last lease ends
    ended = {id: jobs.get(caller, id) for id in accepted}
    wrong = {id: f"{job.state}: {job.message}" for id, job in ended.items() if job.state != "done"}
    assert not wrong, wrong
    assert all(jobs.get(caller, id).result for id in accepted | done)
    return f"{len(accepted)} jobs accepted over HTTP, none lost: {len(done)} done between kills, {len(real)} a minute later"


def _answered(answer: httpx.Response) -> httpx.Response:
    """A service whose database is gone for a moment says so, and asks to be asked again."""
    if not answer.is_success:
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, f"{answer.status_code}: {answer.text}"
        assert answer.headers["Retry-After"]
    return answer


def _unsaid(folder: Path) -> set[str]:
    """Jobs that were accepted by a service which was killed before it could say so."""
    from sqlalchemy import select

    from foretell.serve.database.tables import Job

    with _opened(folder).reading() as session:
        return set(session.scalars(select(Job.id)))


class _serving:
    """A service with a port of its own; a client of it, and its queue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> tuple[httpx.Client, queue.Queue]:
        while not self._begins():  # as whoever keeps services starts them again, until their database is there
            time.sleep(0.1)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._socket.getsockname()[1]}", timeout=60)
        return self._http, self._service.jobs.queue

    def _begins(self) -> bool:
        try:
            _opened(self._folder).close()
            self._service = Service(
                Settings(database=_url(self._folder), workers=1, lease=1.0, team_jobs=10**9, team_seconds=1e9)
            )
        except (ForetellError, DBAPIError):
            return False
        self._server = uvicorn.Server(uvicorn.Config(make_app(self._service), log_level="critical"))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.01)
        return self._server.started

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._service.stopping = self._server.should_exit = True
        self._thread.join(60)


def url_file(folder: Path) -> Path:
    """Where a target says which database is meant."""
    return folder / "url"


def _url(folder: Path) -> str:
    found = url_file(folder)
    return found.read_text() if found.is_file() else f"sqlite:///{folder}/service.sqlite"


def _opened(folder: Path) -> Database:
    """With the graph that all ask about, under a name that they know."""
    database = Database(_url(folder))
    caller = local_caller(database)
    with database.writing() as session:
        if session.get(StoredGraph, (caller.team, GRAPH)) is None:
            about = {"name": "cnn", "ops": 1, "training": True, "precision": "fp32", "created": now()}
            session.add(StoredGraph(team_id=caller.team, hash=GRAPH, data=_FILE.read_bytes(), **about))
    return database
