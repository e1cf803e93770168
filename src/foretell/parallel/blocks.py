"""Repeated blocks of a model, found in the numbers of its module paths: layers.0, layers.1, …

A container is a chain of blocks if at least two of its numbered children are made of several modules. Where a block is
itself little more than such a chain (the stages of a convolutional net), the inner blocks are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from foretell.graph import Graph
from foretell.graph.modules import prefixes


class Span(NamedTuple):
    """Positions of a block's ops in one pass, first and last."""

    first: int
    last: int


Pass = dict[str, dict[str, Span]]  # of a micro-step: phase → block → where its ops lie; "" is what is outside of blocks


def blocks(graph: Graph) -> tuple[str, ...]:
    """Module paths of the repeated blocks, in the order in which they run."""
    order = list(dict.fromkeys(op.module for op in graph.ops if op.phase == "forward" and op.module))
    inside: dict[str, set[str]] = defaultdict(set)  # numbered path → modules in it
    for module in order:
        for path in _numbered(module):
            inside[path].add(module)
    chains: dict[str, list[str]] = defaultdict(list)
    for path, modules in inside.items():
        if len(modules) > 1:
            chains[path.rpartition(".")[0]].append(path)
    chains = {container: paths for container, paths in chains.items() if len(paths) > 1}
    chosen = {path for container, paths in chains.items() if not _within(container, chains) for path in paths}
    for path in sorted(chosen):
        inner = [paths for container, paths in chains.items() if container.startswith(path + ".") or container == path]
        covered = {m for paths in inner for p in paths for m in inside[p]}
        if inner and 2 * len(covered) > len(inside[path]) and _unbroken(graph, path, covered):
            chosen = (chosen - {path}) | {p for paths in inner for p in paths}
    position = {module: i for i, module in enumerate(order)}
    return tuple(sorted(chosen, key=lambda path: min(position[m] for m in inside[path])))


class BlockOf(dict[str, str]):
    """Module → the block that holds it, "" outside of all."""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self._paths = set(paths)

    def __missing__(self, module: str) -> str:
        self[module] = found = next((p for p in reversed(prefixes(module)) if p in self._paths), "")
        return found


def passes(graph: Graph, paths: Iterable[str]) -> list[Pass]:
    """The forward and backward pass of each recorded micro-step."""
    where = BlockOf(paths)
    found: list[Pass] = []
    phase = ""
    for position, op in enumerate(graph.ops):
        if op.phase == "optimizer" or (op.phase == "backward" and not found):
            continue  # a backward op before all others belongs to no pass
        if op.phase == "forward" and phase != "forward":
            found.append({"forward": {}, "backward": {}})
        phase = op.phase
        block = where[op.module]
        spans = found[-1][phase]
        spans[block] = Span(spans[block].first if block in spans else position, position)
    return found


def _numbered(module: str) -> list[str]:
    """Every prefix of a path that ends in a number: layers.0, or layers.layer_0."""
    return [path for path in prefixes(module) if path.rpartition(".")[2].rpartition("_")[2].isdigit()]


def _within(container: str, chains: Mapping[str, object]) -> bool:
    return any(path in chains for path in ["", *prefixes(container)[:-1]]) and bool(container)


def _unbroken(graph: Graph, path: str, covered: set[str]) -> bool:
    """Whether the block does nothing of its own between its inner ones: they follow each other, as layers do."""
    inner = [op.module in covered for op in graph.ops if op.phase == "forward" and _under(op.module, path)]
    first = inner.index(True)
    last = len(inner) - 1 - inner[::-1].index(True)
    return all(inner[first : last + 1])


def _under(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".")
