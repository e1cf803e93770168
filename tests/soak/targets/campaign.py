"""Campaigns on one store, killed with their workers; the worker's instrument is this module."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretell.campaign.driver import Progress, run
from foretell.campaign.executor import LocalExecutor
from foretell.campaign.jobs import Campaign
from foretell.measure.record import Point, Record, StepRow
from foretell.store.store import Store

SIDE_BY_SIDE = 2  # they share the points
SECONDS = 2.5
POINTS = 400


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    campaign = Campaign.of([Point(source="timm/resnet18", settings={"batch": str(n)}) for n in range(POINTS)])

    def progress(now: Progress) -> None:
        if now.event.endswith(": ok"):
            say(now.event)

    run(campaign, Store(folder / "store"), LocalExecutor(["cpu"], instrument=__name__), progress=progress)
    time.sleep(60)  # all is measured: wait to be killed


def describe(device: str) -> dict[str, Any]:
    return {"device": "h200", "device_name": device}


def measure(point: Point, *, device: str) -> Record:
    time.sleep(0.05)
    return Record(step=StepRow(**point.columns, **describe(device), step_seconds=0.001, date=str(time.time_ns())))


def verify(folder: Path, said: Sequence[str]) -> str:
    promised = {line.partition(" batch=")[2].partition(" ")[0] for line in said}
    found = Counter(json.loads(step.settings)["batch"] for step in Store(folder / "store").steps())
    assert promised <= found.keys(), f"lost: {sorted(promised - found.keys())[:10]}"
    assert set(found.values()) <= {1}, f"measured twice: {found.most_common(5)}"
    return f"{len(promised)} points promised, all there; {len(found)} stored, each once"
