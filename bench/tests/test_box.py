"""Foretell beside a real cluster, made of network namespaces."""

from __future__ import annotations

import importlib.util
import os
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
@pytest.mark.parametrize(("hosts", "rates"), [(2, (1e9, 2e8)), (4, (1e9, 2e8))])
def test_bytes_and_time_of_a_step_over_thin_links(hosts: int, rates: tuple[float, ...]) -> None:
    quiet = os.getloadavg()[0] < 0.5 * (os.cpu_count() or 1)
    found = list(benchmark().rows(hosts, rates, width=400))
    assert [row.bits_per_second for row in found] == list(rates)
    assert max(abs(row.bytes_off) for row in found) < 0.01
    if not quiet:
        pytest.skip("bytes are right; steps are not timed, as hosts share the cores with other work")
    assert max(abs(row.step_off) for row in found) < 0.15
    assert found[-1].step_seconds > 2 * found[-1].compute_seconds
