"""Power that the devices of a cluster draw."""

from __future__ import annotations

from foretell.cost.power import Use, carried, shipped_power
from foretell.hardware import Cluster


def cluster_watts(cluster: Cluster, use: Use) -> float:
    """Of all devices together, each in use for such parts of the time."""
    power = shipped_power()
    return sum(
        node.device.power_watts * node.count * times * power.share(carried(use, node.device))
        for node, times in cluster.runs
    )


def idle_watts(cluster: Cluster) -> float:
    """While no kernel runs."""
    return cluster_watts(cluster, Use(busy=0.0, units={}, memory=0.0))
