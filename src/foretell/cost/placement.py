"""How a group of ranks lies on the nodes of a cluster: which links its collectives cross, and who else is on them."""

from __future__ import annotations

from dataclasses import dataclass

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
        by_group[group] = placements(group, tuple(node.count for node in nodes))
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
    low, nodes = 0, 0
    seats: dict[tuple[int, int, int, int], Seat] = {}
    for node, devices in enumerate(counts):
        first = start if start >= low else start + -(-(low - start) // group.stride) * group.stride
        last = min(end, low + devices - 1)
        if low <= first <= last:
            members = (last - first) // group.stride + 1
            last = first + (members - 1) * group.stride
            active = min(devices, members * group.count)
            seats.setdefault(
                (devices, members, first - low, last - low), Seat(node, members, first - low, last - low, active)
            )
            nodes += 1
        low += devices
    return Placement(nodes, tuple(seats.values()))
