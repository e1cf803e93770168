"""The parameters of a step: where each is used, and which gradient is its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from foretell.graph import Graph, Layout

# Operators whose operands are parameters even where they are frozen; anything else that is not trained is a buffer.
_WEIGHS = frozenset(("aten.mm", "aten.addmm", "aten.convolution", "aten.embedding", "aten.linear", "aten._grouped_mm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    storage: int
    layout: Layout
    module: str  # where it is used first
    used: tuple[int, ...]  # forward ops that read it, in order
    gradient: int | None  # its storage; None: frozen
    ready: int  # the op that writes the gradient last


def parameters(graph: Graph) -> tuple[Parameter, ...]:
    """Parameters, trained and frozen, in the order of their first use. Buffers are not among them."""
    uses, layouts, weighing = _uses(graph)
    unclaimed: dict[int, list[tuple[int, str, int]]] = defaultdict(list)  # by size
    for gradient_storage, numel, gradient_module, written in _gradients(graph):
        unclaimed[numel].append((gradient_storage, gradient_module, written))
    found = []
    for storage in sorted(uses, key=lambda s: uses[s][0]):
        layout = layouts[storage]
        module = graph.ops[uses[storage][0]].module
        modules = {graph.ops[position].module for position in uses[storage]}
        gradient, ready = _claim(unclaimed[layout.numel], modules)
        if gradient is None and storage not in weighing:
            continue
        found.append(
            Parameter(storage=storage, layout=layout, module=module, used=tuple(uses[storage]), gradient=gradient, ready=ready)
        )  # fmt: skip
    return tuple(found)


def _uses(graph: Graph) -> tuple[dict[int, list[int]], dict[int, Layout], set[int]]:
    uses: dict[int, list[int]] = defaultdict(list)
    layouts: dict[int, Layout] = {}
    weighing: set[int] = set()
    made_from: dict[int, int] = {}  # a cast of a parameter counts as the parameter
    for position, op in enumerate(graph.ops):
        if op.phase != "forward":
            continue
        for tensor in op.inputs:
            storage = graph.tensors[tensor].storage
            if graph.storages[storage].role == "parameter" and graph.storages[storage].born < 0:
                uses[storage].append(position)
                layouts.setdefault(storage, graph.tensors[tensor].layout)
            source = made_from.get(storage, storage)
            if op.signature.name in _WEIGHS and source in uses:
                weighing.add(source)
            if len(op.inputs) == 1 and source in uses:
                for out in op.outputs:
                    made_from[graph.tensors[out].storage] = source
    return uses, layouts, weighing


def _gradients(graph: Graph) -> list[tuple[int, int, str, int]]:
    """(storage, numel, module, op that writes it last), in the order in which they become ready."""
    last: dict[int, int] = {}
    module: dict[int, str] = {}
    numel: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase != "backward":
            continue
        for tensor in op.outputs:
            storage = graph.tensors[tensor].storage
            if graph.storages[storage].role == "gradient":
                last[storage] = position
                numel.setdefault(storage, graph.tensors[tensor].layout.numel)
                if op.module:
                    module.setdefault(storage, op.module)
    return [(s, numel[s], module.get(s, ""), last[s]) for s in sorted(last, key=lambda s: last[s])]


def _claim(fitting: list[tuple[int, str, int]], modules: set[str]) -> tuple[int | None, int]:
    """The last gradient of a size that comes from the modules which use the parameter, or from none."""
    for wanted in (modules, {""}):
        for i in range(len(fitting) - 1, -1, -1):
            if fitting[i][1] in wanted:
                storage, _, written = fitting.pop(i)
                return storage, written
    return None, -1
