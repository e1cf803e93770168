"""Collectives: how long communication among ranks takes over the cluster's links, and what it puts on them.

A collective is a startup, hops that pay latency, and bytes at the pace of the slowest link they cross; the numbers of
each kind of link are fitted, in the catalogue. docs/internals/collectives.md derives every formula here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from foretell.cost.placement import Placement, Seat, placements_on
from foretell.hardware import ROWS_ONCE, Cluster, Device, Fabric, Link, Node, Protocol, fabric_of, link
from foretell.profile import AS_LISTED, Links
from foretell.program import Collective, Group
from foretell.units import Bytes, BytesPerSecond, Seconds

FabricOf = Callable[[Link], Fabric]

# How often a ring passes the whole tensor, less one share.
_PASSES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "broadcast": 1}
_PRICED_AS = {"broadcast": "all-gather"}
# How many times longer words with flags take between nodes than chunks: NCCL's own model of its LL protocol (src/graph/tuning.cc)
# has 35 to 45 GB/s for nodes of Hopper, whose ports have 400, and 19 to 22 for those of Ampere, whose ports have 200.
_FLAGGED = 10
_ONCE_UNITS = 20  # DeepEP's usual number of SMs, which Megatron takes too


def collective_seconds(
    collective: Collective, cluster: Cluster, fabrics: FabricOf = fabric_of, links: Links = AS_LISTED
) -> Seconds:
    """How long a collective takes when its groups run at the same time: the slowest of them, by the best algorithm.

    `links` of a profile say how the cluster's differ from the catalog's.
    """
    if collective.group.size == 1:
        return 0.0
    placed = placements_on(cluster.nodes, collective.group)
    return max(_seconds(collective, cluster, placement, fabrics, links) for placement in placed)


def sent_bytes(collective: Collective) -> Bytes:
    """What one rank sends, and receives: each step of a ring moves 1/n of the tensor, a message all of it."""
    ranks = collective.group.size
    if ranks == 1:
        return 0
    if collective.kind == "send-recv":
        return collective.nbytes
    if collective.choices > 1:
        once = sent_once(collective.choices, ranks, collective.groups)
        return round(once * (ranks - 1) * collective.nbytes / ranks)
    return round(_PASSES[collective.kind] * (ranks - 1) * collective.nbytes / ranks)


def sent_once(choices: int, places: int, groups: tuple[int, int] = (1, 1)) -> float:
    """Of a token's rows, each for a place by chance, the part that is sent if every place gets a token once.

    Where rows lie in some of the groups of experts only, by chance too, they find their places in those.
    """
    count, taken = groups
    found = places * taken / count  # places of the groups that were taken
    if places < count:  # where a place has several groups: the places that any of them is on
        missed = math.comb(count - count // places, taken) / math.comb(count, taken)
        found = places * (1 - missed)
    found = max(found, 1.0)
    return found * (1 - (1 - 1 / found) ** choices) / choices


def bytes_on_wire(collective: Collective, cluster: Cluster) -> Bytes:
    """What one rank sends in the way that is quickest: to a switch that adds up, the tensor once and its share of the sums."""
    if collective.kind != "all-reduce" or collective.group.size == 1:
        return sent_bytes(collective)
    placement = placements_on(cluster.nodes, collective.group)[0]
    route = _route(collective, cluster, placement, fabric_of, AS_LISTED)
    nbytes = collective.nbytes
    in_switch = _in_switch(nbytes, route) < min(_ring("all-reduce", nbytes, route), _tree(nbytes, route))
    return round(_through_switch(nbytes, route)) if in_switch else sent_bytes(collective)


def link_bytes(collective: Collective, cluster: Cluster) -> dict[str, Bytes]:
    """What one rank puts on each kind of link: its way inside the node, and its part of the node's way out."""
    ranks, sent = collective.group.size, sent_bytes(collective)
    if not sent:
        return {}
    placement = placements_on(cluster.nodes, collective.group)[0]
    members = max(seat.members for seat in placement.seats)
    if placement.nodes == 1:
        out = 0
    elif members == 1 or collective.kind == "send-recv":
        out = sent
    elif collective.kind == "all-to-all":
        once = sent_once(collective.choices, placement.nodes, collective.groups)
        out = min(round(once * collective.nbytes * (ranks - members) / ranks), sent)  # shares of ranks on other nodes
    else:
        out = round(sent / members)  # of a ring's neighbours in a node, one has its next rank outside
    seat = placement.seats[0]
    ways = {_way_inside(cluster.nodes[seat.node], seat).name: sent - out}
    if cluster.between is not None:
        ways[cluster.between.name] = ways.get(cluster.between.name, 0) + out
    return {name: nbytes for name, nbytes in ways.items() if nbytes}


def compute_slowdown(
    collectives: Iterable[Collective], cluster: Cluster, device: Device, hidden: str | None = None
) -> float:
    """How many times longer compute takes while these run beside it: their copies occupy compute units.

    Those that are waited for at once have no compute beside them, unless their lane is `hidden`. The one that takes most counts
    throughout, so that a quicker link can never leave compute beside a heavier collective for longer.
    """
    groups = {
        (c.group, c.choices > 1)
        for c in collectives
        if (c.waited_for_by > _issued_at(c) or c.lane == hidden) and c.group.size > 1
    }
    taken = max((_ONCE_UNITS if once else _units(group, cluster) for group, once in groups), default=0)
    return 1 / (1 - min(taken / device.compute_units, 0.5))


def _issued_at(collective: Collective) -> int:
    return collective.starts_after + 1 if collective.issued_by is None else collective.issued_by


def _units(group: Group, cluster: Cluster) -> int:
    """Of a group over several nodes as many channels run as its network has use for, inside the nodes too."""
    placement = placements_on(cluster.nodes, group)[0]
    if placement.nodes > 1:
        assert cluster.between is not None
        return fabric_of(cluster.between).units
    seat = placement.seats[0]
    return fabric_of(_way_inside(cluster.nodes[seat.node], seat)).units


@dataclass(frozen=True, slots=True)
class _Lane:
    """A link as a group finds it: what is left of its rate, and the numbers of its fabric."""

    rate: BytesPerSecond = math.inf
    latency: Seconds = 0.0
    fabric: Fabric | None = None  # None: nothing crosses it, so it takes no time
    in_switch: bool = False

    @property
    def startup(self) -> Seconds:
        return self.fabric.startup * self.latency if self.fabric else 0.0

    @property
    def hop(self) -> Seconds:
        """Of a message too long for a flag in each word: whole chunks are sent on, with a fence behind each."""
        return self.fabric.hop * self.latency if self.fabric else 0.0

    def flagged(self, wire: float) -> Seconds:
        """Words with a flag beside each, so that nobody waits for a chunk."""
        return _FLAGGED * wire / self.rate

    @property
    def in_switch_startup(self) -> Seconds:
        own = self.fabric.in_switch_startup if self.fabric else None
        return self.startup if own is None else own * self.latency

    def moving(self, kind: str, wire: float, own: float = 0.0, hops: float = 1.0) -> Seconds:
        return self._moving(self.fabric.protocol(_PRICED_AS.get(kind, kind)), wire, own, hops) if self.fabric else 0.0

    def in_switch_moving(self, wire: float, own: float) -> Seconds:
        adds = self.fabric.in_switch if self.fabric else None
        return self._moving(adds, wire, own, 1.0) if adds else math.inf

    def _moving(self, protocol: Protocol, wire: float, own: float, hops: float) -> Seconds:
        steady = (wire / protocol.efficiency + own * protocol.copy) / self.rate
        return steady + math.sqrt(protocol.knee * self.latency * hops * wire / self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """What a group's bytes cross: a lane inside nodes and one between them."""

    inside: _Lane
    between: _Lane
    ranks: int
    nodes: int
    members: int  # most of a node

    @property
    def startup(self) -> Seconds:
        return max(self.inside.startup, self.between.startup)

    @property
    def levels(self) -> int:
        """Of a tree of nodes."""
        return math.ceil(math.log2(self.nodes))

    def up_and_down(self, nbytes: Bytes) -> float:
        """What a node of two trees sends to others: its half to one above and two below, and as much as a leaf of the other.

        Two nodes have one neighbour each, so they send half of that, which is less than a ring does. Through the memory of
        hosts, where both ways share what can be copied, that was not measured to be quicker.
        """
        fabric = self.between.fabric
        halved = self.nodes == 2 and fabric is not None and fabric.through is None
        return float(nbytes if halved else 2 * nbytes)


def _seconds(
    collective: Collective, cluster: Cluster, placement: Placement, fabrics: FabricOf, links: Links
) -> Seconds:
    route = _route(collective, cluster, placement, fabrics, links)
    kind, nbytes = collective.kind, collective.nbytes
    if kind == "send-recv":
        lane = route.between if route.nodes > 1 else route.inside
        return lane.startup + lane.latency + lane.moving(kind, nbytes)
    if kind == "all-to-all":
        return _all_to_all(collective, route)
    if kind == "all-reduce":
        return min(_ring(kind, nbytes, route), _tree(nbytes, route), _in_switch(nbytes, route))
    return _ring(kind, nbytes, route)


def _route(collective: Collective, cluster: Cluster, placement: Placement, fabrics: FabricOf, links: Links) -> _Route:
    several = placement.nodes > 1
    return _Route(
        inside=_inside(cluster, placement, fabrics, links),
        between=_between(collective, cluster, placement, fabrics, links) if several else _Lane(),
        ranks=collective.group.size,
        nodes=placement.nodes,
        members=max(seat.members for seat in placement.seats),
    )


def _ring(kind: str, nbytes: Bytes, route: _Route) -> Seconds:
    """Every rank sends to the next one; nodes pass the ring on through all ports of their members at once."""
    passes, ranks = _PASSES[kind], route.ranks
    wire = nbytes if kind == "broadcast" else passes * (ranks - 1) / ranks * nbytes
    outer = passes * route.nodes if route.nodes > 1 else 0
    inner = max(passes * (ranks - 1) - outer, 0)
    own = nbytes / ranks
    moving = max(route.inside.moving(kind, wire, own), route.between.moving(kind, wire, own, outer))
    return route.startup + _passed_on(route, inner, outer, wire, moving)


def _passed_on(route: _Route, inner: int, outer: int, wire: float, moving: Seconds) -> Seconds:
    """Hops inside nodes and between them, and bytes: over several nodes by the quicker of a protocol for few bytes and one for many.

    Inside one node startups and knees were fitted to both together.
    """
    short = inner * route.inside.latency + outer * route.between.latency
    if route.nodes == 1:
        return short + moving
    return min(short + route.between.flagged(wire), inner * route.inside.hop + outer * route.between.hop + moving)


def _tree(nbytes: Bytes, route: _Route) -> Seconds:
    """Up and down a tree of nodes, along a chain inside each: fewer hops than a ring, slightly more bytes."""
    if route.nodes == 1:
        return math.inf
    hops, wire = 2 * route.levels, route.up_and_down(nbytes)
    between = route.between.moving("all-reduce", wire, hops=hops)
    moving = max(route.inside.moving("all-reduce", 2 * nbytes), between)
    return route.startup + _passed_on(route, 2 * (route.members - 1), hops, wire, moving)


def _in_switch(nbytes: Bytes, route: _Route) -> Seconds:
    """The switch inside a node adds up what its devices send; between nodes a tree of their sums."""
    inside, between, fabric = route.inside, route.between, route.inside.fabric
    if fabric is None or not inside.in_switch or route.ranks < fabric.in_switch_from * route.nodes:
        return math.inf
    hops = 2 * route.levels
    waiting = 2 * inside.latency + hops * between.hop
    moving = max(
        inside.in_switch_moving(_through_switch(nbytes, route), nbytes / route.ranks),
        between.moving("all-reduce", route.up_and_down(nbytes), hops=hops),
    )
    return max(inside.in_switch_startup, between.startup) + waiting + moving


def _through_switch(nbytes: Bytes, route: _Route) -> float:
    """A device gives the switch its tensor, of which each member fetches a share's sum, and the sum of its own share."""
    return nbytes * (1 + 1 / route.members)


def _all_to_all(collective: Collective, route: _Route) -> Seconds:
    """Each rank sends a share to every other: neighbours' inside, the others' through the ports of the node.

    Where tokens are sent once (`choices` of them go to ranks by chance), a node gets one, and passes it on inside.
    """
    members, choices, groups = route.members, collective.choices, collective.groups
    each = share = collective.nbytes / route.ranks
    inside, kind, once = share * (members - 1), "all-to-all", 1.0
    if choices > 1:  # what arrives from other nodes goes to ranks inside, too
        kind, once = ROWS_ONCE, sent_once(choices, route.nodes, groups)
        share *= sent_once(choices, route.ranks, groups)
        inside = share * route.ranks * (members - 1) / members
    moving = max(
        route.inside.moving(kind, inside, share),
        route.between.moving(kind, once * each * (route.ranks - members) * members, hops=route.nodes - 1),
    )
    latency = max(route.inside.latency, route.between.latency)
    return route.startup + math.ceil(math.log2(route.ranks)) * latency + moving


def _inside(cluster: Cluster, placement: Placement, fabrics: FabricOf, links: Links) -> _Lane:
    """The slowest of the links inside the group's nodes; none where it has one member per node."""
    lanes = [_lane_of(cluster.nodes[seat.node], seat, fabrics, links) for seat in placement.seats if seat.members > 1]
    return min(lanes, key=lambda lane: lane.rate, default=_Lane())


def _lane_of(node: Node, seat: Seat, fabrics: FabricOf, links: Links) -> _Lane:
    way = _way_inside(node, seat)
    fabric = fabrics(way)
    lanes_used = min(seat.members / fabric.full_at, 1.0)
    shared = (2 / max(seat.active, 2)) ** max(fabric.sharing + links.crowding, 0.0)
    rate = min(way.bandwidth, fabric.through or math.inf) * links.bandwidth * lanes_used * shared
    return _Lane(rate, way.latency * links.latency, fabric, way.in_switch)


def _way_inside(node: Node, seat: Seat) -> Link:
    way = node.inside
    if way.reach is not None and way.beyond is not None and seat.first // way.reach != seat.last // way.reach:
        return link(way.beyond)
    return way


def _between(collective: Collective, cluster: Cluster, placement: Placement, fabrics: FabricOf, links: Links) -> _Lane:
    """The link between nodes, at the node that gives the group least."""
    way = cluster.between
    assert way is not None
    fabric = fabrics(way)
    alone = collective.kind == "send-recv"  # one member's message crosses, whoever else sits beside it
    rate = min(_way_out(cluster.nodes[seat.node], seat, way, fabric, alone) for seat in placement.seats)
    if not (cluster.topology == "rail-optimized" and placement.aligned):
        rate /= cluster.oversubscription
    if collective.kind == "all-to-all":
        rate /= _DETOUR[cluster.topology](placement.nodes)
    return _Lane(
        rate=rate * links.bandwidth / links.neighbours,
        latency=way.latency * links.latency,
        fabric=fabric,
    )


# How many links an average message between two nodes takes up: in a switched network one, on a ring a quarter of it.
_DETOUR: dict[str, Callable[[int], float]] = {
    "fat-tree": lambda nodes: 1.0,
    "rail-optimized": lambda nodes: 1.0,
    "torus": lambda nodes: max(1.0, math.sqrt(nodes) / 2),
    "ring": lambda nodes: max(1.0, nodes / 4),
}


def _way_out(node: Node, seat: Seat, way: Link, fabric: Fabric, alone: bool) -> BytesPerSecond:
    """What a group gets of a node's ports, its members' own or its part of a shared one, and of the host's copying."""
    members = 1 if alone else seat.members
    part = members / (seat.active // seat.members if alone else seat.active)
    shared = node.port or (way.bandwidth * node.count if fabric.ports == "node" else None)
    rate = way.bandwidth * members if shared is None else shared * part
    return rate if fabric.through is None else 1 / (1 / rate + 1 / (fabric.through * part))
