"""Foretell beside a real cluster, made of network namespaces."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.measure import netns

why_not = cache(netns.why_not)


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "scripts" / "box.py"
    spec = importlib.util.spec_from_file_location("box_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["box_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif("why_not()", reason="no cluster in a box here")
def test_bytes_and_time_of_a_step_over_thin_links() -> None:
    [row] = benchmark().rows(2, [2e8], 200)
    assert abs(row.bytes_off) < 0.01
    assert abs(row.step_off) < 0.25  # 15 % on a quiet machine, see docs/accuracy/distributed.md
    assert row.step_seconds > 2 * row.compute_seconds
