"""Several processes of the service on one PostgreSQL, and on several nodes of a Ray cluster; one of each is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import func, select, text

from foretell import Conditions, Graph, forecast
from foretell.errors import InputError
from foretell.profile import ARRAYS, SUFFIX
from foretell.serve.client import Client
from foretell.serve.database import connect
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Team
from foretell.serve.inference_engine import InferenceEngine, _Turns
from foretell.serve.jobs.queue import Queue
from foretell.serve.listener.app import make_app
from foretell.serve.problems import Problem
from foretell.serve.ray_workers import Desk, _files
from foretell.serve.run import Patient
from foretell.serve.service import Service
from foretell.serve.settings import Settings
from foretell.serve.worker import Bench, pack
from foretell.supervisor import Child, ChildEnded
from tests.campaign.test_campaign import ROOT, wait_until
from tests.campaign.test_ray import kill_tree, name_of, parent
from tests.serve.conftest import Open, busy, listening, own_postgresql


@contextmanager
def running(database: str, ray: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the service, and its address."""
    command = [sys.executable, "-m", "foretell.cli", "serve", "--port", "0", "--database", database]
    command += ["--ray", ray, "--workers", "2"]
    environment = os.environ | {"FORETELL_SERVE_LEASE": "1.5"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield process, found[0]
        finally:
            process.terminate()
            assert process.wait(300) in (0, -signal.SIGKILL, -signal.SIGTERM)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """The address of a head that does no work, with two nodes of one processor."""
    pytest.importorskip("ray")
    environment = json.dumps({"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"})
    command = [sys.executable, "-m", "tests.campaign.ray_cluster", environment, environment]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield json.loads(program.stdout.readline())["address"]
        finally:
            kill_tree(program.pid)


def raylets_at_work() -> list[int]:
    """Nodes that have workers of ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::Desk"):
                above = int(path.parent.name)
                while name_of(above) != "raylet":
                    above = parent(above)
                found.append(above)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_services_on_two_nodes_lose_one_of_each(ray_cluster: str, database_url: str, graph_file: bytes) -> None:
    """Forecasts and plans go to a Ray cluster; a node and a service are killed while both are at work."""
    with running(database_url, ray_cluster) as (first, here), running(database_url, ray_cluster) as (_, there):
        graph = httpx.post(f"{here}/v1/graphs", content=graph_file).json()["hash"]
        search = {"graph": graph, "gpus": ["h200", "l40s"], "max_devices": 2, "samples": 1e6}
        jobs = [httpx.post(f"{here}/v1/plans", json=search | {"global_batch": n}).json()["id"] for n in (64, 128)]

        def asked(number: int, where: str = there) -> httpx.Response:
            question = {"graph": graph, "on": "2xh200", "conditions": {"jitter": 1e-3 * number}}
            return httpx.post(f"{where}/v1/forecasts", json=question, timeout=600)

        assert len({asked(1, where).headers["foretell-forecast"] for where in (here, there)}) == 1
        nodes = set(raylets_at_work())
        assert len(nodes) == 2, "the workers of a service are spread over the nodes"
        with ThreadPoolExecutor(4) as people:
            answers = [people.submit(asked, number) for number in range(2, 42)]
            wait_until(lambda: sum(answer.done() for answer in answers) >= 5)
            kill_tree(nodes.pop())
            first.send_signal(signal.SIGKILL)
            found = [answer.result() for answer in answers]
        assert [answer.text for answer in found if answer.status_code != 200] == []
        here_too = forecast(Graph.from_bytes(graph_file), "2xh200", conditions=Conditions(jitter=2e-3))
        assert found[0].json() == json.loads(here_too.to_json())
        with Client(there) as client:
            assert all(client.result(job)["recommended"] for job in jobs)


def test_a_request_that_never_comes_to_its_end_is_closed(
    engine: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte, its head kept a connection for ever."""
    monkeypatch.setattr("foretell.serve.run.PATIENCE", 0.3)
    service = Service(Settings(database=f"sqlite:///{tmp_path}/a.sqlite", job_runners=0), lambda _: engine)
    server = uvicorn.Server(uvicorn.Config(make_app(service), http=Patient, log_level="critical"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        wait_until(lambda: server.started)
        with (
            socket.create_connection(listening.getsockname()) as half,
            socket.create_connection(listening.getsockname()) as whole,
        ):
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            whole.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert whole.recv(100).startswith(b"HTTP/1.1 200")
            half.settimeout(20)
            assert half.recv(100) == b""
        server.should_exit = True
        thread.join(30)


ASKED = {"on": "h200", "up_to": 1}


def test_a_busy_database_is_said_in_words(
    open_service: Open, tmp_path: Path, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "a bug in Foretell", and the caller's connection was closed without a word."""
    monkeypatch.setattr("foretell.serve.database.connect._PATIENCE", 0.1)
    client = open_service(f"sqlite:///{tmp_path}/a.sqlite")
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    with busy(f"sqlite:///{tmp_path}/a.sqlite"):
        refused = client.post("/v1/scales", json=ASKED | {"graph": graph})
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.json()["what"] == "the database does not answer."
    assert client.post("/v1/scales", json=ASKED | {"graph": graph}).status_code == 202


@pytest.mark.nightly
def test_a_service_outlives_its_postgresql(open_service: Open, graph_file: bytes) -> None:
    with own_postgresql() as server:
        client = open_service(server.new_database())
        graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
        question = ASKED | {"graph": graph}
        kept = client.post("/v1/scales", json=question).json()["id"]
        server.stop()
        for _ in range(3):  # first a connection that was reset, then none
            refused = [client.post("/v1/scales", json=question), client.get("/v1/jobs"), client.get("/healthz")]
            assert [answer.status_code for answer in refused] == [503] * 3, [answer.text for answer in refused]
        server.start()
        assert client.post("/v1/scales", json=question).status_code == 202
        assert kept in [job["id"] for job in client.get("/v1/jobs").json()]


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connect._SILENT, "connect_timeout", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InputError, match="cannot be used: connection timeout"):
            Database(f"postgresql://foretell@127.0.0.1:{silent.getsockname()[1]}/foretell")


@pytest.mark.parametrize(
    ("statement", "status"), [("SELECT * FROM nothing", 500), ("INSERT INTO teams VALUES ('a', 'b', 0.0)", 503)]
)
def test_no_caller_is_cut_off_in_the_next_request(
    engine: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, status: int
) -> None:
    """uvicorn closes a connection after an exception: whoever had not been told asked again on it, and was reset."""
    monkeypatch.setattr("foretell.serve.database.connect._PATIENCE", 0.0 if status == 503 else 10.0)

    def asks(queue: Queue, *_: object) -> None:
        with queue._database.writing() as session:
            session.execute(text(statement))

    monkeypatch.setattr(Queue, "get", asks)
    url = f"sqlite:///{tmp_path}/a.sqlite"
    with listening(url, engine) as address, busy(url) if status == 503 else nullcontext(), httpx.Client() as http:
        found = Counter(http.get(f"{address}/v1/jobs/{'0' * 32}", timeout=60).status_code for _ in range(100))
    assert found == {status: 100}


def test_a_ray_cluster_that_is_not_there_is_said_before_it_serves() -> None:
    engine = InferenceEngine(Settings(ray="127.0.0.1:9", workers=1))
    with pytest.raises(InputError, match=r"no Ray cluster at '127.0.0.1:9'.*ray start --head"):
        engine.warm()
    with pytest.raises(Problem) as refused:  # where it went away later
        engine.read(b"")
    engine.close()
    assert refused.value.status == 503


def test_a_worker_that_ended_while_it_waited_is_not_given_a_question(graph_file: bytes) -> None:
    """As one that the system ended when memory was short: the question after it is answered."""
    workers = [Child.fresh("foretell.serve.worker:serve") for _ in range(2)]
    started = iter(workers)
    engine = InferenceEngine(Settings(workers=1), start=lambda: next(started))
    first = engine.read(graph_file)
    os.kill(workers[0]._pid, signal.SIGKILL)
    while not workers[0].has_ended:
        time.sleep(0.01)
    assert engine.read(graph_file) == first
    engine.close()


def test_a_worker_lost_with_its_node_before_it_was_ready_is_placed_again(graph_file: bytes) -> None:
    class Lost:
        def send(self, message: bytes) -> None: ...

        def receive(self, limit: float) -> bytes:
            raise ChildEnded("was lost on the Ray cluster", "")

        @property
        def has_ended(self) -> bool:
            return False

        def close(self) -> None: ...

    started = iter([Lost(), Child.fresh("foretell.serve.worker:serve")])
    engine = InferenceEngine(Settings(ray="127.0.0.1:9", workers=1), start=lambda: next(started))
    assert engine.read(graph_file)
    engine.close()


def test_a_profile_goes_along_to_a_node(tmp_path: Path) -> None:
    """As it does through an actor, without Ray: what is in the file, not where it is here."""
    profile = tmp_path / f"ours{SUFFIX}"
    profile.write_text('residuals = "ours.safetensors"')
    profile.with_suffix(ARRAYS).write_bytes(b"\0arrays")
    seen: list[tuple[str, bytes, bytes]] = []

    class Seeing(Bench):
        def read(self, head: dict[str, Any], data: bytes) -> bytes:
            where = Path(head["profile"])
            seen.append((where.name, where.read_bytes(), where.with_suffix(ARRAYS).read_bytes()))
            assert where != profile
            return b""

    desk = Desk.__new__(Desk)
    desk._bench = Seeing()
    desk.answer(pack({"do": "read", "profile": str(profile), "files": _files(profile)}))
    assert seen == [(profile.name, b'residuals = "ours.safetensors"', b"\0arrays")]


def test_questions_take_their_turns_in_the_order_in_which_they_came() -> None:
    turns, order = _Turns(1), list[int]()

    def ask(number: int) -> None:
        with turns.one():
            order.append(number)

    with turns.one():
        waiting = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for number, thread in enumerate(waiting, 1):
            thread.start()
            while len(turns._line) < number:
                time.sleep(0.001)
    for thread in waiting:
        thread.join(60)
    assert order == list(range(20))
    turns.end()
    with pytest.raises(Problem, match="ends"), turns.one():
        pass


def test_many_threads_that_write_wait_for_each_other_and_not_for_sqlite(tmp_path: Path) -> None:
    """Those who wait in SQLite sleep longer and longer, while whoever comes later goes first."""
    database = Database(f"sqlite:///{tmp_path}/a.sqlite")
    inside, most = 0, 0

    def write(number: int) -> None:
        nonlocal inside, most
        with database.writing() as session:
            inside += 1
            most = max(most, inside)
            session.add(Team(id=f"{number:032}", name=f"team {number}", created=0.0))
            time.sleep(0.001)
            inside -= 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(60)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Team)) == 12
    database.close()
    assert most == 1
