"""Requests to the service: every address, with bodies, parameters and headers that nobody should send. 500 is a crash."""

from __future__ import annotations

import json
import random
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient

from foretell.errors import InputError
from foretell.serve.inference_engine import InferenceEngine
from foretell.serve.listener.app import make_app
from foretell.serve.service import Service
from foretell.serve.settings import Settings
from foretell.serve.worker import Bench, answer, unpack
from tests.fuzz.harness import Nonsense
from tests.fuzz.mutate import VALUES, change, damaged
from tests.fuzz.targets import graph as graph_target

WEIGHT, QUICK_WEIGHT = 2, 0.5
GRAPH = (Path(__file__).parents[1] / "bases" / "cnn.graph").read_bytes()
UNKNOWN = "0" * 64
# What people write into fields, and what looks like it.
WRITTEN = (
    "1,2,4",
    "²",
    "1,²",
    "٣",
    "8",
    "0.5",
    "1..2",
    "h200=1.9",
    "h200=nan",
    "=",
    "auto",
    "none,0.5",
    "10min",
    "1:45s",
    "spot",
    "dp=2",
)
_PLACES = (
    ("h200", "dp=1"), ("2xh200", "dp=2"), ("4xl40s", "dp=4,zero=2"), ("8xh100-sxm", "dp=8,zero=3"),
    ("4x8xa100-80g-sxm", "dp=32,zero=1"), ("t4", "dp=1"), ("2xgaudi-2", "dp=2,checkpointing=full"),
)  # fmt: skip


class _Worker:
    """Answers in this process: what is looked for is a request that breaks the service."""

    def __init__(self) -> None:
        self.knows: set[str] = set()
        self._bench = Bench()

    def ask(self, message: bytes, limit: float) -> tuple[dict[str, Any], bytes]:
        return unpack(answer(self._bench, *unpack(message)))


class _Engine(InferenceEngine):
    def _take(self, graph: str) -> Any:
        return _WORKER

    def _give_back(self, worker: Any) -> None:
        pass

    def _drop(self, worker: Any) -> None:
        pass


_WORKER = _Worker()


@cache
def client() -> tuple[TestClient, str]:
    folder = tempfile.mkdtemp(prefix="foretell-fuzz-")
    service = Service(
        Settings(database=f"sqlite:///{folder}/a.sqlite", workers=1, job_runners=0, team_jobs=10**9), _Engine
    )
    asks = TestClient(make_app(service), "http://127.0.0.1", raise_server_exceptions=False)
    graph = asks.post("/v1/graphs", content=GRAPH).json()["hash"]
    for devices in (1, 2, 4, 8, 16):  # so many steps a profile wants
        step = {"graph": graph, "on": f"{devices}xh200", "plan": f"dp={devices}", "seconds": 0.1}
        asks.post("/v1/measurements", json=step).raise_for_status()
    return asks, graph


def prepare() -> None:
    client()


def questions(graph: str) -> dict[str, dict[str, Any]]:
    """One for every address that takes JSON, each of which is answered as it is."""
    return {
        "/v1/forecasts": {
            "graph": graph, "on": "2xh200", "plan": "dp=2", "model": "roofline", "profile": None,
            "conditions": {"jitter": 0.01, "loader": 100.0}, "job": {"samples": 1e6, "checkpoint": {"every": 5, "seconds": 1.0}},
        },
        "/v1/measurements": {"graph": graph, "on": "h200", "plan": "dp=1", "seconds": 0.1, "allocated": 10**9},
        "/v1/plans": {"graph": graph, "gpus": ["h200"], "max_devices": 2, "samples": 1e6, "deadline": 3600.0,
                      "offers": "device,count,dollars_per_hour\nh200,1,3.5\nh200,2,7\n", "recompute": ["none", 0.5], "batches": [1, 2]},
        "/v1/scales": {"graph": graph, "on": "h200", "up_to": 4},
        "/v1/captures": {"source": "timm/resnet18", "batch": 8, "precision": "bf16", "training": True},
        "/v1/profiles": {"device": "h200", "name": "ours"},
    }  # fmt: skip


def _varied(rng: random.Random, question: dict[str, Any]) -> None:
    """Another one that can be answered: no two answers are found again by the same name."""
    if "plan" in question:
        question["on"], question["plan"] = rng.choice(_PLACES)
    if "conditions" in question:
        question["conditions"] = {"jitter": rng.uniform(0, 0.3), "loader": rng.uniform(1, 1e6)}
    for name in ("samples", "deadline", "seconds"):
        if name in question:
            question[name] *= rng.uniform(0.5, 2)


def case(rng: random.Random) -> None:
    asks, graph = client()
    asked = questions(graph)
    content: bytes | None = None
    headers = _headers(rng)
    path = rng.choice([*asked, *asked, "/v1/graphs", "reads", "form"])
    if path in asked:
        method, question = "POST", asked[path]
        headers = {"Content-Type": "application/json", **headers}  # else no body is read
        _varied(rng, question)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            change(rng, question)
        content = json.dumps(question).encode("utf-8", "surrogatepass")
        content = damaged(rng, content) if rng.random() < 0.1 else content
    elif path == "/v1/graphs":
        method, content = "POST", graph_target.make(rng)
    elif path == "form":
        check(_filled_in(asks, rng, graph))
        return
    else:
        method, path = _read(rng, graph)
    check(asks.request(method, path, content=content, headers=headers))


def _read(rng: random.Random, graph: str) -> tuple[str, str]:
    value = quote(str(rng.choice(VALUES)).encode("utf-8", "replace")[:200], safe="")
    name = rng.choice((graph, UNKNOWN, UNKNOWN[:32], value))
    paths = (
        f"/v1/graphs/{name}", f"/v1/graphs/{name}/file", f"/v1/forecasts/{name}", f"/v1/forecasts?graph={name}&most={value}",
        f"/v1/jobs/{name}", f"/v1/jobs/{name}/result", f"/v1/plans/{name}", f"/v1/check?on={value}&model={value}", "/healthz",
        f"/picture?device={value}&count={value}", f"/names?source={value}", f"/forecasts/{name}?begin={value}", f"/jobs/{name}",
        f"/forecasts/{name}/timeline?begin=0&end={value}", f"/devices?compare={value}", f"/static/{value}", "/history", "/v1/drift",
        f"/captures/{name}?then={value}",
        f"/v1/measurements?most={value}", f"/v1/jobs?most={value}", f"/{value}", "/openapi.json", "/metrics", "/v1/models",
    )  # fmt: skip
    return rng.choice(("GET", "GET", "GET", "DELETE", "POST", "PUT", "OPTIONS", "HEAD")), rng.choice(paths)


@cache
def asked_by(path: str) -> list[str]:
    """The names of all fields of a page."""
    asks, _ = client()
    page = asks.get({"/ask": "/"}.get(path, path), headers={"Accept": "text/html"}).text
    return sorted({*re.findall(r'<(?:input|select|textarea)[^>]* name="([^"]+)"', page), "key", "then"})


def _filled_in(asks: TestClient, rng: random.Random, graph: str) -> Any:
    """A form of the pages, some of its fields with what nobody should write."""
    fields: dict[str, dict[str, str]] = {
        "/ask": {
            "way": "kept",
            "graph": graph,
            "device": "h200",
            "count": "2",
            "nodes": "1",
            "plan": "dp=2",
            "written": "",
        },
        "/planner": {
            "way": "kept",
            "graph": graph,
            "gpus": "h200",
            "max_devices": "2",
            "samples": "1e6",
            "deadline_hours": "1",
        },
        "/devices": {
            "name": "../x",
            "title": "a",
            "size": "1 GiB",
            "fp32": "1 TFLOP/s",
            "units": "1",
            "clock": "1",
            "node": "1",
        },
        "/signin": {"key": "ftl_0"},
    }
    path = rng.choice([*fields])
    form = fields[path]
    if rng.random() < 0.7:  # one or two of all that the page asks for
        for name in rng.sample(asked_by(path), 2):
            form[name] = rng.choice((*WRITTEN, str(rng.choice(VALUES)))).encode("utf-8", "replace").decode()[:3000]
    for name in rng.sample([*form], rng.choice((0, 1, 1, len(form)))):
        form[name] = str(rng.choice(VALUES)).encode("utf-8", "replace").decode()[:3000]
    if path == "/devices":
        form["name"] = "../x"  # what is kept would be kept for real
    if rng.random() < 0.3:
        return asks.get(path, params=form)
    if rng.random() < 0.3:
        return asks.post(path, data=form, files={"file": ("a.graph", graph_target.make(rng))})
    return asks.post(path, data=form)


def _headers(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.8:
        return {}
    text = str(rng.choice(VALUES)).encode("ascii", "replace").decode()[:200].replace("\x1b", "")
    name = rng.choice(("Authorization", "Content-Type", "Origin", "Host", "Last-Event-ID", "Accept"))
    return {name: text}


def check(answer: Any) -> None:
    if answer.status_code >= 500:
        raise RuntimeError(f"{answer.request.method} {answer.request.url}: {answer.text[:1000]}")
    if answer.status_code >= 400:
        html = answer.headers.get("content-type", "").startswith("text/html")
        if answer.request.method != "HEAD" and not (answer.text if html else answer.json()["what"]).strip():
            raise Nonsense("a problem without a word")
        raise InputError(f"{answer.status_code} {answer.text[:300]}")
