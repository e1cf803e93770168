"""How long torch's compiler takes for a step, once, before the first: most of it goes into kernels, each with Triton."""

from __future__ import annotations

from typing import Final, NamedTuple

from foretell.distribution import LogNormal
from foretell.graph import Graph
from foretell.graph.operators import FUSED
from foretell.units import Seconds


class CompileCosts(NamedTuple):
    """In seconds of one thread on the host where it was measured, with nothing cached."""

    once: Seconds
    different: Seconds  # a kernel that has to be written and compiled
    kernel: Seconds  # each that is scheduled
    sigma: float  # of the errors' logarithm
    op_seconds: Seconds  # of that host


# Of 70 open steps on an H200's virtual machine, torch 2.11: `foretell bench fit compiled` fits and prints them.
COSTS: Final = CompileCosts(once=2.5, different=0.40, kernel=0.050, sigma=0.33, op_seconds=19e-6)


def compile_time(graph: Graph, op_seconds: Seconds) -> LogNormal:
    """Of a compiled step, on a host that takes so long for an op; kernels of repeated blocks are written once."""
    kernels = sum(op.signature.name == FUSED for op in graph.ops)
    different = sum(signature.name == FUSED for signature in graph.signatures)
    seconds = COSTS.once + COSTS.different * different + COSTS.kernel * kernels
    return LogNormal.from_sigma(seconds * op_seconds / COSTS.op_seconds, COSTS.sigma)
