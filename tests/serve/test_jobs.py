"""Long work: accepted once it is kept, done once, cancelled, resumed, and never lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import DataError, OperationalError

import foretell
from foretell import Graph
from foretell.serve.access.keys import Caller, local_caller, make_key, team_of
from foretell.serve.database import connect
from foretell.serve.database.connect import Database, now
from foretell.serve.database.tables import Job, StoredGraph
from foretell.serve.jobs import queue, runner
from foretell.serve.jobs import worker as job_worker
from foretell.serve.jobs.of_graph import ScaleRequest
from foretell.serve.jobs.queue import ENDED, Queue
from foretell.serve.jobs.runner import Runners
from foretell.serve.jobs.work import Done
from foretell.serve.problems import Problem
from foretell.serve.settings import LEASE, Settings
from foretell.supervisor import Child
from tests.campaign.test_campaign import is_running, wait_until
from tests.serve.conftest import BASES, Open, busy

GRAPH = "0" * 64
ASKED = ScaleRequest(graph=GRAPH, on="h200", up_to=1)
DONE = Done(result="{}")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def caller(database: Database, graph_file: bytes) -> Caller:
    caller = local_caller(database)
    graph = StoredGraph(
        team_id=caller.team,
        hash=GRAPH,
        name="a",
        ops=1,
        training=True,
        precision="fp32",
        data=graph_file,
        created=now(),
    )
    with database.writing() as session:
        session.add(graph)
    return caller


def ask(client: TestClient, graph_file: bytes, **question: object) -> str:
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    accepted = client.post("/v1/scales", json={"graph": graph, "on": "h200", "up_to": 4} | question)
    assert accepted.status_code == 202, accepted.text
    assert accepted.headers["location"] == f"/v1/jobs/{accepted.json()['id']}"
    found: str = accepted.json()["id"]
    return found


def wait_for(client: TestClient, id: str, state: str) -> None:
    wait_until(lambda: client.get(f"/v1/jobs/{id}").json()["state"] == state)


def test_jobs_are_done_and_tell_how_far_they_are(open_service: Open, database_url: str, graph_file: bytes) -> None:
    client = open_service(database_url)
    id = ask(client, graph_file)
    assert client.get(f"/v1/jobs/{id}/result").status_code == 409
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1)
    try:
        heard = client.get(f"/v1/jobs/{id}/events").text.strip().split("\n\n")
    finally:
        runners.close()
    events = [each for each in heard if not each.startswith(":")]  # comments, on a busy machine
    assert events[-1].split("\n")[1] == "event: done"
    numbers = [int(event.split("\n")[0].removeprefix("id: ")) for event in events]
    assert numbers == sorted(set(numbers))
    expected = foretell.scale(Graph.from_bytes(graph_file), "h200", up_to=4)
    assert client.get(f"/v1/jobs/{id}/result").json() == json.loads(json.dumps([p.to_dict() for p in expected]))
    again = client.get(f"/v1/jobs/{id}/events", headers={"Last-Event-ID": str(numbers[-1])})
    assert again.text == ""


def test_a_search_for_plans_is_kept_and_what_cannot_be_answered_fails(client: TestClient, graph_file: bytes) -> None:
    wrong = ask(client, graph_file, plan="dp=2")
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    asked = {"graph": graph, "gpus": ["h200"], "max_devices": 2, "samples": 1e6}
    id = client.post("/v1/plans", json=asked).json()["id"]
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1)
    try:
        wait_for(client, id, "done")
        wait_for(client, wrong, "failed")
    finally:
        runners.close()
    assert "Leave dp out" in client.get(f"/v1/jobs/{wrong}").json()["message"]
    found = client.get(f"/v1/plans/{id}").json()
    assert found == client.get(f"/v1/jobs/{id}/result").json()
    assert found["recommended"]
    assert [each["id"] for each in client.get("/v1/plans").json()] == [id]


@pytest.mark.parametrize(
    ("address", "change"),
    [
        ("/v1/plans", {"gpus": ["h2000"], "samples": 1e6}),
        ("/v1/plans", {"gpus": ["h200"]}),
        ("/v1/plans", {"gpus": ["h200"], "samples": 1e6, "deadline": -1.0}),
        ("/v1/scales", {"on": "h200", "up_to": 0}),
        ("/v1/scales", {"on": "h200", "up_to": 4, "plan": "dpp=2"}),
        ("/v1/scales", {"on": "h200", "up_to": 4, "profile": "/etc/passwd"}),
    ],
)
def test_a_slip_is_refused_before_anything_waits(
    client: TestClient, graph_file: bytes, address: str, change: dict[str, object]
) -> None:
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    assert client.post(address, json={"graph": graph} | change).status_code == 422
    assert client.get("/v1/jobs").json() == []


def test_a_cancelled_job_is_ended_and_can_be_resumed(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.serve.jobs.runner._RENEWALS", 150)
    begun: SimpleQueue[int] = multiprocessing.SimpleQueue()

    def hangs(link: Connection) -> None:
        begun.put(os.getpid())
        time.sleep(600)

    id = ask(client, graph_file)
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1, lambda: Child.forked(hangs))
    try:
        pid = begun.get()  # a job runs before its process has begun, and is cancelled then, too
        assert client.post(f"/v1/jobs/{id}/resume").status_code == 409
        assert client.delete(f"/v1/jobs/{id}").json()["state"] == "cancelled"
        wait_until(lambda: not is_running(pid))
        assert client.delete(f"/v1/jobs/{id}").status_code == 409
        assert client.post(f"/v1/jobs/{id}/resume").json()["state"] == "queued"
        wait_for(client, id, "running")
    finally:
        runners.close()
    assert client.get(f"/v1/jobs/{id}").json()["state"] == "queued"  # a service that stops gives it back


def test_a_job_whose_process_crashes_is_tried_again_and_then_given_up(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_PAUSE", 0.0)

    def crashes(link: Connection) -> None:
        link.recv_bytes()
        os._exit(3)

    id = ask(client, graph_file)
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1, lambda: Child.forked(crashes))
    try:
        wait_for(client, id, "failed")
    finally:
        runners.close()
    found = client.get(f"/v1/jobs/{id}").json()
    assert (found["attempts"], "ended 5 times" in found["message"]) == (5, True)
    assert "The last one ended with exit code 3." in found["message"]


def test_what_the_machine_lacks_for_a_moment_costs_no_job(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five attempts were over within a blink, and with them every job that waited."""
    monkeypatch.setattr(queue, "_PAUSE", 0.2, raising=False)
    id = ask(client, graph_file, up_to=1)
    lacks_until = time.monotonic() + 1.5

    def start() -> Child:
        if time.monotonic() < lacks_until:
            raise OSError("no more processes")
        return Child.forked(job_worker.serve)

    runners = Runners(client.app.state.service.database, 1, start)  # type: ignore[attr-defined]
    try:
        wait_until(lambda: client.get(f"/v1/jobs/{id}").json()["state"] in ENDED)
    finally:
        runners.close()
    assert client.get(f"/v1/jobs/{id}").json()["state"] == "done"


def test_work_outlives_a_database_that_is_away(
    open_service: Open, tmp_path: Path, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on meanwhile, and what came out is kept once the database is there again."""
    monkeypatch.setattr(connect, "_PATIENCE", 0.1)
    url = f"sqlite:///{tmp_path}/a.sqlite"
    client = open_service(url)
    begun: SimpleQueue[int] = multiprocessing.SimpleQueue()
    go_on = multiprocessing.Event()

    def works(link: Connection) -> None:
        begun.put(os.getpid())
        go_on.wait()
        job_worker.serve(link)

    id = ask(client, graph_file, up_to=1)
    database = client.app.state.service.database  # type: ignore[attr-defined]
    runners = Runners(database, 1, lambda: Child.forked(works), settings=Settings(lease=0.5))
    try:
        begun.get()
        with busy(url):
            go_on.set()
            time.sleep(1.5)  # longer than its lease
        wait_for(client, id, "done")
    finally:
        runners.close()
    assert begun.empty()
    assert client.get(f"/v1/jobs/{id}").json()["attempts"] == 1


def test_a_result_that_cannot_be_kept_fails_the_job_in_words(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was begun again for ever."""

    def refused(*_: object) -> None:
        raise DataError("INSERT", None, ValueError("out of range"))

    monkeypatch.setattr(queue, "_PAUSE", 0.0, raising=False)
    monkeypatch.setattr(ScaleRequest, "keep", refused)
    id = ask(client, graph_file, up_to=1)
    database = client.app.state.service.database  # type: ignore[attr-defined]
    runners = Runners(database, 1, lambda: Child.forked(job_worker.serve), settings=Settings(lease=0.5))
    try:
        wait_for(client, id, "failed")
    finally:
        runners.close()
    found = client.get(f"/v1/jobs/{id}").json()
    assert found["attempts"] == 5
    assert "DataError" in found["message"]


def test_a_job_is_not_given_up_for_services_that_were_killed(
    database: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 of them, each while it was at work on the oldest job: it is begun more and more rarely, and others meanwhile."""
    clock = now()
    monkeypatch.setattr(queue, "now", lambda: clock)
    jobs = Queue(database)
    oldest = jobs.add(caller, "scale", ASKED).id
    clock += 1.0
    other = jobs.add(caller, "scale", ASKED).id
    begun: list[str] = []
    for number in range(300):
        clock += LEASE + 1.0
        if (held := jobs.claim(f"service {number}")) is not None:
            begun.append(held.id)
    assert begun[:5] == [oldest] * 5
    assert 10 < begun.count(oldest) < 50
    assert begun.count(oldest) - begun.count(other) < 5
    clock += 100 * LEASE
    while (held := jobs.claim("last")) is not None:
        assert jobs.done(held.id, "last", ASKED, DONE)
    assert {jobs.get(caller, id).state for id in (oldest, other)} == {"done"}


def test_a_job_that_ends_every_service_is_given_up_after_a_day(
    database: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = began = now()
    monkeypatch.setattr(queue, "now", lambda: clock)
    jobs = Queue(database)
    id = jobs.add(caller, "scale", ASKED).id
    while jobs.get(caller, id).state != "failed":
        clock += LEASE + 1.0
        jobs.claim("any")
    assert 16 < (clock - began) / 3600 < 26
    assert "100 times" in jobs.get(caller, id).message
    assert jobs.resume(caller, id).state == "queued"
    clock += 1.0
    assert jobs.claim("any") is not None


def test_a_listener_outlives_a_database_that_is_away(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ask(client, graph_file)
    client.delete(f"/v1/jobs/{id}")
    jobs = client.app.state.service.jobs.queue  # type: ignore[attr-defined]
    get, asked = jobs.get, []

    def sometimes(*arguments: object) -> Job:
        asked.append(arguments)
        if len(asked) in (2, 3):
            raise OperationalError("SELECT", None, OSError("connection reset by peer"))
        found: Job = get(*arguments)
        return found

    monkeypatch.setattr(jobs, "get", sometimes)
    heard = client.get(f"/v1/jobs/{id}/events").text
    assert "event: cancelled" in heard


def test_a_job_has_one_holder_at_a_time(database: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Queue(database)
    first, second = (jobs.add(caller, "scale", ASKED).id for _ in range(2))
    claimed = [jobs.claim(holder) for holder in ("a", "b", "c")]
    assert [job and job.id for job in claimed] == [first, second, None]
    assert jobs.renew(first, "a", "half of it")
    assert not jobs.renew(first, "b")
    monkeypatch.setattr(queue, "now", lambda: now() + 2 * LEASE)  # `a` was killed
    taken = jobs.claim("c")
    assert taken is not None
    assert (taken.id, taken.attempts) == (first, 2)
    assert not jobs.done(first, "a", ASKED, DONE)
    assert jobs.done(first, "c", ASKED, DONE)
    assert jobs.get(caller, first).result == "{}"


def test_a_team_has_so_many_seconds_a_day(database: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Queue(database, Settings(team_seconds=50.0))
    id = jobs.add(caller, "scale", ASKED).id
    assert jobs.claim("a") is not None
    monkeypatch.setattr(queue, "now", lambda: now() + 60.0)
    assert jobs.done(id, "a", ASKED, DONE)
    with pytest.raises(Problem, match="60 s were worked on jobs of your team"):
        jobs.add(caller, "scale", ASKED)
    monkeypatch.setattr(queue, "now", lambda: now() + 100_000.0)
    jobs.add(caller, "scale", ASKED)


def test_teams_take_turns(database: Database, caller: Caller, graph_file: bytes) -> None:
    """One that came first with many jobs does not keep another waiting for all of them."""
    jobs = Queue(database)
    first = [jobs.add(caller, "scale", ASKED).id for _ in range(3)]
    with database.writing() as session:
        other = Caller(team=team_of(session, "other").id, key="k", role="member")
        about = {"hash": GRAPH, "name": "a", "ops": 1, "training": True, "precision": "fp32", "created": now()}
        session.add(StoredGraph(team_id=other.team, data=graph_file, **about))
    second = [jobs.add(other, "scale", ASKED).id for _ in range(2)]
    order = []
    while (held := jobs.claim("a")) is not None:
        order.append(held.id)
        jobs.done(held.id, "a", ASKED, DONE)
    assert order == [first[0], second[0], first[1], second[1], first[2]]


def test_a_runner_outlives_jobs_of_another_version(client: TestClient, graph_file: bytes) -> None:
    """A kind it does not know and a question of another shape fail in words; the next job is done."""
    service = client.app.state.service  # type: ignore[attr-defined]
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    asked = {"graph": graph, "on": "h200", "up_to": 1}
    ids = [client.post("/v1/scales", json=asked).json()["id"] for _ in range(3)]
    with service.database.writing() as session:
        session.get(Job, ids[0]).kind = "of another version"
        session.get(Job, ids[1]).question = {"shape": [1]}
    runners = Runners(service.database, 1, lambda: Child.forked(job_worker.serve))
    try:
        wait_until(lambda: client.get(f"/v1/jobs/{ids[2]}").json()["state"] == "done")
    finally:
        runners.close()
    for id in ids[:2]:
        found = client.get(f"/v1/jobs/{id}").json()
        assert found["state"] == "failed"
        assert "cannot read it" in found["message"]


def test_a_runner_outlives_a_process_that_cannot_be_started(
    client: TestClient, graph_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_PAUSE", 0.0)
    service = client.app.state.service  # type: ignore[attr-defined]
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    id = client.post("/v1/scales", json={"graph": graph, "on": "h200", "up_to": 1}).json()["id"]

    def refused() -> Child:
        raise OSError("no more processes")

    runners = Runners(service.database, 1, refused)
    try:
        wait_until(lambda: client.get(f"/v1/jobs/{id}").json()["state"] == "failed")
        assert runners.trouble == ""
    finally:
        runners.close()


def test_health_tells_when_nothing_runs(open_service: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_service(job_runners=1)
    assert client.get("/healthz").status_code == 200
    monkeypatch.setattr(runner, "_SILENT", -1.0)
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert "no runner of jobs" in answer.json()["what"]


def test_a_team_keeps_so_many_graphs(open_service: Open, graph_file: bytes) -> None:
    client = open_service(team_graphs=1)
    assert client.post("/v1/graphs", content=graph_file).status_code == 201
    assert client.post("/v1/graphs", content=graph_file).status_code == 201  # it is there
    other = (BASES / "vit.graph").read_bytes()
    assert client.post("/v1/graphs", content=other).status_code == 409


def test_a_team_has_so_many_jobs(database: Database, caller: Caller) -> None:
    jobs = Queue(database, Settings(team_jobs=2))
    for _ in range(2):
        jobs.add(caller, "scale", ASKED)
    with pytest.raises(Problem, match="2 jobs"):
        jobs.add(caller, "scale", ASKED)


def test_jobs_of_another_team_are_not_there(open_service: Open, graph_file: bytes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/teams.sqlite"
    database = Database(url)
    one, other = (open_service(url, make_key(database, team, "admin")) for team in ("one", "other"))
    id = ask(one, graph_file)
    for answer in (
        other.get(f"/v1/jobs/{id}"), other.get(f"/v1/jobs/{id}/events"), other.get(f"/v1/jobs/{id}/result"),
        other.delete(f"/v1/jobs/{id}"), other.post(f"/v1/jobs/{id}/resume"), other.get(f"/v1/plans/{id}"),
    ):  # fmt: skip
        assert answer.status_code == 404
    assert other.get("/v1/jobs").json() == []
    assert one.get(f"/v1/jobs/{id}").json()["state"] == "queued"


_KILLED = """
import os, sys
from foretell.serve.access.keys import local_caller
from foretell.serve.database.connect import Database
from foretell.serve.jobs.of_graph import ScaleRequest
from foretell.serve.jobs.queue import ENDED, Queue
from foretell.serve.jobs.work import Done
from foretell.serve.settings import Settings

asked = ScaleRequest(graph="0" * 64, on="h200", up_to=1)
database = Database(sys.argv[1])
jobs, caller = Queue(database, Settings(team_jobs=10**6)), local_caller(database)
while True:
    print(jobs.add(caller, "scale", asked).id, flush=True)
    held = jobs.claim(str(os.getpid()))
    if held is not None and held.id[0] in "01234567":
        jobs.done(held.id, str(os.getpid()), asked, Done(result="{}"))
"""


def test_no_accepted_job_is_lost_when_its_process_is_killed(
    database: Database, database_url: str, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[str] = []
    with subprocess.Popen([sys.executable, "-c", _KILLED, database_url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        accepted += [process.stdout.readline().strip() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        accepted += [line.strip() for line in process.stdout if line.endswith("\n")]
    monkeypatch.setattr(queue, "now", lambda: now() + 2 * LEASE)
    jobs = Queue(database)
    while (held := jobs.claim("next")) is not None:
        jobs.done(held.id, "next", ASKED, DONE)
    assert {jobs.get(caller, id).state for id in accepted} == {"done"}


def test_a_network_is_captured_by_its_name(open_service: Open) -> None:
    client = open_service()
    for wrong in (
        {"source": "examples/resnet.py:resnet"},
        {"source": "timm/../x"},
        {"source": "hf/gpt2", "precision": "fp1"},
    ):
        assert client.post("/v1/captures", json=wrong).status_code == 422
    asked = {"source": "torchvision/squeezenet1_1", "batch": 2, "precision": "bf16"}
    job = client.post("/v1/captures", json=asked).json()["id"]
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1, lambda: Child.forked(job_worker.serve))
    try:
        wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] not in ("queued", "running"))
    finally:
        runners.close()
    kept = client.get("/v1/graphs").json()
    assert [(graph["name"], graph["precision"], graph["training"]) for graph in kept] == [
        ("squeezenet1_1", "bf16", True)
    ]
    found = client.get(f"/captures/{job}?on=h200", follow_redirects=False)
    assert found.headers["location"] == f"/ask?graph={kept[0]['hash']}&on=h200"
    assert "/forecasts/" in client.get(found.headers["location"], follow_redirects=False).headers["location"]
