"""The parameters of a step: where each is used, and which gradient is its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from foretell.graph import Graph, Layout
from foretell.graph.operators import operator_of


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
    written = _gradients_written(graph)
    gradients = graph.gradients if graph.gradients is not None else _paired_by_size(graph, uses, layouts, written)
    found = []
    for storage in sorted(uses, key=lambda s: uses[s][0]):
        gradient = gradients.get(storage)
        if gradient not in written:
            gradient = None
        if gradient is None and storage not in weighing:
            continue
        found.append(
            Parameter(
                storage=storage, layout=layouts[storage], module=graph.ops[uses[storage][0]].module,
                used=tuple(uses[storage]), gradient=gradient, ready=-1 if gradient is None else written[gradient],
            )
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
            if operator_of(op.signature.name).weighs and source in uses:
                weighing.add(source)
            if len(op.inputs) == 1 and source in uses:
                for out in op.outputs:
                    made_from[graph.tensors[out].storage] = source
    return uses, layouts, weighing


def _gradients_written(graph: Graph) -> dict[int, int]:
    """Storage of a gradient → the op that writes it last."""
    written = {}
    for position, op in enumerate(graph.ops):
        for t in op.outputs if op.phase == "backward" else ():
            storage = graph.tensors[t].storage
            if graph.storages[storage].role == "gradient":
                written[storage] = position
    return written


def _paired_by_size(
    graph: Graph, uses: Mapping[int, list[int]], layouts: Mapping[int, Layout], written: Mapping[int, int]
) -> dict[int, int]:
    """A guess for graphs of format 1, which do not record whose gradient is whose: the last gradient of a parameter's
    size that comes from the modules which use the parameter, or from none."""
    module: dict[int, str] = {}
    numel: dict[int, int] = {}
    for op in graph.ops:
        for tensor in op.outputs if op.phase == "backward" else ():
            storage = graph.tensors[tensor].storage
            if storage in written:
                numel.setdefault(storage, graph.tensors[tensor].layout.numel)
                if op.module:
                    module.setdefault(storage, op.module)
    unclaimed: dict[int, list[int]] = defaultdict(list)  # by size, the last to be ready first
    for gradient in sorted(written, key=lambda s: written[s]):
        unclaimed[numel[gradient]].insert(0, gradient)
    found = {}
    for storage in sorted(uses, key=lambda s: uses[s][0]):
        fitting = unclaimed[layouts[storage].numel]
        modules = {graph.ops[position].module for position in uses[storage]}
        own = [g for wanted in (modules, {""}) for g in fitting if module.get(g, "") in wanted]
        if own:
            found[storage] = own[0]
            fitting.remove(own[0])
    return found
