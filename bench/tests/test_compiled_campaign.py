"""The campaign of compiled steps: whoever takes times is alone, and every point leaves a row."""

from __future__ import annotations

import gzip
import json
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.measuring.compiled import campaign, crew
from foretell_bench.measuring.compiled.aligned import _near
from foretell_bench.measuring.compiled.blind import is_blind
from foretell_bench.measuring.compiled.campaign import Options
from foretell_bench.measuring.compiled.points import key, later, points
from foretell_bench.measuring.compiled.rows import keys_of

from foretell.sources.former_names import stored_source


class Pretended:
    """Compiles by writing to a file of its own again and again, and looks whether others still do while it takes times."""

    folder: Path

    def __init__(self, point: dict[str, Any], device: str) -> None:
        self.point = point

    def prepare(self) -> None:
        if self.point["source"] == "broken":
            raise ValueError("cannot be compiled")
        while not self.point.get("endless") and not (self.folder / "others").exists():
            time.sleep(0.01)  # until one is there to be stopped
        own = self.folder / self.point["source"]
        for count in range(10**6 if self.point.get("endless") else 1):
            own.write_text(str(count))
            (self.folder / "others").touch()
            time.sleep(0.01)

    def take(self) -> None:
        before = (self.folder / "endless").read_text()
        time.sleep(0.3)
        self.alone = (self.folder / "endless").read_text() == before

    def finish(self) -> dict[str, Any]:
        seconds = {"step_seconds": 1.0}
        return {**self.point, "eager": seconds, "compiled": seconds, "alone": self.alone, "graphs": []}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    Pretended.folder = tmp_path
    wanted: list[dict[str, Any]] = [
        {"source": name, "settings": {}, "mode": "default", "endless": name == "endless"}
        for name in ("endless", "first", "broken", "second")
    ]
    monkeypatch.setattr(crew, "CompiledStep", Pretended)
    monkeypatch.setattr(campaign, "points", lambda done: wanted)
    monkeypatch.setattr(campaign, "_LOADED", ())
    campaign.run(tmp_path / "out", Options(workers=3, limit=3.0, seconds=60.0))
    files = sorted((tmp_path / "out").glob("*.gz"))
    return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_whoever_takes_times_is_alone_and_every_point_leaves_a_row(measured: list[dict[str, Any]]) -> None:
    found = {row["source"]: row for row in measured}
    assert sorted(found) == ["broken", "endless", "first", "second"]
    assert found["first"]["alone"]
    assert found["second"]["alone"]
    assert "cannot be compiled" in found["broken"]["error"]
    assert found["endless"]["error"] == "not compiled after 3 s"


def test_points_begin_with_networks_that_nobody_measured() -> None:
    every = points()
    first = every[0]
    left = points({key(first)})
    assert key(first) not in map(key, left)
    again = [point for point in left if point["source"] == first["source"] and point["mode"] == "default"]
    assert left[-len(again) :] == again


def test_the_later_part_is_as_it_was_drawn_and_blind_as_a_whole() -> None:
    """Drawn before any of it was measured; what is measured since does not change it."""
    before = keys_of(Path(__file__).parents[1] / "data/h200-compiled")
    drawn = later(before)
    assert sha256("\n".join(map(key, drawn)).encode()).hexdigest().startswith("eac4233cd883ac12")
    assert not {stored_source(point["source"]) for point in drawn} & {name.partition("?")[0] for name in before}
    assert all(map(is_blind, drawn))
    assert (
        sum(point["mode"] == "reduce-overhead" or point["settings"].get("optimizer") == "none" for point in drawn) >= 13
    )


def test_blind_generated_and_hand_written_networks_are_blind_here_too() -> None:
    for source, blind in (
        ("generated/8", True),
        ("generated/9", False),
        ("foretell_bench.measuring.h200.kinds.blind.sequences:phonemes", True),
        ("foretell_bench.measuring.h200.kinds.tables:dot_interaction", False),
        ("benchmarks/memory/workloads.py:moe", False),
        ("hf/bert-base", True),
    ):
        assert is_blind({"source": source}) == blind, source


def test_what_a_padded_index_reads_is_read_off_it() -> None:
    """Reflected sides are absolute values in an index."""
    assert _near("48*c0 + c1 - Abs(Abs(c1 - 2) - 19)", 2) == 0
    assert _near("c1 + Abs(c1)", 2) == 2
