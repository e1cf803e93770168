"""The step by module: time, parameters and activations added up along the tree of module names."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.graph.modules import prefixes
from foretell.report.findings import op_seconds
from foretell.units import Bytes, Seconds

_SUMS: Final = ("ops", "forward", "backward", "optimizer", "parameters", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module with everything below it. Equal neighbours in a list are one, with `repeat` counting them."""

    path: str  # "" is the whole step
    repeat: int = 1
    ops: int = 0
    forward: Seconds = 0.0
    backward: Seconds = 0.0
    optimizer: Seconds = 0.0
    parameters: Bytes = 0
    activations: Bytes = 0  # at the peak
    children: tuple[Module, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def seconds(self) -> Seconds:
        return self.forward + self.backward + self.optimizer


@dataclass(slots=True)
class _Node:
    path: str
    sums: dict[str, Any] = field(default_factory=lambda: defaultdict(int))  # of what _SUMS names
    targets: list[str] = field(default_factory=list)  # of the node's own forward ops: what makes two blocks equal
    children: dict[str, _Node] = field(default_factory=dict)  # by path


def module_tree(forecast: Forecast) -> Module:
    graph = forecast.graph
    root = _Node("")
    path_to = _Paths(root)
    for op, seconds in zip(graph.ops, op_seconds(forecast), strict=True):
        for node in (path := path_to[op.module]):
            node.sums["ops"] += op.times
            node.sums[op.phase] += seconds
        if op.phase == "forward":
            path[-1].targets.append(op.target)
    for module, what, nbytes in _memory_by_module(graph, forecast.memory_trace.peak_op):
        for node in path_to[module]:
            node.sums[what] += nbytes
    return _frozen(root)


def walk(root: Module, depth: int | None, least_share: float = 0.0) -> Iterator[tuple[int, Module]]:
    """(level, module) from the top down to `depth` (None: all), without what takes less than `least_share`."""
    return _rows(root, lambda module, level: depth is None or level < depth, root.seconds * least_share)


def outline(root: Module, rows: int, least_share: float = 0.0) -> Iterator[tuple[int, Module]]:
    """(level, module) in at most `rows` rows: the heaviest are opened first, so detail lies where the time goes."""
    floor = root.seconds * least_share
    opened: set[str] = set()
    heap = [(-root.seconds, root.path, root)]
    left = rows - 1
    while heap:
        _, path, node = heapq.heappop(heap)
        children = [child for child in node.children if child.seconds >= floor]
        if len(children) <= left:
            opened.add(path)
            left -= len(children)
            for child in children:
                heapq.heappush(heap, (-child.seconds, child.path, child))
    return _rows(root, lambda module, level: module.path in opened, floor)


def _rows(
    module: Module, is_open: Callable[[Module, int], bool], floor: Seconds, level: int = 0
) -> Iterator[tuple[int, Module]]:
    yield level, module
    if is_open(module, level):
        for child in module.children:
            if child.seconds >= floor:
                yield from _rows(child, is_open, floor, level + 1)


class _Paths(dict[str, list[_Node]]):
    """Module → the nodes from the root down to it, which are made when they are first asked for."""

    def __init__(self, root: _Node) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, module: str) -> list[_Node]:
        self[module] = nodes = [self._root]
        for prefix in prefixes(module):
            nodes.append(nodes[-1].children.setdefault(prefix, _Node(prefix)))
        return nodes


def _memory_by_module(graph: Graph, peak: int) -> Iterator[tuple[str, str, Bytes]]:
    """Activations of the peak belong to the module that makes them, parameters to the one that reads them first."""
    claimed: set[int] = set()
    for op in graph.ops:
        for tensor in op.inputs if op.phase == "forward" else ():
            number = graph.tensors[tensor].storage
            storage = graph.storages[number]
            if storage.role == "parameter" and number not in claimed:
                claimed.add(number)
                yield op.module, "parameters", storage.nbytes
    for made in graph.storages:
        if made.role == "activation" and 0 <= made.born <= peak <= made.freed:
            yield graph.ops[made.born].module, "activations", made.nbytes


def _frozen(node: _Node) -> Module:
    sums = {what: node.sums[what] for what in _SUMS}
    return Module(path=node.path, children=tuple(_merged(list(node.children.values()))), **sums)


def _merged(nodes: list[_Node]) -> Iterator[Module]:
    """Joins runs of equal numbered blocks: a reader wants `layers.0–31`, not 32 rows that are the same."""
    start = 0
    while start < len(nodes):
        end = start + 1
        while end < len(nodes) and _repeats(nodes[end - 1], nodes[end]):
            end += 1
        run = [_frozen(node) for node in nodes[start:end]]
        if len(run) == 1:
            yield run[0]
        else:
            yield _joined(run, f"{run[0].path}–{run[-1].name}")
        start = end


def _repeats(one: _Node, other: _Node) -> bool:
    numbered = all(node.path.rpartition(".")[2].isdecimal() for node in (one, other))
    return numbered and bool(one.children) and _structure(one) == _structure(other)


def _structure(node: _Node) -> tuple[object, ...]:
    inside = ((child.path.removeprefix(node.path), _structure(child)) for child in node.children.values())
    return tuple(node.targets), tuple(inside)


def _joined(run: list[Module], path: str) -> Module:
    """Equal blocks have equal children, so these are added pairwise, each under the joint path."""
    return Module(
        path=path,
        repeat=len(run),
        children=tuple(
            _joined(list(same), f"{path}.{same[0].name}") for same in zip(*(m.children for m in run), strict=True)
        ),
        **{what: sum(getattr(module, what) for module in run) for what in _SUMS},
    )
