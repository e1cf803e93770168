from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import CatalogError
from foretell.hardware import Cluster, Node, device, host, instance, link


def shape(cluster: Cluster) -> list[tuple[int, str]]:
    return [(node.count, node.device.name) for node in cluster.nodes]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("h200", [(1, "h200")]),
        ("8xh100-sxm", [(8, "h100-sxm")]),
        ("4xh100-sxm", [(4, "h100-sxm")]),
        ("3x8xh100-sxm", [(8, "h100-sxm")] * 3),
        ("2x4xh100-sxm", [(4, "h100-sxm")] * 2),
        ("64xh100-sxm", [(8, "h100-sxm")] * 8),
        ("20xh100-sxm", [(8, "h100-sxm"), (8, "h100-sxm"), (4, "h100-sxm")]),
        ("4xt4+2xt4", [(4, "t4"), (2, "t4")]),
        ("4xt4+2x2xv100", [(4, "t4"), (2, "v100-16g-sxm"), (2, "v100-16g-sxm")]),
        ("2xaws:p5.48xlarge", [(8, "h100-sxm")] * 2),
        ("aws:g4dn.xlarge", [(1, "t4")]),
        ("2xcoreweave:8xh100", [(8, "h100-sxm")] * 2),
        ("4x2080ti", [(4, "rtx-2080-ti")]),
        (" 2 × 8 × H100-SXM @ IB-400G ", [(8, "h100-sxm")] * 2),
    ],
)
def test_grammar(text: str, nodes: list[tuple[int, str]]) -> None:
    cluster = Cluster.parse(text)
    assert shape(cluster) == nodes
    assert cluster.devices == sum(count for count, _ in nodes)
    assert str(cluster) == cluster.name == text.strip()
    assert Cluster.parse(str(cluster)) == cluster


def test_racks_are_filled_alike_where_that_is_possible() -> None:
    assert [node.count for node in Cluster.parse("256xgb200").nodes] == [64] * 4
    assert [node.count for node in Cluster.parse("144xgb200").nodes] == [72] * 2
    assert [node.count for node in Cluster.parse("73xgb200").nodes] == [72, 1]  # 73 is a prime
    assert [node.count for node in Cluster.parse("12xh100-sxm").nodes] == [8, 4]
    assert Cluster.parse("256xgb200").partly_filled == "4 × 64 devices, where 72 share a rack's links"
    assert not Cluster.parse("144xgb200").partly_filled
    assert not Cluster.parse("8xgb200").partly_filled


def test_links() -> None:
    assert Cluster.parse("16x8xh100-sxm@ib-200g").between == link("ib-200g")
    assert Cluster.parse("16x8xh100-sxm").between == link("ib-400g"), "the device's usual link"
    assert Cluster.parse("8xh100-sxm").between is None
    both = Cluster.parse("8xl40s@pcie-5,eth-100g")
    assert (both.nodes[0].inside, both.between) == (link("pcie-5"), link("eth-100g"))
    only_inside = Cluster.parse("16xl40s@pcie-5")
    assert (only_inside.nodes[0].inside, only_inside.between) == (link("pcie-5"), link("eth-100g"))
    assert Cluster.parse("8xh100+4xt4").between == link("eth-25g"), "the slower of the two usual links"


def test_an_instance_brings_its_own_network_and_host() -> None:
    rented = Cluster.parse("2xaws:p3.16xlarge")
    assert rented.between is not None
    assert rented.between.bandwidth == instance("aws:p3.16xlarge").bandwidth
    assert rented.nodes[0].host == host("xeon-broadwell")
    assert Cluster.parse("2xaws:p3.16xlarge@ib-100g").between == link("ib-100g")


def test_price() -> None:
    assert Cluster.parse("2xaws:p5.48xlarge").dollars_per_hour == pytest.approx(2 * 55.04)
    one, eight = Cluster.parse("h100-sxm").dollars_per_hour, Cluster.parse("8xh100-sxm").dollars_per_hour
    assert one is not None
    assert eight == pytest.approx(8 * one), "of a cloud that puts up to eight of them into one machine"
    assert Cluster.parse("8xh100+mi100").dollars_per_hour is None


def test_device_kinds_in_order_of_first_appearance() -> None:
    assert [d.name for d in Cluster.parse("t4+v100+t4").device_kinds] == ["t4", "v100-16g-sxm"]


def test_a_large_cluster_is_cheap() -> None:
    Cluster.parse("h100-sxm")  # the catalog is read
    began = time.perf_counter()
    cluster = Cluster.parse("16384xh100-sxm@ib-400g")
    assert (cluster.devices, len(cluster.nodes), len(set(map(id, cluster.nodes)))) == (16384, 2048, 1)
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cluster '': an empty part does not name devices. Write it like 'h200', '8xh100-sxm'"),
        ("4xt4+", "an empty part does not name devices"),
        ("0xt4", "cluster '0xt4': a part has 1 to 1,048,576 devices, got '0xt4'"),
        ("0x8xt4", "a part has 1 to 1,048,576 devices"),
        ("8x0xt4", "a part has 1 to 1,048,576 devices"),
        ("1048577xt4", "a part has 1 to 1,048,576 devices"),
        ("1000000xt4+1000000xt4", "a cluster has at most 1,048,576 devices, got 2,000,000"),
        ("-1xt4", "'-1xt4' does not name devices"),
        ("8xh10o", "no device 'h10o' in the catalog. Did you mean 'h100-sxm'"),
        ("aws:p5.48xlarg", "no instance 'aws:p5.48xlarg' in the catalog. Did you mean 'aws:p5.48xlarge'"),
        ("2x8xaws:p5.48xlarge", "has 8 devices of its own.*Write '2xaws:p5.48xlarge'"),
        ("2x8xh100@ib-40g", "no link 'ib-40g' in the catalog. Did you mean 'ib-400g'"),
        ("2x8xh100@", "after '@' come one or two links, got ''"),
        ("2x8xh100@pcie-4,", "after '@' come one or two links, got 'pcie-4,'"),
        ("2x8xh100@pcie-4,ib-400g,ib-400g", "after '@' come one or two links"),
        ("2x8xh100@ib-400g,pcie-4", "'ib-400g' is a link between nodes, but one inside a node belongs here.*pcie-5"),
        ("2x8xh100@pcie-4,pcie-5", "'pcie-5' is a link inside a node, but one between nodes belongs here.*ib-400g"),
    ],
)
def test_a_wrong_text_says_what_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        Cluster.parse(text)


def node(count: int = 8) -> Node:
    return Node(device=device("h100"), count=count, host=host("desktop"), inside=link("nvlink-4"))


def test_a_cluster_in_python_says_more_than_the_text() -> None:
    cluster = Cluster(nodes=(node(),) * 4, between=link("ib-400g"), oversubscription=2.0, topology="rail-optimized")
    assert str(cluster) == "4x8xh100-sxm@ib-400g/2/rail-optimized"
    assert cluster.between_bandwidth == 25e9
    assert cluster.dollars_per_hour is None


def test_a_network_can_be_thinner_and_have_a_shape() -> None:
    full, half = Cluster.parse("4x8xh100-sxm@ib-400g"), Cluster.parse("4x8xh100-sxm@ib-400g/2")
    assert half.between_bandwidth == (full.between_bandwidth or 0) / 2
    assert Cluster.parse("4x8xh100-sxm@ib-400g/1.5/torus").topology == "torus"
    assert Cluster.parse("4x8xh100-sxm@ib-400g/ring").oversubscription == 1
    with pytest.raises(CatalogError, match=r"'blob' is neither .* '@ib-400g/2', nor a topology\. Topologies: fat-tree"):
        Cluster.parse("4x8xh100-sxm@ib-400g/blob")
    with pytest.raises(CatalogError, match=r"oversubscription is at least 1 .*, got 0\.5"):
        Cluster.parse("4x8xh100-sxm@ib-400g/0.5")


def test_a_cluster_in_python_is_checked() -> None:
    with pytest.raises(CatalogError, match="at least one node"):
        Cluster(nodes=())
    with pytest.raises(CatalogError, match="at least 1 device, got 0 of 'h100-sxm'"):
        node(0)
    with pytest.raises(CatalogError, match="2 nodes need a link between them"):
        Cluster(nodes=(node(), node()))
    with pytest.raises(CatalogError, match=r"oversubscription is at least 1 .*, got 0\.5"):
        Cluster(nodes=(node(),), oversubscription=0.5)
    with pytest.raises(CatalogError, match=r"unknown topology 'blob'\. Allowed: fat-tree"):
        Cluster(nodes=(node(),), topology="blob")
    with pytest.raises(CatalogError, match="'nvlink-4' is a link inside a node"):
        Cluster(nodes=(node(),), between=link("nvlink-4"))


counts = st.one_of(st.just(""), st.integers(1, 40).map("{}x".format))
plain = st.builds("{}{}{}".format, counts, counts, st.sampled_from(["h200", "t4", "v100", "rtx-4090", "2080ti", "cpu"]))
rented = st.builds("{}{}".format, counts, st.sampled_from(["aws:p5.48xlarge", "gcp:g2-standard-48", "runpod:l4"]))
at = st.sampled_from(["", "@ib-400g", "@pcie-3", "@pcie-4,eth-100g", "@nvlink-2,ib-hdr", "@ib-400g/2/torus"])


@given(parts=st.lists(st.one_of(plain, rented), min_size=1, max_size=4), at=at)
def test_every_cluster_reads_back(parts: list[str], at: str) -> None:
    cluster = Cluster.parse("+".join(parts) + at)
    assert Cluster.parse(str(cluster)) == cluster
    assert cluster.devices == sum(node.count for node in cluster.nodes) >= len(parts)
    assert (cluster.between is None) <= (len(cluster.nodes) == 1)


@given(parts=st.lists(plain, min_size=1, max_size=4), at=at)
def test_every_cluster_without_its_text_can_be_spelt(parts: list[str], at: str) -> None:
    cluster = replace(Cluster.parse("+".join(parts) + at), name="")
    assert Cluster.parse(str(cluster)) == cluster
