"""The step placed on ranks and streams: what `parallelize` makes and what is priced and simulated.

The first tasks of a role are the ops of its graph, in order, so a task's number is its op's number; what the plan adds
(collectives) follows. Ranks that do the same work are one role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.graph import Graph
from foretell.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Communication among `ranks` ranks; `nbytes` is the size of the tensor each of them holds."""

    kind: str  # all-reduce
    nbytes: Bytes
    ranks: int
    name: str
    starts_after: int  # the op whose end makes the data ready
    waited_for_by: int  # the first op that needs the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of rank: how many there are, what they run, what they hold beside the graph's storages."""

    name: str
    count: int
    graph: Graph
    collectives: tuple[Collective, ...] = ()
    persistent: Mapping[str, Bytes] = field(default_factory=dict)  # role of a storage → bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    roles: tuple[Role, ...]
    ranks: int
