"""Collectives: how long communication among ranks takes over the cluster's links, and what it puts on them."""

from __future__ import annotations

from foretell.hardware import Cluster
from foretell.program import Collective
from foretell.units import Bytes, Seconds


def collective_seconds(collective: Collective, cluster: Cluster) -> Seconds:
    """A ring, at the pace of the slowest link it crosses."""
    if collective.group.size == 1:
        return 0.0
    links = {(node.inside.bandwidth, node.inside.latency) for node in cluster.nodes if node.count > 1}
    if cluster.between is not None and cluster.between_bandwidth and len(cluster.nodes) > 1:
        links.add((cluster.between_bandwidth, cluster.between.latency))
    slowest = min(bandwidth for bandwidth, _ in links)
    latency = max(latency for _, latency in links)
    return sent_bytes(collective) / slowest + _steps(collective) * latency


def sent_bytes(collective: Collective) -> Bytes:
    """What one rank sends, and receives: each step of a ring moves 1/n of the tensor, a message all of it."""
    ranks = collective.group.size
    if ranks == 1:
        return 0
    if collective.kind == "send-recv":
        return collective.nbytes
    return round(_steps(collective) * collective.nbytes / ranks)


def _steps(collective: Collective) -> int:
    """How often a rank of a ring sends."""
    if collective.kind == "send-recv":
        return 1
    return (2 if collective.kind == "all-reduce" else 1) * (collective.group.size - 1)
