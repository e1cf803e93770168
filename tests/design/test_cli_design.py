"""`foretell design` as a user runs it: candidates in, a campaign and a page out, the store taken into account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from foretell.campaign.jobs import Campaign
from foretell.cli import app
from foretell.design.cache import op_sets, stored_op_sets
from foretell.design.pool.shapes import candidates
from foretell.measure.record import GraphRow, Point, Record, StepRow
from foretell.store.store import Store

POINTS = [p for p in candidates() if p.source.endswith((":cast", ":elementwise", ":linear"))][:12]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETELL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORETELL_STORE", raising=False)
    Campaign.of(POINTS).save("pool.jsonl")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["design", *arguments])


def test_a_campaign_and_a_page(home: Path) -> None:
    ended = run("--pool", "pool.jsonl", "--on", "h200", "--budget", "0.6", "--out", "next.jsonl", "--html", "next.html")
    assert ended.exit_code == 0, ended.output
    assert "of 12 candidates (d-optimal) for NVIDIA H200" in ended.output
    assert "Measure first" in ended.output
    chosen = Campaign.load("next.jsonl")
    assert 0 < len(chosen.points) < 12
    assert {p.key for p in chosen.points} < {p.key for p in POINTS}
    assert chosen.devices == {"h200"}
    assert "<svg" in (home / "next.html").read_text()


def test_json_and_methods(home: Path) -> None:
    answer = {}
    for method in ("d-optimal", "a-optimal", "random"):
        ended = run("--pool", "pool.jsonl", "--on", "h200", "--budget", "0.5", "--method", method, "--json")
        assert ended.exit_code == 0, ended.output
        answer[method] = json.loads(ended.stdout)
        assert answer[method]["seconds"] <= 0.5
    assert answer["d-optimal"]["information"] >= max(answer[m]["information"] for m in answer) - 1e-9


def test_the_store_is_taken_into_account(home: Path) -> None:
    """A point measured on this device is no candidate, and its ops are known; on another device it is one."""
    from foretell.capture import capture
    from foretell.sources.resolve import load_workload

    store = Store("measurements")
    for point, name in ((POINTS[0], "h200"), (POINTS[1], "a100-sxm-80g")):
        graph = capture(load_workload(point.source, point.settings))  # by a fork, which is there at once
        step = StepRow(
            point=point.key, kind=point.kind, source=point.source, settings=point.settings_text,
            graph=graph.content_hash, device=name,
        )  # fmt: skip
        store.append([Record(step=step, graph=GraphRow(hash=graph.content_hash, name="x", file=graph.to_bytes()))])
    ended = run("--pool", "pool.jsonl", "--on", "h200", "--budget", "1h", "--json")
    answer = json.loads(ended.stdout)
    assert (answer["candidates"], answer["known"]) == (11, 1)
    assert POINTS[0].key not in {choice["point"] for choice in answer["choices"]}
    assert set(dict(stored_op_sets(store))) == {POINTS[0].key, POINTS[1].key}


def test_sources_multiply_out(home: Path) -> None:
    ended = run(
        "foretell.design.pool.operators:linear", "--set", "rows=8,512", "--set", "precision=fp32,bf16", "--on", "h200",
        "--budget", "1h", "--json",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["candidates"] == 4


def test_what_cannot_be_captured_is_reported(home: Path) -> None:
    bad = Point(source="foretell.design.pool.operators:linear", settings={"rows": "-1"}, kind="operators")
    found, failed = op_sets([POINTS[0], bad])
    assert set(found) == {POINTS[0].key}
    assert "rows must be from 1" in failed[bad.key]
    again, _ = op_sets([POINTS[0]])  # from the cache
    assert again == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "h200", "--budget", "1h"], "Give one of the two"),
        (["--pool", "operators", "x.py:f", "--on", "h200", "--budget", "1h"], "Give one of the two"),
        (["--pool", "pool.jsonl", "--set", "batch=4", "--on", "h200", "--budget", "1h"], "Leave it out"),
        (["--pool", "nothing.jsonl", "--on", "h200", "--budget", "1h"], "no campaign file"),
        (["--pool", "pool.jsonl", "--on", "h20o", "--budget", "1h"], "Did you mean 'h20'"),
        (["--pool", "pool.jsonl", "--on", "h200", "--budget", "soon"], "is not a number with a unit"),
        (["--pool", "pool.jsonl", "--on", "h200", "--budget", "1h", "--method", "best"], "Allowed: d-optimal"),
    ],
)
def test_slips_are_reported(home: Path, arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert message in " ".join(ended.output.split())
