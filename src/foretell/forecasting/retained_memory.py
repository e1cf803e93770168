"""Memory that communication keeps from being used again: torch's process groups ran on streams of their own.

Up to torch 2.7 they told the allocator so of each tensor (`Tensor.record_stream`). What is released is free again only once the
host sees that the stream is done with it, and a host that issues work faster than its device does it is far ahead of that. It
has caught up where a loss is read or a stage hands over, and at the end of a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from foretell.forecasting.conditions import Conditions
from foretell.graph import Graph, Op
from foretell.graph.facts import StepFacts
from foretell.graph.operators import operator_of
from foretell.parallel.sharding.propagate import EXPERTS_LANE
from foretell.program import Collective, Role
from foretell.simulate.memory import Retained
from foretell.software import Software, Version
from foretell.trainers import TRAINERS

_AHEAD: Final = 1024  # kernels that CUDA queues before a launch waits
# Whose collectives run on the stream of the step, or keep what they use by themselves.
_FIRST_WITHOUT: Final[Version] = (2, 8)
_LANES: Final = ("tp", EXPERTS_LANE)  # of the collectives inside a pass; gradients go in buffers that stay


def streams_hold(conditions: Conditions, facts: StepFacts) -> bool:
    """Whether software of the time did so. Recipes of a board's maker and torchtitan have long turned it off
    (TORCH_NCCL_AVOID_RECORD_STREAMS)."""
    if conditions.software is None or Software.parse(conditions.software).torch >= _FIRST_WITHOUT:
        return False
    trainer = conditions.trainer if isinstance(conditions.trainer, str) else facts.trainer
    return trainer != "torchtitan" and TRAINERS.get(trainer or "") != "recipe"


def retained_memory(role: Role) -> tuple[Retained, ...]:
    """What collectives of a role's passes hold, in the order in which it is released."""
    found = [retained for c in role.collectives if c.lane in _LANES for retained in _of(c, role.graph)]
    if not found:
        return ()
    issued, waits = list(accumulate(map(_kernels, role.graph.ops))), _waits(role.graph)

    def until(released: int) -> int:
        return min(bisect_left(issued, issued[released] + _AHEAD), waits[bisect_left(waits, released + 1)])

    made = (Retained(nbytes, released, until(released)) for nbytes, released in found)
    return tuple(sorted(made, key=lambda retained: retained.released))


def _of(collective: Collective, graph: Graph) -> Iterator[tuple[int, int]]:
    """Bytes, and the op after which they are released."""
    end = len(graph.ops)
    if collective.kind == "reduce-scatter":  # the whole sum is gone once it is sent
        yield collective.nbytes, collective.starts_after
    elif collective.kind == "all-to-all":
        yield collective.nbytes, collective.starts_after
        yield collective.nbytes, min(collective.waited_for_by, end - 1)
    else:
        storage = collective.makes if collective.makes is not None else _added_up(collective, graph)
        if storage is not None and (s := graph.storages[storage]).born >= 0 and s.freed < end:
            yield collective.nbytes, max(s.freed, collective.starts_after)


def _added_up(collective: Collective, graph: Graph) -> int | None:
    """The storage that ranks add up in place."""
    made = {graph.tensors[t].storage for t in graph.ops[max(collective.starts_after, 0)].outputs}
    return next((s for s in sorted(made) if graph.storages[s].nbytes >= collective.nbytes), None)


def _kernels(op: Op) -> int:
    return int(operator_of(op.signature.name).launches)


def _waits(graph: Graph) -> list[int]:
    """Ops before which the host has caught up with the device: first of a backward pass, first of the update."""
    phases = [op.phase for op in graph.ops]
    turns = (i for i in range(1, len(phases)) if phases[i] != phases[i - 1] and phases[i] != "forward")
    return [*turns, len(phases)]
