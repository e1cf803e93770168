"""Capture: a Workload, or a training script as it is → Graph with no accelerator. torch lives here.

The step is recorded in a child process, which may crash without taking the program along.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from foretell.capture import cache as graph_cache
from foretell.capture.child import AS_WRITTEN, capture_script, capture_source, capture_workload
from foretell.capture.fingerprint import fingerprint
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.sources import check_source
from foretell.sources.configs import configuration_of
from foretell.sources.scripts import Script, script_of
from foretell.sources.settings import texts_of
from foretell.workload import Workload

__all__ = ["capture"]


def capture(
    workload: Workload | Graph | Script | str,
    settings: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    cache: bool = True,
    output: Callable[[bytes], None] | None = None,
    compiled: bool = True,
) -> Graph:
    """Record one step without an accelerator: every operator, with shapes and no contents.

    Args:
        workload: A Workload, a SOURCE, a training script or a saved `.graph` file; a Graph is its own.
        settings: Parameters of a SOURCE, as texts or Python values; whatever is a workload or a graph already refuses them.
        progress: Is called with a line now and then.
        cache: Whether the graph is kept, on disk or for as long as the Workload lives.
        output: Is given what the user's code prints.
        compiled: Whether torch.compile is followed; else the step is as it is written.

    Returns:
        The graph of the steady-state step.

    Raises:
        InputError: The workload cannot be found, or fails in its own code.

    Examples:
        >>> foretell.capture_graph("torchvision/resnet18").training
        True
    """
    report = progress or (lambda text: None)
    workload = script_of(workload)
    if isinstance(workload, str):
        check_source(workload)
    if not isinstance(workload, str) or workload.endswith(".graph"):
        _refuse_settings(workload, settings)
    if isinstance(workload, Graph):
        return workload
    if isinstance(workload, Workload):
        return _once(workload, cache and output is None, report, output, compiled)
    if isinstance(workload, Script):
        if not compiled:
            workload = replace(workload, environment={**dict(workload.environment), **AS_WRITTEN})
        script = workload

        def run() -> tuple[Graph, dict[str, str]]:
            report(f"running {script.path} until its third step")
            return capture_script(script, output, lambda where: report(f"running {script.path}: {where}"))

        return _cached(script.path, {"script": json.dumps(script.to_dict())}, cache, run)
    if workload.endswith(".graph"):
        report(f"reading {workload}")
        return Graph.load(workload)
    given = texts_of(settings)

    def load() -> tuple[Graph, dict[str, str]]:
        report(f"capturing {workload}")
        return capture_source(workload, given, output, compiled)

    # A launch script may hang on the environment: what it comes to is part of the question.
    configuration = configuration_of(workload, given)
    question = (
        given | ({"configuration": repr(configuration)} if configuration else {}) | ({} if compiled else AS_WRITTEN)
    )
    return _cached(workload, question, cache, load)


_captured: WeakKeyDictionary[Workload, dict[bool, tuple[str, Graph, dict[str, str]]]] = WeakKeyDictionary()


def _once(
    workload: Workload,
    cache: bool,
    report: Callable[[str], None],
    output: Callable[[bytes], None] | None,
    compiled: bool,
) -> Graph:
    """A Workload is captured once in a process, and again when something that its functions refer to has changed."""
    key = fingerprint(workload) if cache else None
    if key is not None and (known := _captured.get(workload, {}).get(compiled)) is not None:
        was, graph, read = known
        if was == key and not graph_cache.changed(read):
            return graph
    report(f"capturing {workload.name}")
    graph, read = capture_workload(workload, output, compiled)
    if key is not None:
        _captured.setdefault(workload, {})[compiled] = key, graph, read
    return graph


def _cached(
    source: str, settings: Mapping[str, str], cache: bool, make: Callable[[], tuple[Graph, dict[str, str]]]
) -> Graph:
    key = graph_cache.key(source, settings)
    if cache and (known := graph_cache.get(key)) is not None:
        return known
    graph, read = make()
    if cache:
        graph_cache.put(key, graph, read)
    return graph


def _refuse_settings(workload: Workload | Graph | Script | str, settings: Mapping[str, Any] | None) -> None:
    if not settings:
        return
    given = ", ".join(f"{name}={value}" for name, value in settings.items())
    if isinstance(workload, Workload):
        raise InputError(
            f"{given} cannot be set: the workload {workload.name!r} is made already. "
            "Make it with these settings, or give the SOURCE of the function that makes it."
        )
    if isinstance(workload, Script):
        raise InputError(
            f"{given} cannot be set: {workload.path} is a script. Give it arguments of its own: … {workload.path} -- ARGUMENTS, "
            "or name a function in it that returns a Workload."
        )
    name = workload if isinstance(workload, str) else f"the graph {workload.name!r}"
    raise InputError(f"{given} cannot be set: {name} is captured already. Give the source it was captured from.")
