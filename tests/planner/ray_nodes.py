"""A Ray cluster of two nodes as a program: it writes its address and the process of the second node, and stays."""

from __future__ import annotations

import json
import signal

from ray.cluster_utils import Cluster


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    [raylet] = [info.process.pid for info in nodes[1].all_processes["raylet"]]
    print(json.dumps({"address": cluster.address, "second": raylet}), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
