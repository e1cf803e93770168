"""Profiles: TOML files with changed fields; what is read makes a forecast fit."""

from __future__ import annotations

import random
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import foretell
from foretell import Graph, Profile
from foretell.profile import Card, Intervals, Links, MemoryFactors, Purpose
from tests.fuzz.answers import check_forecast
from tests.fuzz.mutate import change, damaged, scale
from tests.fuzz.targets.catalog import written

GRAPH = Path(__file__).parents[1] / "bases" / "experts.graph"


@cache
def text() -> str:
    card = Card(rows=12, sources=("runs.csv",), error_before=0.4, error_after=0.1, rows_left_out=3)
    purpose = Purpose(device="h200", cluster="8xh200", trainer="ours")
    with tempfile.TemporaryDirectory() as folder:
        made = Profile(
            name="ours",
            device=1.1,
            host=0.9,
            communication=1.3,
            fixed_seconds=0.01,
            purpose=purpose,
            card=card,
            families={"matmul": 1.2},
            links=Links(bandwidth=0.9, latency=1.2, crowding=0.3, neighbours=1.4),
            memory=MemoryFactors(allocated=1.1, reserved=1.05),
            intervals=Intervals(width=0.2),
        )
        return made.save(Path(folder) / "a.toml").read_text()


def make(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return damaged(rng, text().encode())
    data = tomllib.loads(text())
    for _ in range(rng.choice((1, 1, 3))):
        (scale if rng.random() < 0.5 else change)(rng, data)
    return "\n".join(written(data)).encode("utf-8", "surrogateescape")


def use(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_bytes(data)
        profile = Profile.load(path)
        assert Profile.load(profile.save(Path(folder) / "b.toml")) == profile
    check_forecast(foretell.forecast(Graph.load(GRAPH), "2xh200", model="roofline", profile=profile))
