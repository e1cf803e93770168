"""How a group of ranks lies on the nodes of a cluster: which links its collectives cross, and who else is on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretell.hardware import Node
from foretell.program import Group

_GROUPS_LOOKED_AT = 32  # of an irregular layout; a regular one looks the same from every group


@dataclass(frozen=True, slots=True)
class Seat:
    """Members of one group on one node: how many, and from which device to which."""

    node: int  # the first node that looks like this
    members: int
    first: int
    last: int
    active: int  # devices of the node that communicate at the same time, of all groups


@dataclass(frozen=True, slots=True)
class Placement:
    """One group on its nodes; nodes that look alike are one seat."""

    nodes: int
    seats: tuple[Seat, ...]

    @property
    def aligned(self) -> bool:
        """Whether its members have the same places in every node, so that each sends along its own rail."""
        return len({(seat.members, seat.first, seat.last) for seat in self.seats}) == 1


_CLUSTERS_KEPT = 8
_placed: dict[int, tuple[tuple[Node, ...], dict[Group, tuple[Placement, ...]]]] = {}


def placements_on(nodes: tuple[Node, ...], group: Group) -> tuple[Placement, ...]:
    """As `placements`, remembered by the very tuple of nodes: to count or hash thousands of them takes longer than to price."""
    kept = _placed.get(id(nodes))
    if kept is None or kept[0] is not nodes:
        if len(_placed) >= _CLUSTERS_KEPT:
            _placed.clear()
        kept = _placed[id(nodes)] = (nodes, {})
    by_group = kept[1]
    if group not in by_group:
        by_group[group] = placements(group, tuple([node.count for node in nodes]))
    return by_group[group]


def placements(group: Group, counts: tuple[int, ...]) -> tuple[Placement, ...]:
    """The different ways in which groups lie on nodes of `counts` devices."""
    looked_at = 1 if _is_regular(group, counts) else min(group.count, _GROUPS_LOOKED_AT)
    found = (_placement(group, counts, number) for number in range(looked_at))
    return tuple(dict.fromkeys(found))


def _is_regular(group: Group, counts: tuple[int, ...]) -> bool:
    if len(set(counts)) > 1:
        return False
    devices, length = counts[0], group.size * group.stride
    return devices % length == 0 or group.stride % devices == 0 or (length % devices == 0 == devices % group.stride)


def _placement(group: Group, counts: tuple[int, ...], number: int) -> Placement:
    block, offset = divmod(number, group.stride)
    start = block * group.stride * group.size + offset
    end = start + (group.size - 1) * group.stride
    devices = np.array(counts, dtype=np.int64)
    low = np.cumsum(devices) - devices
    first = start + np.maximum(-(-(low - start) // group.stride), 0) * group.stride
    members = (np.minimum(end, low + devices - 1) - first) // group.stride + 1  # not above 0: none of them is here
    here = np.flatnonzero(members > 0)
    looks = np.stack([devices, members, first - low], axis=1)[here]
    _, alike = np.unique(looks, axis=0, return_index=True) if len(here) > 1 else (None, np.arange(len(here)))
    seats = []
    for at in sorted(alike.tolist()):
        size, count, offset = looks[at].tolist()
        last = offset + (count - 1) * group.stride
        seats.append(Seat(int(here[at]), count, offset, last, min(size, count * group.count)))
    return Placement(len(here), tuple(seats))
