"""Power that the devices of a cluster draw."""

from __future__ import annotations

from foretell.cost.power import Use, shipped_power
from foretell.hardware import Cluster


def cluster_watts(cluster: Cluster, use: Use) -> float:
    """Of all devices together, each in use for such parts of the time."""
    limit = sum(node.device.power_watts * node.count * times for node, times in cluster.runs)
    return limit * shipped_power().share(use)


def idle_watts(cluster: Cluster) -> float:
    """While no kernel runs."""
    return cluster_watts(cluster, Use(busy=0.0, units={}, memory=0.0))
