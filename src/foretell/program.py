"""The step placed on ranks and streams: what `parallelize` makes and what is priced and simulated.

The first tasks of a role are the ops of its graph, in order, so a task's number is its op's number; what the plan adds
(collectives) follows. Ranks that do the same work are one role.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from foretell.graph import Graph
from foretell.units import Bytes

COLLECTIVES: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate: `size` of them, `stride` apart, in `count` such groups at the same time."""

    size: int
    stride: int = 1
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Communication in a group; `nbytes` is the whole tensor: gathered, or not yet scattered."""

    kind: str  # one of COLLECTIVES, or a move between a device and its host (cost/offload.py)
    nbytes: Bytes
    group: Group
    name: str
    starts_after: int  # the op whose end makes the data ready; -1: it is there before the step
    waited_for_by: int  # the first op that needs the result
    issued_by: int | None = None  # the op before which the host issues it; None: right after `starts_after`
    lane: str = "dp"  # collectives of one lane run one after another
    every_micro_step: bool = False  # or only in the last of those that repeat
    choices: int = 1  # of rows that tokens were routed as: a node, and a rank, that several of a token's go to gets one
    groups: tuple[int, int] = (1, 1)  # of experts, in order over the ranks, and in how many of them a token's rows lie
    turns: int = 1  # how many take the same link one after another
    copied_in: Bytes = 0  # that the device copies to where they are sent from, once they are ready
    copied_out: Bytes = 0  # and from where they arrived, before they are needed
    reads: int | None = None  # the storage whose parts are gathered, where the whole is a storage of its own
    makes: int | None = None  # which is this one


@dataclass(frozen=True, slots=True)
class Marks:
    """Numbers of collectives by the position of the op that they have to do with."""

    before: dict[int, list[int]] = field(default_factory=dict)  # which the host issues before it
    after: dict[int, list[int]] = field(default_factory=dict)  # or right after it
    awaited: dict[int, list[int]] = field(default_factory=dict)  # whose result it needs
    made_ready: dict[int, list[int]] = field(default_factory=dict)  # whose data it makes ready, if others issue them


@dataclass(frozen=True, kw_only=True)
class Role:
    """One kind of rank: how many there are, what they run, what they allocate beside the graph's storages."""

    name: str
    count: int
    graph: Graph
    collectives: tuple[Collective, ...] = ()
    persistent: Mapping[str, Bytes] = field(default_factory=dict)  # role of a storage → bytes
    partitioned: frozenset[int] = frozenset()  # gradients that only the replicas of the same experts share
    issues_for: int = 1  # devices whose ops its host issues before the update

    @cached_property
    def found(self) -> dict[Hashable, Any]:
        """What others found out about it, by keys of theirs, to find it once."""
        return {}

    @cached_property
    def marks(self) -> Marks:
        marks = Marks()
        for number, c in enumerate(self.collectives):
            if c.issued_by is None:
                marks.after.setdefault(c.starts_after, []).append(number)
            else:
                marks.before.setdefault(c.issued_by, []).append(number)
                marks.made_ready.setdefault(c.starts_after, []).append(number)
            marks.awaited.setdefault(c.waited_for_by, []).append(number)
        return marks

    def with_persistent(self, role: str, nbytes: Bytes) -> Role:
        """With so many bytes more that are allocated all along."""
        return replace(self, persistent={**self.persistent, role: self.persistent.get(role, 0) + nbytes})

    def runs(self, collective: Collective) -> int:
        """How often it runs in a step."""
        op = collective.starts_after if collective.issued_by is None else collective.issued_by
        return self.graph.ops[op].times if collective.every_micro_step else 1


@dataclass(frozen=True, slots=True)
class Action:
    """What a pipeline stage does next: one phase of one micro-batch through one of its chunks."""

    phase: str  # forward, backward, or weights: the part of a backward pass that no other stage waits for
    chunk: int
    micro_batch: int
    joined: bool = False  # with the action before it: while one waits for its communication, the other computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How the stages of a program take turns. Role s is stage s; chunk c lies on stage `stage_of[c]`.

    Micro-batches that go in several directions have chunks of their own in each, one direction after another.
    """

    micro_batches: int
    stage_of: tuple[int, ...]  # of every chunk
    actions: tuple[tuple[Action, ...], ...]  # by stage, in order
    ranges: tuple[Mapping[tuple[str, int], tuple[int, int]], ...]  # by stage: phase and chunk → first op, past the last
    hand_over: tuple[Collective, ...]  # from chunk c to c + 1, and as much back
    # Where actions are of fewer micro-batches: those of a round fewer, and how many rounds are left out in the middle.
    shorter: tuple[tuple[Action, ...], ...] | None = None
    rounds_left_out: int = 0
    directions: int = 1
    hides: str | None = None  # the lane whose collectives joined actions hide
    delayed: tuple[frozenset[int], ...] = ()  # by stage: ops that may run whenever their pass waits for that lane

    @property
    def chunks(self) -> int:
        return len(self.stage_of)

    def is_first(self, chunk: int) -> bool:
        """No chunk comes before it."""
        return chunk % (self.chunks // self.directions) == 0

    def is_last(self, chunk: int) -> bool:
        return (chunk + 1) % (self.chunks // self.directions) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    roles: tuple[Role, ...]
    ranks: int
    whole: Graph  # one replica's step as it was captured, before it was split
    micro_steps: int = 1  # that the plan makes of it
    pipeline: Pipeline | None = None
