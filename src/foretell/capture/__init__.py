"""Capture: Workload → Graph with no accelerator. torch lives here.

The step is recorded in a child process, which may crash without taking the program along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from foretell.capture import cache as graph_cache
from foretell.capture.child import capture_source, capture_workload
from foretell.graph import Graph
from foretell.workload import Workload

__all__ = ["capture"]


def capture(
    source: str | Workload,
    settings: Mapping[str, str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    cache: bool = True,
) -> Graph:
    """The graph of a workload: from a Workload, a SOURCE text with its settings, or a saved `.graph` file."""
    tell = progress or (lambda text: None)
    if isinstance(source, Workload):
        tell(f"capturing {source.name}")
        return capture_workload(source)
    settings = dict(settings or {})
    if source.endswith(".graph"):
        tell(f"reading {source}")
        return Graph.load(Path(source))
    key = graph_cache.key(source, settings)
    if cache and (known := graph_cache.get(key)) is not None:
        return known
    tell(f"capturing {source}")
    graph, read = capture_source(source, settings)
    if cache:
        graph_cache.put(key, graph, read)
    return graph
