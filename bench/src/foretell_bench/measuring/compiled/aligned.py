"""Measured kernels of compiled steps as ops: each launch beside the node of the schedule that it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from foretell.capture.compiled.loops import Loop, facts_of
from foretell.graph import Layout, Signature
from foretell.graph.operators import FUSED

_TRITON: Final = "triton"
_VARIABLE: Final = re.compile(r"\b[A-Za-z_]\w*\b")
_TWO: Final = ("FusedMixOrderReductions", "FusedNestedReductions")
_BY_NAME: Final = {"triton_per": "persistent_reduction", "triton_red": "reduction"}
_CALLS: Final = {
    "ModularIndexing": lambda a, b, c: a // b % c,
    "FloorDiv": lambda a, b: a // b,
    "Min": min,
    "Max": max,
    "Abs": abs,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    signature: Signature
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A compiled graph that a step ran, and its kernels as they were launched: name, seconds, and node of the schedule."""

    graph: dict[str, Any]
    kernels: list[tuple[str, float, dict[str, Any] | None]]


def runs_of(row: dict[str, Any]) -> Iterator[Run]:
    """A step's compiled graphs as they ran, forward and backward, again and again.

    At each place, the longest graph is taken whose kernels' names come next.
    """
    launched = [(name, seconds) for name, seconds in row["kernels"] if name.startswith(_TRITON)]
    names = [name for name, _ in launched]
    graphs = [(part, ordered) for part in row["graphs"] if (ordered := _in_order(part))]
    place = 0
    while place < len(names):
        fits = [g for g in graphs if names[place : place + len(g[1])] == [name for name, _ in g[1]]]
        if not fits:
            place += 1
            continue
        part, longest = max(fits, key=lambda g: len(g[1]))
        taken = launched[place : place + len(longest)]
        yield Run(graph=part, kernels=[(*each, node) for each, (_, node) in zip(taken, longest, strict=True)])
        place += len(longest)


def kernels_of(row: dict[str, Any]) -> Iterator[Kernel]:
    """Those of the compiler's own whose sizes are known, in launch order."""
    for run in runs_of(row):
        for name, seconds, node in run.kernels:
            if node is not None and (signature := signature_of(name, node)) is not None:
                yield Kernel(signature=signature, seconds=seconds)


def _in_order(part: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None]]:
    node_of: dict[str, dict[str, Any]] = {}
    for node in part["nodes"]:
        for name in (node["name"], *node["names"]):
            node_of.setdefault(name, node)
    return [(name, node_of.get(nodes[0]) if nodes else None) for name, nodes in part["kernels"]]


def signature_of(kernel: str, node: dict[str, Any]) -> Signature | None:
    """As a capture records it; None where sizes are symbols."""
    moved = node.get("bytes", {})
    loops = node["loops"]
    if any(isinstance(n, str) for loop in loops for n in (*loop["sizes"], *loop["reduced"])):
        return None
    accesses = {(a[0], a[2], tuple(a[3])) for a in (*node["reads"], *node["writes"]) if len(a) > 3 and a[0] in moved}
    facts = facts_of(
        [Loop.of(loop["sizes"], loop["reduced"], loop.get("ops", {})) for loop in loops],
        traffic=sum(moved.values()),
        apart=sum(moved[name] for name, index, size in accesses if _near(index, len(size)) not in (0, 1)),
        of=node["origins"],
    )
    reads, writes = (_layouts(node[side], moved) for side in ("reads", "writes"))
    return Signature(
        f"{FUSED}.{_kind(kernel, node)}", tuple(reads.values()), tuple(writes.values()), tuple(facts.items())
    )


def _kind(kernel: str, node: dict[str, Any]) -> str:
    if node["kind"] == "ForeachKernelSchedulerNode":
        return "foreach"
    if node["kind"] in _TWO:
        return "two_reductions"
    if any(loop["data"] in ("Scan", "Sort") for loop in node["loops"]):
        return "scan"
    return _BY_NAME.get(kernel[: len("triton_per")], "pointwise")


def _layouts(accesses: list[Any], moved: dict[str, int]) -> dict[str, Layout]:
    known = {a[0]: a[1] for a in accesses if a[0] in moved and isinstance(a[1], list)}
    return {
        name: Layout(tuple(size), tuple(stride), dtype) if len(size) == len(stride) else Layout.contiguous(size, dtype)
        for name, (dtype, size, stride) in known.items()
        if all(isinstance(n, int) for n in (*size, *stride))
    }


def _near(index: str, variables: int) -> int:
    """How far a kernel's next thread reads from the last."""
    if not variables:
        return 0
    first = next((name for name in _VARIABLE.findall(index) if re.fullmatch(r"[cd]\d+", name)), "c0")
    at = [_value(index, f"{first[0]}{variables - 1}", number) for number in (0, 1)]
    return at[1] - at[0]


def _value(index: str, last: str, number: int) -> int:
    names = {name: 0 for name in _VARIABLE.findall(index) if name not in _CALLS}
    return int(eval(index, {"__builtins__": {}}, {**names, **_CALLS, last: number}))  # an index that our campaign wrote
