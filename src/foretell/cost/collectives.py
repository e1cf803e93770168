"""Collectives: how long communication among ranks takes over the cluster's links, and what it puts on them."""

from __future__ import annotations

from foretell.hardware import Cluster
from foretell.program import Collective
from foretell.units import Bytes, Seconds


def collective_seconds(collective: Collective, cluster: Cluster) -> Seconds:
    """A ring all-reduce: 2(n−1) steps of 1/n of the data each, at the pace of the slowest link it crosses."""
    ranks = collective.ranks
    if ranks == 1:
        return 0.0
    links = {(node.inside.bandwidth, node.inside.latency) for node in cluster.nodes if node.count > 1}
    if cluster.between is not None and cluster.between_bandwidth and len(cluster.nodes) > 1:
        links.add((cluster.between_bandwidth, cluster.between.latency))
    slowest = min(bandwidth for bandwidth, _ in links)
    latency = max(latency for _, latency in links)
    return sent_bytes(collective) / slowest + 2 * (ranks - 1) * latency


def sent_bytes(collective: Collective) -> Bytes:
    """What one rank sends, and receives: 2(n−1)/n of the data."""
    return round(2 * (collective.ranks - 1) * collective.nbytes / collective.ranks)
