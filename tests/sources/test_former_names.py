"""Sources that were measured under names their code no longer has: all resolve, and points keep their keys."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from foretell.measure.record import Point, StepRow
from foretell.sources.former_names import current_source, stored_source
from foretell.sources.resolve import find_function
from foretell.sources.settings import converted, settings_of
from foretell.store.store import Store

ROOT = Path(__file__).parents[2]


@cache
def steps() -> tuple[StepRow, ...]:
    return tuple(Store(ROOT / "bench" / "data" / "h200").steps())


def test_every_stored_source_resolves_and_takes_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # a stored file is named from there
    moved = 0
    for source in sorted({step.source for step in steps()}):
        moved += current_source(source) != source
        known = settings_of(find_function(source))
        for step in steps():
            if step.source == source:
                converted(source, json.loads(step.settings), known)
    assert moved > 20


def test_a_point_keeps_its_key_under_either_name() -> None:
    for step in steps():
        for source in (step.source, current_source(step.source)):
            point = Point(source=source, settings=json.loads(step.settings), kind=step.kind, plan=step.plan)
            assert point.key == step.point, source


def test_names_go_both_ways_and_others_stay() -> None:
    for source in {step.source for step in steps()}:
        assert stored_source(current_source(source)) == source
    for source in ("timm/resnet50", "train.py:linear", "foretell.measure.pools:linear"):
        assert current_source(source) == stored_source(source) == source
