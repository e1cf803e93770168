"""Processes of a service that accept, do, cancel and resume jobs in one database; whatever was accepted ends as it was said."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from foretell.serve.access.keys import local_caller
from foretell.serve.database.connect import Database, new_id, now
from foretell.serve.database.tables import StoredGraph
from foretell.serve.jobs import queue
from foretell.serve.jobs.of_graph import PlanRequest
from foretell.serve.jobs.work import Done
from foretell.serve.problems import Problem
from foretell.serve.settings import Settings

SIDE_BY_SIDE = 3
SECONDS = 1.0  # opening a database takes a part of it
GRAPH = "0" * 64
ASKED = PlanRequest(graph=GRAPH, samples=1.0)
SETTINGS = Settings(lease=0.5, team_jobs=10**9, team_seconds=1e9)


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    rng, holder = random.Random(number), new_id()
    database = _opened(folder)
    jobs, caller = queue.Queue(database, SETTINGS), local_caller(database)
    while True:
        job = jobs.add(caller, "plan", ASKED)
        say(f"accepted {job.id}")
        if rng.random() < 0.1:
            with contextlib.suppress(Problem):  # another has done it
                say(f"cancelled {jobs.cancel(caller, job.id).id}")
        held = jobs.claim(holder)
        if held is None or rng.random() < 0.3 or not jobs.renew(held.id, holder, "half"):
            continue
        if jobs.done(held.id, holder, ASKED, Done(result=f'"{holder}"')):
            say(f"done {held.id} {holder}")


def verify(folder: Path, said: Sequence[str]) -> str:
    promised: dict[str, dict[str, str]] = {"accepted": {}, "cancelled": {}, "done": {}}
    for line in said:
        what, id, *by = line.split()
        promised[what][id] = " ".join(by)
    database = _opened(folder)
    jobs, caller = queue.Queue(database), local_caller(database)
    for id, holder in promised["done"].items():
        found = jobs.get(caller, id)
        assert (found.state, found.result) == ("done", f'"{holder}"'), f"{id} was done by {holder}: {vars(found)}"
    states = Counter(jobs.get(caller, id).state for id in promised["accepted"])  # raises for one that is lost
    assert {jobs.get(caller, id).state for id in promised["cancelled"]} <= {"cancelled"}
    later = now() + 1e6  # all leases have ended by then, and all that waited longer have
    queue.now = lambda: later  # type: ignore[assignment]
    while (held := jobs.claim("last")) is not None or jobs.waiting():
        assert held is None or jobs.done(held.id, "last", ASKED, Done(result="null"))
    ended = {jobs.get(caller, id).state for id in promised["accepted"]}
    assert ended <= {"done", "cancelled"}, ended
    return f"{len(promised['accepted'])} jobs accepted, none lost; found as {dict(states)}"


def _opened(folder: Path) -> Database:
    database = Database(f"sqlite:///{folder}/service.sqlite")
    caller = local_caller(database)
    with database.writing() as session:
        if session.get(StoredGraph, (caller.team, GRAPH)) is None:
            about = {"name": "any", "ops": 1, "training": True, "precision": "fp32", "data": b"", "created": now()}
            session.add(StoredGraph(team_id=caller.team, hash=GRAPH, **about))
    return database
