"""Pages take what the command line takes, with its defaults, and every question is an address."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import FormData, QueryParams, UploadFile

from foretell.hardware.price_files import OWN_COLUMNS
from foretell.planner.handover import TOOLS
from foretell.serve.database.tables import Job
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.jobs.of_graph import PlanRequest
from foretell.serve.jobs.work import Means
from foretell.serve.listener.pages.forms import Form
from foretell.serve.listener.pages.planner import _recompute, written
from foretell.serve.problems import Problem
from foretell.serve.requests import RequestConditions, RequestJob

HTML = {"Accept": "text/html"}


@pytest.fixture
def graph(client: TestClient, graph_file: bytes) -> str:
    return str(client.post("/v1/graphs", content=graph_file).json()["hash"])


def names_of(page: str) -> set[str]:
    return set(re.findall(r'<(?:input|select)[^>]* name="([^"]+)"', page))


def test_the_page_has_every_setting_and_the_usual_precision(client: TestClient) -> None:
    page = client.get("/").text
    surrounds = set(RequestConditions.model_fields)
    paused = {"evaluate", "checkpoint", "startup", "failures", "preemptions", "restart"}
    assert {"source", "batch", "seq", "set", "on", "plan", "model", "profile", "job_samples", "job_tokens"} <= names_of(
        page
    )
    assert surrounds | paused <= names_of(page)
    assert '<option value="fp32" selected>' in page, "as on the command line"
    assert CaptureRequest(source="torchvision/resnet50").precision == "fp32"
    planner = names_of(client.get("/planner").text)
    spelt = {"batches": "micro_batches", "prices": "price", "conditions": "trainer", "job": "startup"}
    assert {spelt.get(name, name) for name in PlanRequest.model_fields if name != "graph"} <= planner | {"graph"}


def test_a_question_with_all_settings_is_an_address(client: TestClient, graph: str) -> None:
    question = {
        "graph": graph, "on": "8xh100-sxm", "trainer": "megatron", "host": "epyc-genoa", "loader": "3000", "jitter": "0.02",
        "job_samples": "1e6", "evaluate": "1000:90s", "checkpoint": "500:20s", "startup": "5min", "failures": "1e-5",
    }  # fmt: skip
    answer = client.get("/ask", params=question)
    assert (answer.status_code, answer.url.path.split("/")[1]) == (200, "forecasts")
    kept = client.app.state.service.stored(client.app.state.service.local, answer.url.path.split("/")[2])  # type: ignore[attr-defined]
    assert kept.question["conditions"]["trainer"] == "megatron"
    job = RequestJob.model_validate(kept.question["job"]).made()
    assert (job.samples, job.startup, job.interruptions and job.interruptions.per_device_hour) == (1e6, 300.0, 1e-5)
    again = re.search(r'href="(/\?[^"]+)">Change the question', answer.text)
    assert again is not None
    form = client.get(unescape(again[1])).text
    for said in ('value="megatron"', 'value="1000:90.0s"', 'value="300s"', "<details open>"):
        assert said.replace("90.0s", "90s") in form
    assert client.get("/ask", params=question | {"job_samples": ""}).status_code == 422, "pauses of no job"
    assert "no trainer" in client.get("/ask", params=question | {"trainer": "megatrom"}).text.lower()


def test_several_clusters_are_compared_with_intervals(client: TestClient, graph: str) -> None:
    page = client.get("/ask", params={"graph": graph, "on": "h200 8xh100-sxm l40s"})
    assert (page.status_code, page.url.path) == (200, "/compare")
    assert "3 forecasts side by side" in page.text
    assert page.text.count('class="interval"') == 3
    assert "1.00× (" in page.text
    assert client.get("/ask", params={"graph": graph, "on": " ".join(["h200"] * 7)}).status_code == 422
    alone = client.get("/compare", params={"forecast": page.url.params.get_list("forecast")[0]}, headers=HTML)
    assert (alone.status_code, "2 to 6" in alone.text) == (422, True)


def test_a_plan_is_asked_for_as_on_the_command_line_and_handed_over(client: TestClient, graph: str) -> None:
    form = {
        "way": "kept", "graph": graph, "epochs": "2", "dataset": "1e4", "deadline": "36h", "budget": "500", "confidence": "0.8",
        "gpus": "h100-sxm", "others": "l40s", "max_devices": "2", "micro_batches": "4", "recompute": "none,0.5",
        "price": "h100-sxm=1.9", "term": "on-demand", "trainer": "lightning", "checkpoint": "500:20s",
    }  # fmt: skip
    wait = client.post("/planner", data=form)
    assert wait.status_code == 200, wait.text
    id = wait.url.path.rpartition("/")[2]
    service = client.app.state.service  # type: ignore[attr-defined]
    question = service.jobs.queue.get(service.local, id).question
    assert (question["gpus"], question["deadline"], question["batches"]) == (["h100-sxm", "l40s"], 36 * 3600.0, [4])
    assert (question["prices"], question["recompute"]) == ({"h100-sxm": 1.9}, ["none", 0.5])
    assert (question["job"]["samples"], question["job"]["startup"]) == (2e4, 300.0)
    assert {"deadline=129600s", "price=h100-sxm%3D1.9", "trainer=lightning"} <= set(written(question).split("&"))
    done = PlanRequest.model_validate_json(json.dumps(question)).do(
        service.graph(service.local, graph).data, print, Means()
    )
    with service.database.writing() as session:
        job = session.get(Job, id)
        job.state, job.result, job.picture = "done", done.result, done.picture
    page = client.get(f"/jobs/{id}").text
    assert "Hand it over" in page
    for tool in ("torchrun", "slurm", "kubernetes"):
        file = client.get(f"/jobs/{id}/files", params={"tool": tool, "command": "train.py --lr 3e-4"})
        assert file.headers["content-disposition"] == f'attachment; filename="{TOOLS[tool].file}"'
        assert "train.py" in file.text
    assert client.get(f"/jobs/{id}/files", params={"tool": "torchrum"}).status_code == 422
    assert client.get(f"/jobs/{id}/files", params={"tool": "torchrun", "choice": 999}).status_code == 404
    plans = client.get("/history?kind=plans").text
    assert json.loads(done.result)["recommended"]["cluster"] in plans
    assert "Search</a>" in client.get("/history?kind=jobs").text


def test_prices_of_a_table_are_sent(client: TestClient, graph: str) -> None:
    row = "ours:one,h100-sxm,8,,,on-demand,here,8.0,2026-11-01,us"
    table = f"{','.join(OWN_COLUMNS)}\n{row}\n"
    form = {"way": "kept", "graph": graph, "samples": "1e6", "gpus": "h100-sxm", "max_devices": "8"}
    sent = client.post("/planner", data=form, files={"offers": ("prices.csv", table.encode())})
    assert sent.url.path.startswith("/jobs/"), sent.text
    wrong = client.post("/planner", data=form, files={"offers": ("prices.csv", b"a,b\n1,2\n")})
    assert (wrong.status_code, "the table of prices" in wrong.text.lower()) == (422, True)


def test_a_misspelt_network_is_refused_before_a_capture(client: TestClient) -> None:
    zoo = client.app.state.service.zoo  # type: ignore[attr-defined]
    zoo._names, zoo._started = ("torchvision/resnet50", "torchvision/resnet18"), True
    zoo._answered.set()
    refused = client.post("/ask", data={"way": "named", "source": "torchvision/resnet51"})
    assert (refused.status_code, "resnet50" in refused.text) == (422, True)
    assert 'value="torchvision/resnet51"' in refused.text, "what was written is still there"
    assert client.get("/v1/jobs").json() == []
    assert client.post("/v1/captures", json={"source": "torchvision/resnet51"}).status_code == 422
    taken = client.post("/v1/captures", json={"source": "torchvision/resnet18", "settings": {"image_size": 64}})
    assert taken.status_code == 202
    assert CaptureRequest(source="hf/gpt2", settings={"channels_last": True}).all_settings()["channels_last"] == "true"
    assert (
        client.post("/v1/captures", json={"source": "hf/gpt2", "settings": {"path": "/etc/passwd"}}).status_code == 422
    )


def test_a_stale_link_answers_in_words(client: TestClient) -> None:
    for place in ("/forecasts/abc", "/jobs/abc", "/captures/ABC"):
        page = client.get(place, headers=HTML)
        assert (page.status_code, "may have been cut short" in page.text) == (404, True)
        assert "^[" not in page.text
    assert client.get("/v1/forecasts/abc").status_code == 422


def test_the_api_has_a_page_with_an_example_of_each_schema(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert [name for name, about in schemas.items() if not about.get("examples")] == []
    page = client.get("/docs").text
    assert all(f'id="{name}"' in page for name in schemas)
    assert "POST</code> <code>/v1/forecasts" in page
    assert not re.findall(r'(?:src|href)="https?://', page)


def test_devices_are_found_and_sorted(client: TestClient) -> None:
    page = client.get("/devices").text
    assert page.count('name="compare"') == 30
    found = client.get("/devices", params={"find": "hopper h200"}).text
    assert 0 < found.count('name="compare"') < 10
    by_memory = client.get("/devices", params={"sort": "memory", "all": "true"}).text
    assert by_memory.count('name="compare"') > 100
    first = re.search(r'name="compare" value="([^"]+)"', by_memory)
    assert first is not None
    sizes = {each["name"]: each["memory_bytes"] for each in client.get("/v1/devices").json()}
    assert sizes[first[1]] == max(sizes.values())
    assert client.get("/devices", params={"sort": "colour"}).status_code == 422


def test_accuracy_is_shown_by_profile_over_time(client: TestClient, graph: str) -> None:
    seconds = client.post("/v1/forecasts", json={"graph": graph, "on": "h200"}).json()["step_time"]["seconds"]
    for factor in (1.0, 1.1, 1.2):
        client.post("/v1/measurements", json={"graph": graph, "on": "h200", "seconds": factor * seconds})
    page = client.get("/accuracy").text
    assert "By profile, over time" in page
    assert "no profile" in page


def test_fields_are_read_alike_from_forms_and_addresses() -> None:
    fields: list[tuple[str, UploadFile | str]] = [
        ("price", "h100-sxm=1.9, l40s=0.8"),
        ("batches", "1, 2"),
        ("empty", " "),
    ]
    for form in (Form(FormData(fields)), Form(QueryParams([(name, str(text)) for name, text in fields]))):
        assert form.numbers_by_name("price") == {"h100-sxm": 1.9, "l40s": 0.8}
        assert form.counts("batches") == [1, 2]
        assert "empty" not in form.texts_by_name()


@pytest.mark.parametrize("text", ["²", "1,²", "٣", "9" * 5000, "1,,2"])
def test_digits_that_are_no_number_are_refused(text: str) -> None:
    with pytest.raises(Problem, match="no whole numbers"):
        Form(QueryParams({"micro_batches": text})).counts("micro_batches")


def test_what_is_recomputed_is_a_part_or_a_word() -> None:
    assert _recompute("none, 0.5,1") == ["none", 0.5, 1.0]
    assert _recompute("²,1.5.2,.") == ["²", "1.5.2", "."]
