"""Clusters of many nodes: what takes one look at each is done once, and what would take many is counted by runs."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from foretell import Cluster, forecast
from foretell.engine import digest
from foretell.errors import CatalogError
from foretell.graph import Graph

LARGE = "262144x1xh100-sxm"


def test_a_large_cluster_is_few_runs() -> None:
    cluster = Cluster.parse(LARGE)
    assert [(node.count, times) for node, times in cluster.runs] == [(1, 262_144)]
    assert cluster.devices == len(cluster.nodes) == 262_144
    assert len(repr(cluster)) < 10_000
    assert hash(cluster) == hash(Cluster.parse(LARGE))
    assert digest(cluster) == digest(pickle.loads(pickle.dumps(cluster)))


def test_runs_follow_rank_order() -> None:
    cluster = Cluster.parse("2x4xt4+1x2xt4+4xt4")
    assert [(node.count, times) for node, times in cluster.runs] == [(4, 2), (2, 1), (4, 1)]
    assert [node.count for node in cluster.nodes] == [4, 4, 2, 4]
    assert len(cluster.kinds) == 3  # each as it was written
    assert [node.count for node in cluster.on_host("epyc-turin").nodes] == [4, 4, 2, 4]


def test_nodes_made_apart_are_one_run() -> None:
    whole, other = Cluster.parse("16xh100-sxm"), Cluster.parse("16xh100-sxm")
    both = replace(whole, nodes=(whole.nodes[0], other.nodes[0]))
    assert [times for _, times in both.runs] == [2]
    assert both == whole


@pytest.mark.parametrize(
    ("text", "what"),
    [("100x8xh100-sxm", "devices"), ("64x1xh100-sxm", "nodes"), ("40xaws:p5.48xlarge", "devices"), ("9xt4+" * 20 + "t4", "nodes")],
)  # fmt: skip
def test_one_that_is_too_large_for_who_asks_is_refused(text: str, what: str) -> None:
    with pytest.raises(CatalogError, match=f"at most .* {what}, got"):
        Cluster.parse(text, most=(128, 32))


def test_a_forecast_of_many_nodes_looks_at_kinds_of_them() -> None:
    """Not at pairs of them, nor again and again at each: this took minutes."""
    graph = Graph.load(Path(__file__).parents[1] / "fuzz" / "bases" / "cnn.graph")
    few, many = (forecast(graph, f"{n}x1xh100-sxm", f"dp={n}", model="roofline") for n in (4, 65_536))
    assert few.step_time.seconds < many.step_time.seconds
