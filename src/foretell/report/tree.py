"""The step by module: time, parameters and activations added up along the tree of module names."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.report.findings import op_seconds
from foretell.units import Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module with everything below it. Equal neighbours in a list are one, with `repeat` counting them."""

    path: str  # "" is the whole step
    repeat: int = 1
    ops: int
    forward: Seconds
    backward: Seconds
    optimizer: Seconds
    parameters: Bytes
    activations: Bytes  # held at the peak
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
    ops: int = 0
    seconds: dict[str, Seconds] = field(default_factory=lambda: defaultdict(float))  # by phase
    nbytes: Counter[str] = field(default_factory=Counter)  # by role
    targets: list[str] = field(default_factory=list)  # of the node's own forward ops: what makes two blocks equal
    children: dict[str, _Node] = field(default_factory=dict)


def module_tree(forecast: Forecast) -> Module:
    graph = forecast.graph
    root = _Node("")
    for op, seconds in zip(graph.ops, op_seconds(forecast), strict=True):
        for node in _path_to(root, op.module):
            node.ops += op.times
            node.seconds[op.phase] += seconds
        if op.phase == "forward":
            _find(root, op.module).targets.append(op.target)
    for module, role, nbytes in _memory_by_module(graph, forecast.memory_trace.peak_op):
        for node in _path_to(root, module):
            node.nbytes[role] += nbytes
    return _frozen(root)


def walk(module: Module, depth: int | None, least_share: float = 0.0) -> Iterator[tuple[int, Module]]:
    """(level, module) from the top down to `depth` (None: all), without what takes less than `least_share`."""
    floor = module.seconds * least_share

    def below(node: Module, level: int) -> Iterator[tuple[int, Module]]:
        if (depth is not None and level > depth) or node.seconds < floor:
            return
        yield level, node
        for child in node.children:
            yield from below(child, level + 1)

    return below(module, 0)


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

    def below(node: Module, level: int) -> Iterator[tuple[int, Module]]:
        yield level, node
        for child in node.children if node.path in opened else ():
            if child.seconds >= floor:
                yield from below(child, level + 1)

    return below(root, 0)


def _find(root: _Node, path: str) -> _Node:
    *_, node = _path_to(root, path)
    return node


def _path_to(root: _Node, path: str) -> Iterator[_Node]:
    yield root
    node, seen = root, ""
    for name in path.split(".") if path else ():
        seen = f"{seen}.{name}" if seen else name
        if name not in node.children:
            node.children[name] = _Node(seen)
        node = node.children[name]
        yield node


def _memory_by_module(graph: Graph, peak: int) -> Iterator[tuple[str, str, Bytes]]:
    """Activations of the peak belong to the module that makes them, parameters to the one that reads them first."""
    claimed: set[int] = set()
    for op in graph.ops:
        if op.phase != "forward":
            continue
        for tensor in op.inputs:
            storage = graph.tensors[tensor].storage
            if graph.storages[storage].role == "parameter" and storage not in claimed:
                claimed.add(storage)
                yield op.module, "parameter", graph.storages[storage].nbytes
    for made in graph.storages:
        if made.role == "activation" and 0 <= made.born <= peak <= made.freed:
            yield graph.ops[made.born].module, "activation", made.nbytes


def _frozen(node: _Node) -> Module:
    return Module(
        path=node.path,
        ops=node.ops,
        forward=node.seconds["forward"],
        backward=node.seconds["backward"],
        optimizer=node.seconds["optimizer"],
        parameters=node.nbytes["parameter"],
        activations=node.nbytes["activation"],
        children=tuple(_merged(list(node.children.values()))),
    )


def _merged(nodes: list[_Node]) -> Iterator[Module]:
    """Joins runs of equal numbered blocks: a reader wants `layers.0–31`, not 32 rows that say the same."""
    start = 0
    while start < len(nodes):
        end = start + 1
        while end < len(nodes) and _repeats(nodes[end - 1], nodes[end]):
            end += 1
        run = [_frozen(node) for node in nodes[start:end]]
        yield _sum(run) if len(run) > 1 else run[0]
        start = end


def _repeats(one: _Node, other: _Node) -> bool:
    first, second = one.path.rpartition(".")[2], other.path.rpartition(".")[2]
    return first.isdecimal() and second.isdecimal() and bool(one.children) and _structure(one) == _structure(other)


def _structure(node: _Node) -> tuple[object, ...]:
    return (tuple(node.targets), tuple((name, _structure(child)) for name, child in node.children.items()))


def _sum(run: list[Module]) -> Module:
    parent, _, first = run[0].path.rpartition(".")
    name = f"{first}–{run[-1].name}"
    return _added(run, f"{parent}.{name}" if parent else name, repeat=len(run))


def _added(run: list[Module], path: str, repeat: int) -> Module:
    """Equal blocks have equal children, so these are added pairwise, each under the joint path."""
    return Module(
        path=path,
        repeat=repeat,
        ops=sum(m.ops for m in run),
        forward=sum(m.forward for m in run),
        backward=sum(m.backward for m in run),
        optimizer=sum(m.optimizer for m in run),
        parameters=sum(m.parameters for m in run),
        activations=sum(m.activations for m in run),
        children=tuple(
            _added(list(same), f"{path}.{same[0].name}", repeat)
            for same in zip(*(m.children for m in run), strict=True)
        ),
    )
