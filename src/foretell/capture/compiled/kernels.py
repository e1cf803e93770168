"""Fused kernels of Inductor's schedule: what each reads and writes, of which kind it is, and what its loops compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import sympy
from torch._inductor import ir
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

from foretell.capture.compiled.loops import Loop, facts_of
from foretell.capture.compiled.schedule import Fused

_TWO: Final = ("FusedMixOrderReductions", "FusedNestedReductions")


def fused_of(node: Any) -> Fused:
    parts = [part for part in node.get_nodes() if isinstance(part, SchedulerNode)]
    touched = {str(name): int(count) for name, count in node.get_read_write_buffer_accesses(True, True).items()}
    written = [str(dep.name) for dep in node.read_writes.writes if dep.name in touched]
    facts = facts_of(
        [_loop(part) for part in parts],
        traffic=sum(touched.values()),
        apart=sum(touched[name] for name, near in _accesses(node) if name in touched and near not in (0, 1)),
        of=list({str(origin.target) for part in parts for origin in origins_of(part)}),
    )
    return Fused(
        kind=_kind(node, parts),
        reads=tuple(dict.fromkeys(str(dep.name) for dep in node.read_writes.reads if dep.name in touched)),
        writes=tuple(dict.fromkeys(written)),
        facts=tuple(facts.items()),
    )


def origins_of(part: Any) -> Any:
    return getattr(part.node, "origins", None) or ()


def _kind(node: Any, parts: list[Any]) -> str:
    data = [getattr(part.node, "data", None) for part in parts]
    if type(node).__name__ == "ForeachKernelSchedulerNode":
        return "foreach"
    if type(node).__name__ in _TWO:
        return "two_reductions"
    if any(isinstance(d, ir.Scan | ir.Sort) for d in data):
        return "scan"
    if not any(part.is_reduction() for part in parts):
        return "pointwise"
    return "persistent_reduction" if _is_persistent(parts) else "reduction"


def _is_persistent(parts: list[Any]) -> bool:
    """Whether a block keeps all that it reduces."""
    ranges = max(parts, key=lambda part: int(part.is_reduction())).get_ranges()
    places, reduced = (sympy.Integer(math.prod(int(n) for n in numbers)) for numbers in ranges)
    return bool(V.choices.should_use_persistent_reduction(SIMDKernelFeatures(parts, places, reduced), False))


def _loop(part: Any) -> Loop:
    sizes, reduced = ([int(n) for n in numbers] for numbers in part.get_ranges())
    return Loop.of(sizes, reduced, getattr(getattr(part, "_body", None), "op_counts", {}))


def _accesses(node: Any) -> Iterator[tuple[str, int]]:
    """Each way that a buffer is read or written, and how far from one thread to the next."""
    for dep in {*node.read_writes.reads, *node.read_writes.writes}:
        if isinstance(dep, MemoryDep):
            yield str(dep.name), _near(dep)


def _near(dep: MemoryDep) -> int:
    """From one thread to the next; rows that are looked up begin anywhere."""
    if not dep.var_names or not isinstance(dep.index, sympy.Expr):
        return 0
    return int(V.graph.sizevars.stride_hints(dep.index, dep.var_names)[-1])
