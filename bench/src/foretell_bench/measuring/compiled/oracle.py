"""Captured compiled steps beside measured ones: as many kernels, and the same ops fused.

Two kernels are taken for the same where they move as many bytes and write tensors of the same shapes and types; of one
whose sizes were recorded as symbols, its bytes and types are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretell.graph import Graph
from foretell.graph.operators import FUSED

Key = tuple[tuple[tuple[str, tuple[int, ...]], ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    source: str
    measured: int  # kernels of the compiler's own that a step launched
    captured: int
    same: float  # share of the scheduled kernels that the capture has too

    @property
    def difference(self) -> float:
        """Of the numbers of kernels, as a share of those measured."""
        return (self.captured - self.measured) / max(self.measured, 1)


def compared(row: dict[str, Any], graph: Graph) -> Compared:
    fused = [op for op in graph.ops if op.signature.name == FUSED]
    found = Counter(_captured_key(op) for op in fused)
    scheduled = Counter(key for part in row["graphs"] for node in part["nodes"] if (key := _scheduled_key(node)))
    # A graph that is compiled once may run many times: kinds of kernels are compared, not their number.
    once = {key: min(count, 1) for key, count in scheduled.items()} if _runs_again(row) else scheduled
    known = {key: count for key, count in once.items() if not _is_symbolic(key)}
    same = sum(min(count, found[key]) for key, count in known.items())
    left: Counter[Any] = Counter()
    for key, count in found.items():
        left[_coarse(key)] += max(count - known.get(key, 0), 0)
    symbolic: Counter[Any] = Counter()
    for key, count in once.items():
        symbolic[_coarse(key)] += count * _is_symbolic(key)
    same += sum(min(count, left[key]) for key, count in symbolic.items())
    return Compared(
        source=row["source"],
        measured=sum(name.startswith("triton") for name, _ in row["kernels"]),
        captured=sum(op.times for op in fused),
        same=same / sum(once.values()) if once else float(not found),
    )


def _runs_again(row: dict[str, Any]) -> bool:
    return bool(row["graph_breaks"]) or len(row["graphs"]) > 2


def _captured_key(op: Any) -> Key:
    traffic = op.signature.argument("traffic")
    return tuple(sorted(((out.dtype, _sides(out.shape)) for out in op.signature.outputs), key=repr)), int(traffic)


def _scheduled_key(node: dict[str, Any]) -> Key | None:
    if node["kind"] in ("ExternKernelSchedulerNode", "NopKernelSchedulerNode"):
        return None
    moved = node.get("bytes", {})
    written = {entry[0]: entry[1] for entry in node["writes"] if entry[0] in moved and entry[1]}
    made = ((dtype, _sides(size)) for dtype, size, _ in written.values())
    return tuple(sorted(made, key=repr)), sum(moved.values())  # sizes may be symbols


def _is_symbolic(key: Key) -> bool:
    return any(isinstance(side, str) for _, shape in key[0] for side in shape)


def _coarse(key: Key) -> tuple[tuple[str, ...], int]:
    """Types of what is written, and bytes."""
    return tuple(sorted(dtype for dtype, _ in key[0])), key[1]


def _sides(shape: Sequence[int]) -> tuple[int, ...]:
    """Without those of one, which versions of the compiler keep or drop."""
    return tuple(side for side in shape if side != 1)
