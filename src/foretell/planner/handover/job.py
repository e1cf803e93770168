"""Launch lines and jobs of schedulers; a job's limit is the upper end of its interval."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import Final

import yaml

from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.planner.result import Choice
from foretell.plans import Plan
from foretell.units import Seconds

_PORT: Final = 29500
# SkyPilot's names of accelerators, where they are not the device's name in capitals.
_SKY: Final = {
    "h100-sxm": "H100", "h100-pcie": "H100", "h200": "H200", "b200": "B200", "a100-80g-sxm": "A100-80GB",
    "a100-80g-pcie": "A100-80GB", "a100-40g-sxm": "A100", "a100-40g-pcie": "A100", "v100-16g-sxm": "V100",
    "v100-32g-sxm": "V100-32GB",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What every tool is told."""

    choice: Choice
    plan: Plan
    cluster: Cluster
    nodes: int
    each: int  # devices of a node
    micro_steps: int
    command: str
    name: str
    precision: str

    @classmethod
    def of(cls, choice: Choice, *, command: str, name: str, precision: str) -> Handed:
        cluster, plan = Cluster.parse(choice.cluster), Plan.parse(choice.plan)
        sizes = {node.count for node in cluster.nodes}
        if len(sizes) > 1:
            raise InputError(
                f"{cluster} has nodes of {sorted(sizes)} devices, and launchers take equal ones. Choose such a cluster."
            )
        return cls(
            choice=choice, plan=plan, cluster=cluster, nodes=len(cluster.nodes), each=sizes.pop(),
            micro_steps=plan.grad_accumulation or 1, command=command,
            name=re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50] or "job",
            precision=choice.settings.get("precision", precision),
        )  # fmt: skip

    @property
    def limit(self) -> Seconds:
        """The job's longest likely time, in whole minutes."""
        return math.ceil(self.choice.time.high / 60) * 60

    @property
    def comment(self) -> str:
        plan = self.choice.plan
        return f"{self.choice.cluster}, {plan}, micro-batches of {self.choice.batch}; planned by Foretell"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


def torchrun(handed: Handed) -> str:
    return f"# {handed.comment}\n{_line(handed, '$HEAD_NODE')}\n"


def _line(handed: Handed, head: str) -> str:
    words = ["torchrun", "--nnodes", f"{handed.nodes}", "--nproc-per-node", f"{handed.each}"]
    if handed.nodes > 1:
        words += ["--rdzv-backend", "c10d", "--rdzv-id", handed.name]
        return f'{shlex.join(words)} --rdzv-endpoint "{head}:{_PORT}" {shlex.join(handed.words)}'
    return shlex.join([*words, "--standalone", *handed.words])


def slurm(handed: Handed) -> str:
    minutes = round(handed.limit / 60)
    days, hours = divmod(minutes // 60, 24)
    return f"""#!/bin/bash
# {handed.comment}
#SBATCH --job-name={handed.name}
#SBATCH --nodes={handed.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={handed.each}
#SBATCH --exclusive
#SBATCH --time={days}-{hours:02d}:{minutes % 60:02d}:00

export HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {_line(handed, "$HEAD_NODE")}
"""


def skypilot(handed: Handed) -> str:
    device = handed.cluster.nodes[0].device.name
    resources: dict[str, object] = {"accelerators": f"{_SKY.get(device, device.upper())}:{handed.each}"}
    if handed.choice.term == "spot":
        resources["use_spot"] = True
    task = {
        "name": handed.name,
        "resources": resources,
        "num_nodes": handed.nodes,
        "run": f'export HEAD_NODE=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\ntimeout {handed.limit:.0f} {_line(handed, "$HEAD_NODE")}\n',
    }
    return f"# {handed.comment}\n{_yaml(task)}"


def kubernetes(handed: Handed) -> str:
    """A Job of one pod per node, which Kueue admits from a queue named `default` and ends at its limit."""
    limit = int(handed.limit)
    labels = {"kueue.x-k8s.io/queue-name": "default", "kueue.x-k8s.io/max-exec-time-seconds": f"{limit}"}
    container = {
        "name": "train",
        "image": "IMAGE",
        "command": ["bash", "-c", _line(handed, f"{handed.name}-0.{handed.name}")],
        "resources": {"limits": {"nvidia.com/gpu": handed.each}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": handed.name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": handed.nodes,
            "parallelism": handed.nodes,
            "activeDeadlineSeconds": limit,
            "suspend": True,
            "template": {
                "spec": {"subdomain": handed.name, "restartPolicy": "Never", "containers": [container]},
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": handed.name},
        "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": handed.name}},
    }
    return f"# {handed.comment}\n{_yaml(job)}---\n{_yaml(service)}"


def _yaml(value: object) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, width=1000))
