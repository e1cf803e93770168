"""Questions about good graphs: plans, clusters, conditions and jobs of any combination; answers must be possible."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import foretell
from tests.fuzz.answers import check_forecast

WEIGHT = 2
BASES = sorted((Path(__file__).parents[1] / "bases").glob("*.graph"))
DEVICES = ("h200", "h100-sxm", "a100-sxm-40g", "t4", "v100-sxm-16g", "tpu-v4", "l40s", "cpu")
SMALL = (1, 1, 1, 2, 2, 3, 4, 8)
HOSTILE = (0, -1, True, None, 1.5, "x", float("nan"), float("inf"), 10**30, 2**40, [], 7)
SETTINGS: dict[str, tuple[Any, ...]] = {
    "ep": (1, 2, 4),
    "zero": (0, 1, 2, 3),
    "hybrid_shard": (None, 1, 2, 4),
    "sequence_parallel": (True, False),
    "schedule": ("gpipe", "1f1b", "interleaved", "zero-bubble"),
    "virtual_stages": (1, 2, 3),
    "stages": (None, "1-1", "0-2", "1-1-0", (1, 1)),
    "checkpointing": ("none", "full", "selective", 0.5, 0, 1),
    "grad_accumulation": (None, 1, 2, 4, 8, 64, 1000),
    "bucket_bytes": (1, 1000, 2**20, 2**40),
    "overlap": (True, False),
    "servers": (0, 1, 3),
    "asynchronous": (True, False),
    "data_parallel": ("ddp", "dp"),
}


@cache
def base(number: int) -> foretell.Graph:
    return foretell.Graph.load(BASES[number])


def prepare() -> None:
    foretell.forecast(base(0), "h200")


def case(rng: random.Random) -> None:
    graph = base(rng.randrange(len(BASES)))
    sizes = {name: rng.choice(SMALL) if rng.random() < 0.5 else 1 for name in ("dp", "tp", "pp", "cp")}
    chosen = {name: rng.choice(SETTINGS[name]) for name in rng.sample(sorted(SETTINGS), rng.choice((0, 1, 2, 4)))}
    if rng.random() < 0.1:
        chosen[rng.choice([*SETTINGS, "dp"])] = rng.choice(HOSTILE)
    plan = foretell.Plan(**{**sizes, **chosen})
    if foretell.Plan.parse(str(plan)) != plan:
        raise AssertionError(f"{plan} reads back as {foretell.Plan.parse(str(plan))}")
    answer = foretell.forecast(
        graph, _cluster(rng, plan), plan, model=rng.choice(("roofline", "h200-2026.11")), **_around(rng)
    )
    check_forecast(answer)
    json.loads(answer.to_json())


def _cluster(rng: random.Random, plan: foretell.Plan) -> str:
    device, devices = rng.choice(DEVICES), plan.devices
    if rng.random() < 0.3 and devices % 2 == 0:
        return f"{devices // 2}x2x{device}"
    return f"{devices + (rng.random() < 0.02)}x{device}"


def _around(rng: random.Random) -> dict[str, Any]:
    def number(*usual: float | None) -> Any:
        return rng.choice(HOSTILE) if rng.random() < 0.05 else rng.choice(usual)

    conditions = job = None
    if rng.random() < 0.3:
        conditions = foretell.Conditions(
            loader=number(None, 1.0, 1e6),
            jitter=number(0.0, 0.004, 0.5),
            slowdown=number(None, 1.0, 2.0),
            expert_skew=number(None, 1.0, 4.0),
        )
    if rng.random() < 0.2:
        pause = foretell.Pause(every=number(1, 1000), seconds=number(0.0, 90.0))
        job = foretell.JobLength(**{rng.choice(("samples", "tokens")): number(1, 1e6, 1e18)}, evaluation=pause)
    return {"conditions": conditions, "job": job}
