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
from foretell.program import Collective, Group, Pipeline, Program
from foretell.units import Bytes, Seconds

_Key = tuple[str, Bytes, Group, int, tuple[int, int]]
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
        if key not in self._known:
            if collective.kind in KINDS:
                self._known[key] = max(host_seconds(collective, node) for node in self.cluster.kinds)
            else:
                self._known[key] = self.factor * collective_seconds(collective, self.cluster, links=self.links)
        return self._known[key] * collective.turns

    def hand_over(self, program: Program) -> list[Seconds]:
        """From each chunk of a pipeline to the next."""
        return [self.seconds(c) for c in program.pipeline.hand_over] if program.pipeline else []

    def traffic(self, program: Program, seconds: Sequence[Sequence[Seconds]]) -> Traffic:
        """From the seconds of every role's collectives."""
        by_role: list[list[_Transfer]] = []
        for stage, (role, each) in enumerate(zip(program.roles, seconds, strict=True)):
            transfers = [(c, s, role.runs(c)) for c, s in zip(role.collectives, each, strict=True)]
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
        known: dict[_Key, Mapping[str, Bytes]] = {}
        links: Counter[str] = Counter()
        for collective, _, times in transfers:
            key = _key(collective)
            if key not in known:
                known[key] = link_bytes(collective, self.cluster)
            for name, nbytes in known[key].items():
                links[name] += nbytes * times
        return dict(links)


def _key(collective: Collective) -> _Key:
    return collective.kind, collective.nbytes, collective.group, collective.choices, collective.groups
