"""Power that devices draw: between what they take with nothing to run and while kernels run, as shares of their limit.

A step of large matrix products takes more than the shares that measured steps had in the middle, up to 90 %; one of small
kernels less.
"""

from __future__ import annotations

from foretell.cost.accuracy import shipped_accuracy
from foretell.hardware import Cluster


def cluster_watts(cluster: Cluster, busy: float) -> float:
    """Of all devices together, running kernels for a part `busy` of the time."""
    shares = shipped_accuracy()
    limit = sum(node.device.power_watts * node.count for node in cluster.nodes)
    return limit * (shares.idle_power + (shares.busy_power - shares.idle_power) * min(max(busy, 0.0), 1.0))
