"""Peaks of steps that were measured again count instead of those before."""

from __future__ import annotations

from pathlib import Path

import pytest
from foretell_bench.tables.generated import judged_rows

from foretell.measure.record import GraphRow, Record, StepRow
from foretell.store.store import Store
from tests.parallel.models import graph


def recorded(date: str, allocated: int, **more: float) -> Record:
    captured = graph("cnn")
    row = GraphRow(hash=captured.content_hash, name=captured.name, file=captured.to_bytes(packed=False))
    timed = bool(more)
    step = StepRow(
        point="p", kind="step", source="generated/4", settings="{}", outcome="ok", device="h200", date=date, occasion=date,
        graph=row.hash if timed else None, peak_allocated=allocated, peak_reserved=2 * allocated, step_seconds=1.0, **more,
    )  # fmt: skip
    return Record(step=step, graph=row if timed else None)


@pytest.mark.parametrize(("date", "counts"), [("2026-11-19T18:40:00+00:00", 67), ("2026-11-18T18:40:00+00:00", 100)])
def test_the_peaks_of_a_step_are_those_without_what_came_before_it(tmp_path: Path, date: str, counts: int) -> None:
    stores = [Store(tmp_path / name) for name in ("first", "again")]
    stores[0].append([recorded("2026-11-16T12:00:00+00:00", 100, device_seconds=0.5)])
    stores[1].append([recorded(date, 67)])
    [(row, _)] = judged_rows([tmp_path / "first", tmp_path / "again"], "h200", lambda source: True, lambda text: None)
    assert (row.peak_allocated, row.peak_reserved, row.device_seconds) == (counts, 2 * counts, 0.5)
