"""Capturing changes a process for good, so the tests do it in forked children."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from foretell.capture.child import capture_workload
from foretell.graph import Graph
from foretell.sources.files import load_workload
from foretell.workload import Workload

settings.register_profile("busy", deadline=None)  # others may use this machine
settings.load_profile("busy")


@pytest.fixture
def capture_in_child() -> Callable[..., Graph]:
    """`capture_in_child(workload)` or `capture_in_child("timm/resnet18", batch="2")`."""

    def run(source: str | Workload, **settings: str) -> Graph:
        workload = source if isinstance(source, Workload) else load_workload(source, settings)
        return capture_workload(workload)

    return run
