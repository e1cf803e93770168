"""Several processes of the service on one PostgreSQL, one of them killed; and searches that go to a Ray cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from foretell.planner import ray
from foretell.planner.pool import Processes
from foretell.serve.client import Client
from foretell.serve.jobs.of_graph import AskedPlans
from foretell.serve.jobs.work import Means


@contextmanager
def running(database: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the service, and its address."""
    command = [sys.executable, "-m", "foretell.cli", "serve", "--port", "0", "--database", database, "--workers", "1"]
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
            assert process.wait(60) in (0, -signal.SIGKILL, -signal.SIGTERM)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_what_one_process_accepted_another_does(database_url: str, graph_file: bytes) -> None:
    with running(database_url) as (first, here), running(database_url) as (_, there):
        graph = httpx.post(f"{here}/v1/graphs", content=graph_file).json()["hash"]
        asked = {"graph": graph, "on": "2xh200"}
        answers = [httpx.post(f"{place}/v1/forecasts", json=asked, timeout=60) for place in (here, there)]
        assert len({answer.headers["foretell-forecast"] for answer in answers}) == 1
        question = {"graph": graph, "on": "h200", "up_to": 2}
        jobs = [httpx.post(f"{here}/v1/scales", json=question).json()["id"] for _ in range(2)]
        first.send_signal(signal.SIGKILL)
        with Client(there) as client:
            assert [len(client.result(job)) for job in jobs] == [2] * 2
            assert {job["attempts"] for job in client.jobs()} <= {1, 2}


def test_plans_are_searched_on_a_ray_cluster(graph_file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of: list[str] = []

    def cluster(address: str) -> Processes:
        asked_of.append(address)
        return Processes(1)

    monkeypatch.setattr(ray, "RayRunner", cluster)
    question = AskedPlans(graph="0" * 64, gpus=["h200"], max_devices=1, samples=1e6)
    assert question.do(graph_file, lambda text: None, Means(ray="head:6379")).picture
    assert asked_of == ["head:6379"]
