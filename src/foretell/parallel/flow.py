"""Who makes and who reads each storage of a step, whole rows that collectives gather among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from foretell.graph import Graph
from foretell.program import Collective, Role


class Flow:
    def __init__(self, role: Role) -> None:
        self.graph: Graph = role.graph
        self.readers: dict[int, list[int]] = defaultdict(list)  # storage → ops, in order
        self.made: list[frozenset[int]] = []  # by op: storages that it fills, and no views of others
        self.copies_parameters: list[bool] = []  # of ops: such copies are there for the backward pass
        self.gathers: dict[int, list[Collective]] = defaultdict(list)  # by the op for which they make whole rows
        storage_of = [t.storage for t in self.graph.tensors]
        for collective in role.collectives:
            if collective.makes is not None and collective.reads is not None:
                self.gathers[self.graph.storages[collective.makes].born].append(collective)
        for position, op in enumerate(self.graph.ops):
            read = {storage_of[t] for t in op.inputs}
            made = {storage_of[t] for t in op.outputs} - read
            self.made.append(frozenset(s for s in made if self.graph.storages[s].role != "parameter"))
            self.copies_parameters.append(bool(made) and not self.made[-1])
            for storage in read.union(c.reads for c in self.gathers.get(position, ()) if c.reads is not None):
                self.readers[storage].append(position)

    def gathered(self, position: int) -> set[int]:
        """Whole rows that are gathered for an op."""
        return {c.makes for c in self.gathers.get(position, ()) if c.makes is not None}

    def made_by(self, positions: Iterable[int]) -> set[int]:
        return {s for p in positions for s in self.made[p]}

    def read_later(self, storage: int, position: int, phase: str) -> list[int]:
        """Ops of a pass after an op that read a storage."""
        ops = self.graph.ops
        return [p for p in self.readers.get(storage, ()) if p > position and ops[p].phase == phase]
