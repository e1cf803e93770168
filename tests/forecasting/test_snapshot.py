"""The snapshot of memory, read by torch's own tools."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

import foretell

from ..parallel.models import graph


def written(tmp_path: Path, on: str, plan: str) -> tuple[foretell.Forecast, dict[str, Any]]:
    forecast = foretell.forecast(graph("llama"), on=on, plan=plan)
    forecast.to_memory_snapshot(tmp_path / "snapshot.pickle")
    return forecast, pickle.loads((tmp_path / "snapshot.pickle").read_bytes())


def plain(lines: str) -> str:
    """In place of a program that torch would download."""
    return lines


def test_torchs_tools_read_a_snapshot(tmp_path: Path) -> None:
    _, data = written(tmp_path, "h100-sxm", "checkpointing=full")
    assert "total_reserved" in _memory_viz.segsum(data)
    assert "alloc" in _memory_viz.trace(data)
    assert "layers.0" in _memory_viz.memory(data, plain)
    assert "aten.embedding" in _memory_viz.segments(data, plain)
    for page in (_memory_viz.trace_plot(data), _memory_viz.segment_plot(data)):
        assert "MemoryViz.js" in page


@pytest.mark.parametrize("plan", ["dp=2,zero=3", "pp=2,grad_accumulation=4"])
def test_its_events_add_up_to_what_is_forecast(tmp_path: Path, plan: str) -> None:
    forecast, data = written(tmp_path, "2xh100-sxm", plan)
    assert len(data["device_traces"]) == len(forecast.ranks) == (2 if "pp" in plan else 1)
    peaks = []
    for device, events in enumerate(data["device_traces"]):
        live: dict[int, int] = {}
        peak = now = 0
        for event in events:
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
                now += event["size"]
                peak = max(peak, now)
            elif event["action"] == "free_completed":
                now -= live.pop(event["addr"])
        peaks.append(peak)
        mine = [s for s in data["segments"] if s["device"] == device]
        left = {b["address"]: b["size"] for s in mine for b in s["blocks"] if b["state"] == "active_allocated"}
        assert left == live
        assert all(s["total_size"] == sum(b["size"] for b in s["blocks"]) for s in mine)
        times = [event["time_us"] for event in events]
        assert times == sorted(times)
    assert max(peaks) == forecast.memory.allocated
