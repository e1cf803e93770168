"""Whole rows of what ranks share along the sequence: when they are gathered, and how long they are kept.

torch's layers keep what they gathered for the backward pass. Megatron's keep the rank's own rows, and gather them once
more in the backward pass, beside the product of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretell.graph import Graph, Storage
from foretell.program import Collective


class Gathers:
    def __init__(self, graph: Graph, *, again: bool) -> None:
        self._graph, self._again = graph, again
        self._known: dict[tuple[int, str], int] = {}  # part and pass → its whole rows
        self._added: list[Storage] = []

    def whole(self, tensor: int, position: int, phase: str) -> tuple[int, bool]:
        """The storage of a tensor's whole rows, and whether this op is the first to need them.

        Without a phase they are kept for both passes, however others are.
        """
        part, layout = self._graph.tensors[tensor].storage, self._graph.tensors[tensor].layout
        key = part, phase if self._again else ""
        is_new = key not in self._known
        if is_new:
            self._known[key] = len(self._graph.storages) + len(self._added)
            self._added.append(replace(self._graph.storages[part], nbytes=layout.nbytes, born=position))
        return self._known[key], is_new

    def kept(self, sharded: Graph) -> Graph:
        """The step with the whole rows among its storages; parts are kept until they are gathered last."""
        if not self._known:
            return sharded
        storages = [*sharded.storages, *self._added]
        used = _last_reads(sharded, {*self._known.values(), *(part for part, _ in self._known)})
        needed: dict[int, int] = {}
        for (part, phase), whole in self._known.items():
            needed[part] = max(needed.get(part, used.get(part, -1)), storages[whole].born)
            if phase == "forward" and (last := used[whole]) < storages[whole].freed:
                storages[whole] = replace(storages[whole], role="temporary", freed=last)
        for part, last in needed.items():
            storages[part] = replace(storages[part], freed=min(storages[part].freed, last))
        return replace(sharded, storages=tuple(storages))

    def awaited(self, collectives: Iterable[Collective], sharded: Graph) -> list[Collective]:
        """What is gathered anew for the backward pass arrives while products of the same layer run that do without it:
        those that come before the last that reads it, or as much time as the only one takes."""
        again = {
            whole
            for (part, phase), whole in self._known.items()
            if phase == "backward" and (part, "forward") in self._known
        }
        last = _last_reads(sharded, again)
        return [
            replace(c, waited_for_by=max(last[c.makes], c.waited_for_by + 1)) if c.makes in again else c
            for c in collectives
        ]


def _last_reads(graph: Graph, storages: set[int]) -> dict[int, int]:
    """The last op that reads each of these storages."""
    last: dict[int, int] = {}
    for position, op in enumerate(graph.ops) if storages else ():
        for t in op.inputs:
            if (storage := graph.tensors[t].storage) in storages:
                last[storage] = position
    return last
