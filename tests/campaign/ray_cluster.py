"""A Ray cluster on this machine, as a program: `python -m tests.campaign.ray_cluster ENVIRONMENT…`, a node for each.

It writes the cluster's address and the pid of its head's server, and runs until it is killed. Ray leaves threads and a
handler of SIGTERM in the process that starts nodes; forks inherit the handler, and wait in it for ever. So the process of
the tests, which forks hundreds of times, must not be that one.
"""

from __future__ import annotations

import json
import signal
import sys

from ray.cluster_utils import Cluster


def main(*environments: str) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for environment in environments:
        cluster.add_node(num_cpus=1, env_vars=json.loads(environment))
    [server] = [info.process.pid for info in cluster.head_node.all_processes["gcs_server"]]
    print(json.dumps({"address": cluster.address, "server": server}), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
