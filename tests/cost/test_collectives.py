"""Collectives over topologies: physics first, then what each topology is known for."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.cost.collectives import bytes_on_wire, collective_seconds, compute_slowdown, sent_bytes
from foretell.cost.placement import placements
from foretell.hardware import Cluster, Node, device, host, link
from foretell.program import COLLECTIVES, Collective, Group

MIB = 2**20
CLUSTERS = (
    "8xa100",
    "8xh100",
    "8xv100",
    "4x8xh100",
    "4x4xt4",
    "8xl40s@pcie-4",
    "8xa40@nvlink-bridge",
    "8xmi300x",
    "4xt4+2xt4",
)


def seconds(on: str | Cluster, kind: str, nbytes: int, size: int, stride: int = 1, count: int = 1) -> float:
    cluster = Cluster.parse(on) if isinstance(on, str) else on
    group = Group(size=size, stride=stride, count=count)
    return collective_seconds(
        Collective(kind=kind, nbytes=nbytes, group=group, name="c", starts_after=0, waited_for_by=1), cluster
    )


@settings(deadline=None)  # the first example reads the catalogue, which a busy machine does slowly
@given(
    on=st.sampled_from(CLUSTERS), kind=st.sampled_from(COLLECTIVES), nbytes=st.integers(1, 2**32), size=st.integers(2, 6)
)  # fmt: skip
def test_time_is_positive_grows_with_bytes_and_never_beats_the_link(on: str, kind: str, nbytes: int, size: int) -> None:
    found = seconds(on, kind, nbytes, size)
    assert 0 < found < seconds(on, kind, 2 * nbytes, size)
    node = Cluster.parse(on).nodes[0]
    in_switch = kind == "all-reduce" and node.inside.in_switch
    wire = nbytes / size if kind == "all-to-all" else nbytes * (size - 1) / size
    assert found >= (nbytes if in_switch else wire) / node.inside.bandwidth / 1.01


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_one_rank_says_nothing_and_takes_no_time(kind: str) -> None:
    alone = Collective(kind=kind, nbytes=MIB, group=Group(size=1), name="", starts_after=0, waited_for_by=0)
    assert collective_seconds(alone, Cluster.parse("8xh100")) == 0.0
    assert sent_bytes(alone) == 0


@pytest.mark.parametrize("on", ["8xh100", "4x8xh100", "4x4xt4"])
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_more_bandwidth_is_never_slower(on: str, kind: str) -> None:
    cluster = Cluster.parse(on)
    node = cluster.nodes[0]
    faster = dataclasses.replace(
        cluster,
        nodes=tuple(
            dataclasses.replace(node, inside=dataclasses.replace(node.inside, bandwidth=2 * node.inside.bandwidth))
            for node in cluster.nodes
        ),
        between=cluster.between and dataclasses.replace(cluster.between, bandwidth=2 * cluster.between.bandwidth),
    )
    ranks = cluster.devices
    assert seconds(faster, kind, 64 * MIB, ranks) < seconds(cluster, kind, 64 * MIB, ranks)
    assert node.count <= ranks


def test_a_pair_uses_its_bridge_and_a_quad_does_not() -> None:
    pair = seconds("8xa40@nvlink-bridge", "all-reduce", 256 * MIB, 2)
    across = seconds("8xa40@nvlink-bridge", "all-reduce", 256 * MIB, 2, stride=2, count=2)
    assert across > 1.3 * pair
    assert seconds("8xa40@nvlink-bridge", "all-reduce", 256 * MIB, 4) > pair


def test_lanes_to_fixed_neighbours_are_all_used_by_a_full_node_only() -> None:
    two, eight = (256 * MIB * 2 * (n - 1) / n / seconds("8xv100", "all-reduce", 256 * MIB, n) for n in (2, 8))
    assert eight > 2.5 * two


def test_groups_at_the_same_time_share_a_bus_but_not_a_switch() -> None:
    for on, slows in (("8xl40s@pcie-4-host", True), ("8xh100", False)):
        alone, beside = (seconds(on, "all-gather", 64 * MIB, 2, count=n) for n in (1, 4))
        assert (beside > 1.5 * alone) is slows


def test_groups_at_the_same_time_share_an_ethernet_port_and_have_their_own_of_infiniband() -> None:
    for between, slows in (("eth-25g", True), ("ib-200g", False)):
        alone, beside = (seconds(f"4x8xa100@{between}", "all-reduce", 64 * MIB, 4, 8, n) for n in (1, 8))
        assert (beside > 4 * alone) is slows


def test_members_of_a_node_pass_a_ring_on_through_all_their_ports() -> None:
    one_a_node = seconds("2x8xh100", "all-reduce", 1024 * MIB, 2, stride=8, count=8)
    whole_nodes = seconds("2x8xh100", "all-reduce", 1024 * MIB, 16)
    assert whole_nodes < one_a_node / 2


def test_a_thin_network_slows_what_leaves_its_rail() -> None:
    full = Cluster.parse("8x8xh100")
    thin = dataclasses.replace(full, oversubscription=4.0)
    rails = dataclasses.replace(thin, topology="rail-optimized")
    times = [seconds(c, "all-reduce", 256 * MIB, 8, stride=8, count=8) for c in (full, rails, thin)]
    assert times[0] == times[1] < times[2] / 2


def test_messages_on_a_ring_of_nodes_take_detours() -> None:
    switched = Cluster.parse("16x8xh100")
    ring = dataclasses.replace(switched, topology="ring")
    assert seconds(ring, "all-to-all", 256 * MIB, 128) > 2 * seconds(switched, "all-to-all", 256 * MIB, 128)
    assert seconds(ring, "all-reduce", 256 * MIB, 128) == seconds(switched, "all-reduce", 256 * MIB, 128)


def test_a_tree_spares_many_nodes_the_hops_of_a_ring() -> None:
    small_on_few, small_on_many = (seconds(f"{n}x8xh100", "all-reduce", 1024, 8 * n) for n in (2, 256))
    assert small_on_many < 5 * small_on_few


def test_a_switch_that_adds_up_beats_a_ring() -> None:
    cluster = Cluster.parse("8xh100")
    node = dataclasses.replace(cluster.nodes[0], inside=dataclasses.replace(cluster.nodes[0].inside, in_switch=False))
    ring_only = dataclasses.replace(cluster, nodes=(node,))
    assert seconds(cluster, "all-reduce", 512 * MIB, 8) < 0.9 * seconds(ring_only, "all-reduce", 512 * MIB, 8)


def test_the_emptiest_node_decides_how_fast_an_uneven_group_is() -> None:
    even, uneven = (seconds(on, "all-reduce", 64 * MIB, 6) for on in ("3xt4+3xt4", "4xt4+2xt4"))
    assert uneven > even


def test_a_node_with_one_port_for_all() -> None:
    t4 = device("t4")
    nodes = [Node(device=t4, count=n, host=host(t4.host), inside=link(t4.inside), port=50e9 / 8) for n in (1, 3)]
    cluster = Cluster(nodes=tuple(nodes), between=link("eth-50g"))
    wire = 2 * 3 / 4 * 64 * MIB
    assert wire / (50e9 / 8) < seconds(cluster, "all-reduce", 64 * MIB, 4) < 2.2 * wire / (50e9 / 8)


def test_compute_beside_a_collective_is_slower() -> None:
    def slower(on: str, size: int, *, waited_at: int = 9) -> float:
        cluster = Cluster.parse(on)
        busy = Collective(kind="all-reduce", nbytes=MIB, group=Group(size=size), name="sum", starts_after=1,
                          waited_for_by=waited_at)  # fmt: skip
        return compute_slowdown([busy], cluster, cluster.nodes[0].device)

    assert slower("h100", 1) == slower("8xh100", 1) == 1.0
    assert 1.0 < slower("8xh100", 8) < 1.5
    assert slower("8xl40s@pcie-4", 8) < slower("8xh100", 8)
    assert slower("2x8xh100", 8) == slower("8xh100", 8)  # it stays in its node
    assert 1.0 < slower("2x8xh100@ib-400g", 16) < slower("8xh100", 8)
    assert slower("8xh100", 8, waited_at=2) == 1.0  # nothing runs beside it


def test_ten_thousand_devices_are_quick() -> None:
    cluster = Cluster.parse("2048x8xh100")
    began = time.perf_counter()
    for nbytes in range(1, 200):
        seconds(cluster, "all-reduce", nbytes * MIB, 128, stride=8, count=128)
    assert time.perf_counter() - began < 1.0


def test_spreads() -> None:
    [inside] = placements(Group(size=4, count=4), (8, 8))
    assert (inside.nodes, inside.seats[0].members, inside.seats[0].active) == (1, 4, 8)
    [rail] = placements(Group(size=2, stride=8, count=8), (8, 8))
    assert (rail.nodes, len(rail.seats), rail.seats[0].members, rail.seats[0].active, rail.aligned) == (
        2,
        1,
        1,
        8,
        True,
    )
    straddling = placements(Group(size=3, count=5), (8, 8))
    assert {s.nodes for s in straddling} == {1, 2}
    [uneven] = placements(Group(size=6), (4, 2))
    assert [seat.members for seat in uneven.seats] == [4, 2]
    assert not uneven.aligned


def test_rings_over_more_nodes_reach_less_of_their_rate_and_trees_hardly() -> None:
    """NVIDIA/nccl#1229: reduce-scatter falls from 360 to 260 GB/s between 4 and 128 nodes."""

    def rate(kind: str, nodes: int, link_name: str = "ib-400g") -> float:
        return 2**33 / seconds(f"{nodes}x8xh100@{link_name}", kind, 2**33, 8 * nodes)

    assert rate("reduce-scatter", 128) / rate("reduce-scatter", 4) == pytest.approx(260 / 360, rel=0.1)
    assert rate("all-reduce", 128) > 0.9 * rate("all-reduce", 4)
    assert rate("reduce-scatter", 16, "roce-400g") < 0.8 * rate("reduce-scatter", 16)


@pytest.mark.parametrize("name", ["h100-sxm", "h200", "a100-80g-sxm", "b200"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_no_rank_sends_faster_than_its_link(name: str, ranks: int) -> None:
    """A switch that adds up takes the tensor once, where a ring sends it almost twice."""
    cluster = Cluster.parse(f"8x{name}")
    for nbytes in (2**20, 2**26, 2**32):
        group = Group(size=ranks, count=8 // ranks)
        c = Collective(kind="all-reduce", nbytes=nbytes, group=group, name="", starts_after=-1, waited_for_by=0)
        rate = bytes_on_wire(c, cluster) / collective_seconds(c, cluster)
        assert rate <= cluster.nodes[0].inside.bandwidth, (name, nbytes)


def bus(cluster: str, nbytes: int, ranks: int) -> float:
    """Bus bandwidth of an all-reduce, GB/s."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds(cluster, "all-reduce", nbytes, ranks) / 1e9


def test_two_nodes_have_one_neighbour_each_and_pass_the_rate_of_their_ports() -> None:
    """NVIDIA/nccl-tests#309: 470 GB/s on two nodes of eight H100 with 400 GB/s of ports, 366 on four; not over TCP."""
    two, four = (bus(f"{n}x8xh100@ib-400g", 2**34, 8 * n) for n in (2, 4))
    assert two == pytest.approx(470, rel=0.15)
    assert four == pytest.approx(366, rel=0.1)
    tcp_two, tcp_four = (bus(f"{n}x8xh100@eth-100g", 2**34, 8 * n) for n in (2, 4))
    assert tcp_two < 1.1 * tcp_four


def test_all_reduces_over_efa_lose_more_with_every_doubling_of_nodes_the_shorter_they_are() -> None:
    """github.com/crazyguitar/aws-gpu-communication-benchmark: 364 GB/s on two nodes and 148 on sixteen at 256 MiB."""
    short = [bus(f"{n}x8xh100@efa-400g", 2**28, 8 * n) for n in (2, 4, 8, 16, 32)]
    long = [bus(f"{n}x8xh100@efa-400g", 2**33, 8 * n) for n in (2, 4, 8, 16, 32)]
    assert short == sorted(short, reverse=True)
    assert short[0] == pytest.approx(364, rel=0.2)
    assert short[3] == pytest.approx(148, rel=0.3)
    assert short[3] / short[0] < 0.75 * long[3] / long[0]
    assert seconds("2x8xb200@efa-400g", "all-reduce", 8, 16) == pytest.approx(52.6e-6, rel=0.3)  # dstackai/dstack#3961


def test_long_messages_pay_more_for_a_hop_than_short_ones() -> None:
    """NVIDIA/nccl#1244: 48 µs for 8 bytes and 122 to 130 for 1 to 4 MiB on two nodes of eight H20."""
    least, some = (seconds("2x8xh20@ib-400g", "all-reduce", n, 16) for n in (8, 4 * MIB))
    assert least == pytest.approx(48e-6, rel=0.15)
    assert some == pytest.approx(125e-6, rel=0.35)
    for nbytes in (2**k for k in range(8, 34)):
        assert seconds("8x8xh100@ib-400g", "all-gather", nbytes, 64) < seconds(
            "8x8xh100@ib-400g", "all-gather", 2 * nbytes, 64
        )


def test_a_switch_that_adds_up_gains_with_its_devices() -> None:
    """ml-engineering, 8 GiB on H200: 363 GB/s on four devices, where rings run, then 414, 436, 460 and 473."""
    found = [bus(f"{n}xh200", 2**33, n) for n in (4, 5, 6, 7, 8)]
    assert found == pytest.approx([363, 414, 436, 460, 473], rel=0.07)


@pytest.mark.parametrize(
    ("ranks", "nbytes", "micros"), [(4, 2**15, 17), (8, 2**15, 25), (4, 2**20, 106), (8, 2**25, 2600)]
)
def test_devices_on_pci_express_as_nccl_finds_them(ranks: int, nbytes: int, micros: float) -> None:
    """RTX PRO 6000 (gardenlinux#4556, github.com/voipmonitor/rtx6kpro): channels bound the rate, not the link."""
    assert seconds(f"{ranks}xrtx-pro-6000", "all-reduce", nbytes, ranks) * 1e6 == pytest.approx(micros, rel=0.3)
    assert seconds(f"{ranks}xrtx-pro-6000", "all-reduce", 2**32, ranks) < seconds(
        f"{ranks}xa40@pcie-4", "all-reduce", 2**32, ranks
    )


def test_small_messages_take_longer_on_the_fifth_nvlink() -> None:
    """NVIDIA/nccl#1940: 3.0 µs on eight B200 and 2.3 on eight H200, the least of either."""
    newer, older = (seconds(f"8x{name}", "all-reduce", 4096, 8) for name in ("b200", "h200"))
    assert 1.2 < newer / older < 1.6
