"""What is cheapest to recompute: ops of blocks, by the bytes that dropping their results saves per second of running them.

As selective checkpointing by torch's policies runs them: what is kept is not run again, everything else of a block is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from foretell.parallel.blocks import Span, blocks, passes
from foretell.parallel.flow import Flow
from foretell.parallel.pipeline import Weigh
from foretell.parallel.recompute import Unit

_GOLDEN: Final = 0.6180339887498949  # multiples of it, without their whole parts, lie evenly between 0 and 1


class _Result(NamedTuple):
    """What one op of a block makes, in the order in which results are kept."""

    dearness: float  # seconds per byte, negative: the dearest comes first
    offset: int  # in its block
    turn: float  # of its block, so that blocks of all stages take turns
    block: int
    nbytes: int


def cheapest_units(flow: Flow, share: float, weigh: Weigh) -> Iterator[Unit]:
    """Blocks without what is dearest in them, so that about this share of the bytes they make is dropped."""
    graph = flow.graph
    paths = blocks(graph)
    micro_steps = passes(graph, paths)
    own = [path for path in paths if micro_steps and path in micro_steps[0]["forward"]]
    spans = [micro_steps[0]["forward"][path] for path in own]
    kept = _kept(flow, spans, share, weigh(graph))
    for spans_of in micro_steps:
        for block, path in enumerate(own):
            if path in spans_of["forward"] and path in spans_of["backward"]:
                first, last = spans_of["forward"][path]
                yield Unit(first=first, last=last, kept=frozenset(first + i for i in kept[block] if first + i <= last))


def _kept(flow: Flow, spans: Sequence[Span], share: float, seconds: Sequence[float]) -> list[set[int]]:
    """By block: places of ops in it whose results are kept, the dearest first, as long as the bytes suffice."""
    results = sorted(_results(flow, spans, seconds))
    left = (1.0 - share) * sum(r.nbytes for r in results)
    kept: list[set[int]] = [set() for _ in spans]
    for r in results:
        left -= r.nbytes
        if left < 0:
            break
        kept[r.block].add(r.offset)
    return kept


def _results(flow: Flow, spans: Sequence[Span], seconds: Sequence[float]) -> Iterator[_Result]:
    storages = flow.graph.storages
    for block, (first, last) in enumerate(spans):
        for position in range(first, last + 1):
            if nbytes := sum(storages[s].nbytes for s in flow.made[position]):
                dearness = -seconds[position] / nbytes
                yield _Result(dearness, position - first, block * _GOLDEN % 1.0, block, nbytes)
