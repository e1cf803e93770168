"""Capture: Workload → Graph with no accelerator. torch lives here.

The step is recorded in a child process, which may crash without taking the program along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from foretell.capture import cache as graph_cache
from foretell.capture.child import capture_source, capture_workload
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.sources import check_source
from foretell.workload import Workload

__all__ = ["capture"]


def capture(
    workload: Workload | Graph | str,
    settings: Mapping[str, str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    cache: bool = True,
) -> Graph:
    """The graph of a Workload, of a SOURCE with its settings, or of a saved `.graph` file; a Graph is its own.

    Settings are a SOURCE's: whatever is a workload or a graph already refuses them.
    """
    report = progress or (lambda text: None)
    if isinstance(workload, str):
        check_source(workload)
    if not isinstance(workload, str) or workload.endswith(".graph"):
        _refuse_settings(workload, settings)
    if isinstance(workload, Graph):
        return workload
    if isinstance(workload, Workload):
        report(f"capturing {workload.name}")
        return capture_workload(workload)
    if workload.endswith(".graph"):
        report(f"reading {workload}")
        return Graph.load(workload)
    settings = dict(settings or {})
    key = graph_cache.key(workload, settings)
    if cache and (known := graph_cache.get(key)) is not None:
        return known
    report(f"capturing {workload}")
    graph, read = capture_source(workload, settings)
    if cache:
        graph_cache.put(key, graph, read)
    return graph


def _refuse_settings(workload: Workload | Graph | str, settings: Mapping[str, str] | None) -> None:
    if not settings:
        return
    given = ", ".join(f"{name}={value}" for name, value in settings.items())
    if isinstance(workload, Workload):
        raise InputError(
            f"{given} cannot be set: the workload {workload.name!r} is made already. "
            "Make it with these settings, or give the SOURCE of the function that makes it."
        )
    name = workload if isinstance(workload, str) else f"the graph {workload.name!r}"
    raise InputError(f"{given} cannot be set: {name} is captured already. Give the source it was captured from.")
