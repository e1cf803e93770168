"""A row of a public file as a question to `foretell.forecast`, with what was measured."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from foretell.hardware import Cluster, Node, device, host, link
from foretell.plans import Plan
from foretell.store.importers import Selection
from foretell.units import Bytes, BytesPerSecond, Seconds
from foretell_bench.graphs import Model

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question to `forecast`."""

    model: Model
    cluster: Cluster
    plan: Plan
    trainer: str | None = None  # who ran it; None: not known
    software: str | None = None  # of which time, as `Conditions` have it; None: today's
    parts: bool = False  # whether to learn too how far its parts may be off

    @property
    def key(self) -> str:
        runs = ((node, len(list(same))) for node, same in groupby(self.cluster.nodes))
        nodes = "+".join(f"{n}x{k.count}x{k.device.name}/{k.host.name}/{k.inside.name}/{k.port}" for k, n in runs)
        between = self.cluster.between
        wire = f"{between.name}/{between.bandwidth}" if between else ""
        who = (
            f"|{self.trainer}" * bool(self.trainer) + f"|{self.software}" * bool(self.software) + "|parts" * self.parts
        )
        return f"{self.model.key}|{nodes}@{wire}/{self.cluster.oversubscription}|{self.plan}{who}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row. A profile is for a domain; rows of one part of it are left out together."""

    ask: Ask
    domain: str
    part: str
    tested: bool = True  # False: only profiles are fitted on it
    seconds: Seconds | None = None  # of a step; None where it crashed or was not reported
    communication: Seconds | None = None
    allocated: Bytes | None = None
    reports: int = 0  # position of the stage whose memory was reported
    crashed: bool = False
    readable: bool = True  # False: a row that the source itself marks as noisy

    @property
    def samples(self) -> int:
        """Of one replica in a micro-step."""
        return self.ask.model.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A line of the table: what is compared over which rows, and the bar."""

    name: str
    of: Literal["seconds", "rate", "communication", "allocated", "crash"]
    statistic: Literal["mean", "median", "rank", "right"]
    bar: float | None = None
    readable: bool = False  # of rows that the source does not mark as noisy


class Source(Protocol):
    """A module of this folder."""

    SOURCE: str
    MEASURES: Sequence[Measure]

    def questions(self, data: Path) -> Selection[Question]: ...


def evenly(items: Iterable[T], most: int | None, by: Callable[[T], Hashable]) -> list[T]:
    """Some of many, as many of each kind where there are enough; items are drawn by what they say, not where they stand."""
    kinds: dict[Hashable, list[T]] = defaultdict(list)
    for item in sorted(items, key=lambda item: hashlib.sha256(repr(item).encode()).digest()):
        kinds[by(item)].append(item)
    turns = zip_longest(*kinds.values())
    return list(islice((item for turn in turns for item in turn if item is not None), most))


def part_of(key: str, parts: int) -> str:
    """One of so many parts, by a hash: a split that does not depend on the order or number of rows."""
    return f"part {hashlib.sha256(key.encode()).digest()[0] * parts // 256 + 1} of {parts}"


def nodes_of(name: str, counts: Sequence[int], port: BytesPerSecond | None = None) -> Cluster:
    """Nodes with so many devices each, and one way out for all of a node where its rate is known."""
    made = device(name)
    nodes = {
        n: Node(device=made, count=n, host=host(made.host), inside=link(made.inside), port=port) for n in set(counts)
    }
    return Cluster(nodes=tuple(nodes[n] for n in counts), between=link(made.between) if len(counts) > 1 else None)


def filled(total: int, each: int) -> list[int]:
    """Devices of each node when nodes are filled one after another."""
    full, rest = divmod(total, min(each, total))
    return [min(each, total)] * full + [rest] * (rest > 0)


def gpt(**entries: Any) -> dict[str, Any]:
    """A GPT without dropout: learned positions, layer norms, a GELU. OPT is built so."""
    width = entries["hidden_size"]
    return {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "word_embed_proj_dim": width, "ffn_dim": 4 * width,
        "activation_function": "gelu", "dropout": 0.0, **entries,
    }  # fmt: skip
