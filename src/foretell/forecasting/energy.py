"""Power that devices draw: between what they take with nothing to run and while kernels run, as shares of their limit.

Least squares over 353 steps of our H200 dataset (mean of NVML while steps ran back to back, against the share of the step
in which a kernel ran): 39 % of the limit busy, 24 % idle with clocks up, one standard deviation 11 %. A step of large
matrix products takes more, up to 90 %; one of small kernels less.
"""

from __future__ import annotations

from typing import Final

from foretell.hardware import Cluster

_BUSY: Final = 0.39
_IDLE: Final = 0.24


def cluster_watts(cluster: Cluster, busy: float) -> float:
    """Of all devices together, running kernels for a part `busy` of the time."""
    limit = sum(node.device.power_watts * node.count for node in cluster.nodes)
    return limit * (_IDLE + (_BUSY - _IDLE) * min(max(busy, 0.0), 1.0))
