"""What ranks communicate in a step: seconds of each collective, and the bytes of the rank that sends most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from foretell.cost.collectives import bytes_on_wire, collective_seconds, link_bytes, sent_bytes
from foretell.cost.offload import KINDS, host_seconds
from foretell.hardware import Cluster
from foretell.profile import AS_LISTED, Links
from foretell.program import Collective, Pipeline, Program, Role
from foretell.units import Bytes, Seconds

_Key = tuple[str, Bytes, int, int, int, int, tuple[int, int]]
_Transfer = tuple[Collective, Seconds, int]  # what, how long each, how often in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of the rank that sends most."""

    sent: Bytes
    links: Mapping[str, Bytes]  # link → bytes sent over it
    peak: float  # bytes per second of the fastest transfer of any rank


@dataclass(frozen=True, slots=True)
class Collectives:
    """Seconds of collectives on a cluster; a step repeats a few of them many times."""

    cluster: Cluster
    factor: float = 1.0  # on every collective
    links: Links = AS_LISTED
    _known: dict[_Key, Seconds] = field(default_factory=dict)

    def seconds(self, collective: Collective) -> Seconds:
        key = _key(collective)
        if (seconds := self._known.get(key)) is None:
            if collective.kind in KINDS:
                seconds = max(host_seconds(collective, node) for node in self.cluster.kinds)
            else:
                seconds = self.factor * collective_seconds(collective, self.cluster, links=self.links)
            self._known[key] = seconds
        return seconds * collective.turns

    def of_role(self, role: Role) -> list[Seconds]:
        """Seconds of all of a role's collectives."""
        alike, kind_of = _alike(role)
        seconds = [self.seconds(role.collectives[last]) for last, _ in alike]
        return [seconds[kind] for kind in kind_of]

    def hand_over(self, program: Program) -> list[Seconds]:
        """From each chunk of a pipeline to the next."""
        return [self.seconds(c) for c in program.pipeline.hand_over] if program.pipeline else []

    def traffic(self, program: Program, seconds: Sequence[Sequence[Seconds]]) -> Traffic:
        """From the seconds of every role's collectives."""
        by_role: list[list[_Transfer]] = []
        for stage, (role, each) in enumerate(zip(program.roles, seconds, strict=True)):
            transfers = [(role.collectives[at], each[at], times) for at, times in _alike(role)[0]]
            if program.pipeline is not None:
                transfers += self._handed_over(program.pipeline, stage)
            by_role.append(transfers)
        sent = [sum(sent_bytes(c) * times for c, _, times in transfers) for transfers in by_role]
        known = {_key(c): (c, s) for transfers in by_role for c, s, times in transfers if s > 0 and times}
        rates = (bytes_on_wire(c, self.cluster) / s for c, s in known.values())
        most = max(sent)
        links = self._by_link(by_role[sent.index(most)]) if most else {}
        return Traffic(sent=most, links=links, peak=max(rates, default=0.0))

    def _handed_over(self, pipeline: Pipeline, stage: int) -> Iterator[_Transfer]:
        for collective, ends in zip(pipeline.hand_over, pairwise(pipeline.stage_of), strict=True):
            ways = ends.count(stage)  # forward on, and back
            yield collective, self.seconds(collective), ways * pipeline.micro_batches // pipeline.directions

    def _by_link(self, transfers: Sequence[_Transfer]) -> dict[str, Bytes]:
        links: Counter[str] = Counter()
        for collective, _, times in transfers:
            for name, nbytes in link_bytes(collective, self.cluster).items():
                links[name] += nbytes * times
        return dict(links)


def _key(collective: Collective) -> _Key:
    group = collective.group
    ranks = group.size, group.stride, group.count
    return collective.kind, collective.nbytes, *ranks, collective.choices, collective.groups


def _alike(role: Role) -> tuple[list[tuple[int, int]], list[int]]:
    """Of each kind of collective the number of the last, and how often all of them run in a step; and the kind of each."""
    if (known := role.found.get("kinds of collectives")) is None:
        keys = [(*_key(c), c.lane, c.turns) for c in role.collectives]
        runs: dict[tuple[object, ...], tuple[int, int]] = {}
        for number, (key, c) in enumerate(zip(keys, role.collectives, strict=True)):
            runs[key] = number, runs.pop(key, (0, 0))[1] + role.runs(c)
        kinds = {key: kind for kind, key in enumerate(runs)}
        known = role.found["kinds of collectives"] = list(runs.values()), [kinds[key] for key in keys]
    found: tuple[list[tuple[int, int]], list[int]] = known
    return found
