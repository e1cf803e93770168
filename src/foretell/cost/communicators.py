"""Memory that NCCL takes on a device for the communicators of its groups, outside PyTorch's allocator.

A channel has buffers for all three protocols from each neighbour that it receives from: 4 MiB for long messages, 4.7 for words
with flags in lines of 128 bytes, half a MiB for single words, in pages of 2 MiB. Rings have one neighbour, trees inside a node
one or two. That is 544 MiB for pairs and 688 for larger groups of A100 (NVIDIA/nccl#964), and with buffers for a switch that
adds up 958 for eight H100 (vllm-project/vllm#46234), as users measured them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from foretell.cost.placement import Placement, placements_on
from foretell.hardware import Cluster, fabric_of
from foretell.program import Collective, Group, Role
from foretell.units import MIB, Bytes

_OF_ITSELF: Final[Bytes] = 64 * MIB  # beside its channels: 544 MiB of a pair less those of 24
_NEIGHBOUR: Final[Bytes] = 10 * MIB  # of a channel
_PAIR: Final = 2.0  # neighbours: the next of the ring, and of the tree
_MORE: Final = 2.6  # of more than two ranks: 688 MiB less what it takes itself, over 24 channels of 10 MiB
_ADDED_UP: Final[Bytes] = (
    32 * MIB
)  # for a member whose part the switch adds up: 16 channels, a MiB to it and one from it
# Of a channel to each rank of the node that messages go to: what arrives, and 2 MiB for either end's own. Seven peers on 32
# channels took 3.3 GB on H100 (NVIDIA/nccl#1685); to other nodes one buffer is shared (NVIDIA/nccl#1450).
_PEER: Final[Bytes] = 14 * MIB
_SHARED: Final[Bytes] = 128 * MIB
_MESSAGES: Final = {"all-to-all", "send-recv"}


def communicator_bytes(role: Role, cluster: Cluster, others: Iterable[Collective] = ()) -> Bytes:
    """Of a rank's groups, each of which has a communicator, and of all ranks together, which trainers meet in as they begin.

    `others` are collectives beside the role's own, as those between the stages of a pipeline.
    """
    if cluster.devices == 1:
        return 0
    if (own := role.found.get("communicators")) is None:
        own = role.found["communicators"] = _kinds(role.collectives)
    groups: dict[Group, set[str]] = {Group(size=cluster.devices): {"all-reduce"}}
    for group, kind in (*own, *_kinds(others)):
        groups.setdefault(group, set()).add(kind)
    return sum(_of_group(group, kinds, cluster) for group, kinds in groups.items())


def _kinds(collectives: Iterable[Collective]) -> set[tuple[Group, str]]:
    return {(replace(c.group, count=1), c.kind) for c in collectives if c.group.size > 1}


def _of_group(group: Group, kinds: set[str], cluster: Cluster) -> Bytes:
    placement = placements_on(cluster.nodes, group)[0]
    members = max(seat.members for seat in placement.seats)
    channels, adds = _channels(placement, cluster)
    nbytes = _OF_ITSELF
    if kinds - _MESSAGES:
        nbytes += round(channels * _NEIGHBOUR * (_PAIR if group.size == 2 else _MORE))
        nbytes += members * _ADDED_UP if adds else 0
    if kinds & _MESSAGES:
        far = 2 if kinds & _MESSAGES == {"send-recv"} else group.size
        near = min(members, far) - 1
        nbytes += near * _PEER * (1 << (channels - 1).bit_length() if channels else 0)
        nbytes += _SHARED if placement.nodes > 1 else 0
    return nbytes


def _channels(placement: Placement, cluster: Cluster) -> tuple[int, bool]:
    """Of the links that a group has most of its way on, and whether their switch adds up for it."""
    if placement.nodes > 1:
        assert cluster.between is not None
        return fabric_of(cluster.between).units, False
    seat = placement.seats[0]
    way = cluster.nodes[seat.node].inside
    fabric = fabric_of(way)
    return fabric.units, way.in_switch and seat.members >= fabric.in_switch_from
