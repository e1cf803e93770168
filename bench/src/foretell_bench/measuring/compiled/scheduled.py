"""What Inductor schedules while a step compiles: its nodes in order, with what they read, write and compute."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch._inductor import ir, scheduler
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.virtualized import V


@dataclass(slots=True)
class Scheduled:
    """Graphs in the order in which they were compiled."""

    graphs: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        codegen: Any = scheduler.Scheduler.codegen
        define: Any = TritonScheduling.define_kernel
        graphs = self.graphs

        def watched_codegen(own: Any) -> Any:
            graphs.append(_graph(own))
            return codegen(own)

        def watched_define(own: Any, src_code: Any, node_schedule: Any, kernel: Any) -> Any:
            name = define(own, src_code, node_schedule, kernel)
            nodes = [n.get_name() for n in node_schedule if isinstance(n, scheduler.BaseSchedulerNode)]
            graphs[-1]["kernels"].append([name, nodes])
            return name

        with (
            mock.patch.object(scheduler.Scheduler, "codegen", watched_codegen),
            mock.patch.object(TritonScheduling, "define_kernel", watched_define),
        ):
            yield


def _graph(own: Any) -> dict[str, Any]:
    graph = V.graph
    names = {"id": graph.graph_id, "backward": bool(graph.is_backward), "inference": bool(graph.is_inference)}
    return {**names, "nodes": [_node(n) for n in own.nodes], "kernels": []}


def _node(node: Any) -> dict[str, Any]:
    """One entry of the schedule: a loop, several that were fused, a library's kernel, or nothing at all."""
    parts = list(node.get_nodes())
    described: dict[str, Any] = {
        "name": node.get_name(),
        "kind": type(node).__name__,
        "names": [n.get_name() for n in parts],
        "origins": sorted({str(o.target) for n in parts if n.node is not None for o in _origins(n.node)}),
        "reads": _accesses(node, node.read_writes.reads),
        "writes": _accesses(node, node.read_writes.writes),
    }
    with contextlib.suppress(Exception):
        described["bytes"] = {k: int(v) for k, v in node.get_read_write_buffer_accesses(True, True).items()}
    if node.is_extern() or node.is_template():
        described["library"] = [
            _library(n.node) for n in parts if n.node is not None and not isinstance(n, scheduler.SchedulerNode)
        ]
    described["loops"] = [_loop(n) for n in parts if isinstance(n, scheduler.SchedulerNode)]
    return described


def _origins(node: Any) -> Any:
    return getattr(node, "origins", None) or ()


def _loop(node: Any) -> dict[str, Any]:
    data = getattr(node.node, "data", None)
    sizes, reductions = node.get_ranges()
    loop: dict[str, Any] = {"sizes": _numbers(sizes), "reduced": _numbers(reductions)}
    if (body := getattr(node, "_body", None)) is not None:
        loop["ops"] = dict(collections.Counter(getattr(body, "op_counts", {})))
    if isinstance(data, ir.Reduction):
        loop["reduction"] = str(data.reduction_type)
    loop["data"] = type(data).__name__
    return loop


def _library(node: Any) -> dict[str, Any]:
    """A product, a convolution or another op of a library."""
    found: dict[str, Any] = {"kind": type(node).__name__}
    for key in ("python_kernel_name", "op_overload"):
        if (value := getattr(node, key, None)) is not None:
            found[key] = str(value)
    found["inputs"] = [_tensor(each) for each in getattr(node, "inputs", ()) or ()]
    found["output"] = _tensor(node)
    found["constants"] = [repr(c)[:80] for c in getattr(node, "constant_args", ()) or ()]
    return found


def _tensor(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tensor(each) for each in value]
    try:
        return [str(value.get_dtype())[6:], _numbers(value.get_size()), _numbers(value.get_stride())]
    except Exception:
        return str(type(value).__name__)


def _accesses(node: Any, deps: Any) -> list[Any]:
    found = []
    for dep in deps:
        buffer = V.graph.try_get_buffer(dep.name) if hasattr(V.graph, "try_get_buffer") else None
        kind = type(dep).__name__
        if kind == "WeakDep":
            continue
        entry: list[Any] = [dep.name, _tensor(buffer) if buffer is not None else None]
        if kind == "MemoryDep":
            entry += [str(dep.index), _numbers(dep.size), dep.mode]
        found.append(entry)
    return found


def _numbers(values: Any) -> list[Any]:
    return [_number(v) for v in values]


def _number(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError):
        return str(value)
