"""PredictDDL's roles: the task checker, the cluster-resource collector, the workload-embedding generator."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from foretell.profile import Profile, Purpose
from foretell.serve import ray_nodes, task_checker
from foretell.serve.access.keys import make_key
from foretell.serve.cluster_resources import Collector, nvml, read_sinfo
from foretell.serve.database.connect import Database
from foretell.serve.jobs import worker as job_worker
from foretell.serve.jobs.runner import Runners
from foretell.serve.workload_embeddings import cosines
from foretell.supervisor import Child
from tests.campaign.test_campaign import wait_until
from tests.serve.conftest import BASES, Open


def test_the_checker_knows_what_was_fitted(
    client: TestClient, graph_file: bytes, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    hows = {on: client.get("/v1/check", params={"on": on}).json()["how"] for on in ("8xh200", "8xh100-sxm")}
    assert hows == {"8xh200": "measured", "8xh100-sxm": "transferred"}
    assert client.get("/v1/check", params={"on": "h200", "model": "roofline"}).json()["how"] == "roofline"
    assert client.get("/v1/check", params={"on": "h2000"}).status_code == 422
    graph = client.post("/v1/graphs", content=graph_file).json()["hash"]
    client.post("/v1/measurements", json={"graph": graph, "on": "l40s", "seconds": 0.1})
    assert client.get("/v1/check", params={"on": "l40s"}).json()["measured_steps"] == 1
    monkeypatch.setenv("FORETELL_PROFILES", str(tmp_path))
    Profile(name="ours", purpose=Purpose(device="l40s")).save(f"{tmp_path}/ours.toml")
    found = client.get("/v1/check", params={"on": "2xl40s"}).json()
    assert (found["how"], found["profiles"]) == ("profile", ["ours"])


def test_the_collector_says_what_is_here_and_what_is_not(client: TestClient) -> None:
    found = client.get("/v1/resources").json()
    assert {row["source"] for row in found["resources"]} | set(found["missing"]) >= {"host", "nvml", "slurm"}
    cores = next(row for row in found["resources"] if row["source"] == "host")
    assert 0 <= cores["free"] <= cores["count"]
    assert 0 < cores["free_memory_bytes"] <= cores["memory_bytes"]


def test_the_collector_does_not_ask_for_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("foretell.serve.cluster_resources._SOURCES", {"host": lambda: asked.append(1) or iter(())})
    collector = Collector()
    assert collector.collect() is collector.collect()
    assert len(asked) == 1


def test_a_slurm_is_read() -> None:
    said = "gpu*|4|idle|gpu:h100:8(S:0-1)|2063000\ngpu*|2|allocated|gpu:h100:8|2063000+\ncpu|10|idle|(null)|256000\n"
    rows = list(read_sinfo(said))
    assert [(row.count, row.free) for row in rows] == [(32, 32), (16, 0), (10, 10)]
    assert rows[0].name == "gpu: h100"
    assert rows[2].device is None


def test_similarity_is_a_cosine() -> None:
    found = cosines("a", {"a": [1.0, 0.0], "b": [2.0, 0.0], "c": [0.0, 3.0], "d": [-1.0, 0.0], "e": [0.0, 0.0]})
    assert found == {"b": 1.0, "c": 0.0, "d": -1.0, "e": 0.0}


def test_the_nearest_networks_come_with_their_measured_times(open_service: Open, database_url: str) -> None:
    database = Database(database_url)
    client, other = (open_service(database_url, make_key(database, team, "member")) for team in ("one", "other"))
    graphs = {
        name: client.post("/v1/graphs", content=(BASES / f"{name}.graph").read_bytes()).json()["hash"]
        for name in ("cnn", "vit", "llama")
    }
    client.post("/v1/measurements", json={"graph": graphs["llama"], "on": "h200", "seconds": 0.25})
    found = client.get(f"/v1/graphs/{graphs['vit']}/nearest").json()
    assert {row["graph"] for row in found} == {graphs["cnn"], graphs["llama"]}
    assert [row["similarity"] for row in found] == sorted((row["similarity"] for row in found), reverse=True)
    assert all(-1 <= row["similarity"] <= 1.000001 for row in found)
    times = {row["graph"]: [each["seconds"] for each in row["measured"]] for row in found}
    assert times == {graphs["llama"]: [0.25], graphs["cnn"]: []}
    assert other.get(f"/v1/graphs/{graphs['vit']}/nearest").status_code == 404


def test_measured_steps_become_a_profile(open_service: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task checker queues the fitting, a runner does it, and the next forecast can name it."""
    monkeypatch.setattr(task_checker, "LOOK", 0.0)
    client = open_service(job_runners=0)
    for number, name in enumerate(("cnn", "llama", "vit")):
        graph = client.post("/v1/graphs", content=(BASES / f"{name}.graph").read_bytes()).json()["hash"]
        for cluster in ("l40s", "2xl40s"):
            assert [job["kind"] for job in client.get("/v1/jobs").json()] == []
            asked = {"graph": graph, "on": cluster}
            seconds = client.post("/v1/forecasts", json=asked).json()["step_time"]["seconds"]
            measured = client.post("/v1/measurements", json=asked | {"seconds": 2 * seconds})
            assert measured.status_code == 201
            if number == 2:
                break
    jobs = client.get("/v1/jobs").json()
    assert [job["kind"] for job in jobs] == ["adapt"]
    service = client.app.state.service  # type: ignore[attr-defined]
    runners = Runners(service.database, 1, lambda: Child.forked(job_worker.serve))
    try:
        wait_until(lambda: client.get(f"/v1/jobs/{jobs[0]['id']}").json()["state"] not in ("queued", "running"))
    finally:
        runners.close()
    assert client.get(f"/v1/jobs/{jobs[0]['id']}").json()["state"] == "done", client.get("/v1/jobs").json()
    assert [profile["name"] for profile in client.get("/v1/profiles").json()] == ["l40s"]
    assert client.get("/v1/check", params={"on": "l40s"}).json()["how"] == "profile"
    fitted = client.post("/v1/forecasts", json=asked | {"profile": "l40s"})
    assert fitted.json()["step_time"]["seconds"] == pytest.approx(2 * seconds, rel=0.15)
    assert {course["verdict"] for course in client.get("/v1/drift").json()} == {"too few"}
    client.post("/v1/measurements", json=asked | {"seconds": 2 * seconds})
    assert len(client.get("/v1/jobs").json()) == 1  # the profile is there, and nothing has drifted from it


def test_a_ray_cluster_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0, "memory": 1e9, "accelerator_type:L40S": 1.0}},
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0, "memory": 1e9, "accelerator_type:L40S": 1.0}},
        {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 4.0}},
    ]
    found = ray_nodes.counted(nodes, {"CPU": 3.0, "GPU": 5.0})
    monkeypatch.setattr(ray_nodes, "ask", lambda address: found)
    told = [each for each in Collector("head:6379").collect().resources if each.source == "ray"]
    assert [(each.name, each.count, each.free, each.device) for each in told] == [
        ("cpu cores", 16, 3, None), ("L40S", 8, 5, "l40s"),
    ]  # fmt: skip


def test_devices_of_this_machine_are_asked_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for NVIDIA's library: two H200s, one with a process on it."""
    running = {0: ["a job"], 1: []}
    said = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number, nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=150_754_820_096, free=10**9),
        nvmlDeviceGetComputeRunningProcesses=running.__getitem__,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", said)
    found = list(nvml())
    assert [(row.device, row.free) for row in found] == [("h200", 0), ("h200", 1)]


def test_a_ray_cluster_that_is_not_there_is_said() -> None:
    assert "no Ray cluster" in Collector("127.0.0.1:9").collect().missing["ray"]
