"""Launch lines and jobs of schedulers; a job's limit is the upper end of its interval.

The script that they start is the user's: the plan reaches it as `{names}` in the command, and as variables FORETELL_….
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import Any, Final

import yaml

from foretell.errors import InputError
from foretell.hardware import Cluster, Device
from foretell.planner.command import filled, variables
from foretell.planner.result import Choice
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.units import Seconds

_PORT: Final = 29500
_CPUS_PER_DEVICE: Final = 8  # for a rank's loaders and launches; nodes of eight boards have 96 and more
# SkyPilot's names of boards, where they are not the device's name in capitals without hyphens.
_SKY: Final = {
    "h100-sxm": "H100", "h100-pcie": "H100", "h200": "H200", "b200": "B200", "a100-80g-sxm": "A100-80GB",
    "a100-80g-pcie": "A100-80GB", "a100-40g-sxm": "A100", "a100-40g-pcie": "A100", "v100-16g-sxm": "V100",
    "v100-32g-sxm": "V100-32GB", "rtx-a4000": "RTXA4000", "rtx-a5000": "RTXA5000", "rtx-a6000": "RTXA6000",
    "rtx-6000-ada": "RTX6000-Ada",
}  # fmt: skip
# RunPod rents both forms of a board, and there the plain name is the PCIe one.
_SKY_RUNPOD: Final = {
    "h100-sxm": "H100-SXM", "h200": "H200-SXM", "a100-80g-sxm": "A100-80GB-SXM", "a100-40g-sxm": "A100-SXM",
}  # fmt: skip
_SKY_CLOUDS: Final = ("aws", "azure", "gcp", "lambda", "runpod")
# What a node's plugin calls its devices.
_RESOURCES: Final = {
    "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe", "habana": "habana.ai/gaudi",
    "google": "google.com/tpu",
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

    @classmethod
    def of(cls, choice: Choice, *, command: str, name: str) -> Handed:
        cluster, plan = Cluster.parse(choice.cluster), Plan.parse(choice.plan)
        sizes = {node.count for node in cluster.kinds}
        if len(sizes) > 1:
            raise InputError(
                f"{cluster} has nodes of {sorted(sizes)} devices, and launchers take equal ones. Choose such a cluster."
            )
        return cls(
            choice=choice, plan=plan, cluster=cluster, nodes=len(cluster.nodes), each=sizes.pop(),
            micro_steps=plan.grad_accumulation or 1,
            command=filled(command, plan, choice.batch, choice.precision, "--command"),
            name=re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50] or "job",
        )  # fmt: skip

    @property
    def precision(self) -> Precision:
        return Precision.parse(self.choice.precision)

    @property
    def device(self) -> Device:
        return self.cluster.nodes[0].device

    @property
    def limit(self) -> Seconds:
        """The job's longest likely time, in whole minutes."""
        return math.ceil(self.choice.time.high / 60) * 60

    @property
    def comment(self) -> str:
        plan, choice = self.choice.plan, self.choice
        return f"{choice.cluster}, {plan}, micro-batches of {choice.batch} in {choice.precision}; planned by Foretell"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def variables(self) -> dict[str, str]:
        """What the script may read of the plan: every setting that is not as usual."""
        return variables(self.plan, self.choice.batch, self.choice.precision)


def torchrun(handed: Handed) -> str:
    return f"# {handed.comment}\n{_exports(handed)}\n{_line(handed, '$HEAD_NODE')}\n"


def _exports(handed: Handed) -> str:
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in handed.variables.items())


def _line(handed: Handed, head: str) -> str:
    words = ["torchrun", "--nnodes", f"{handed.nodes}", "--nproc-per-node", f"{handed.each}"]
    if handed.nodes > 1:
        words += ["--rdzv-backend", "c10d", "--rdzv-id", handed.name]
        return f'{shlex.join(words)} --rdzv-endpoint "{head}:{_PORT}" {shlex.join(handed.words)}'
    return shlex.join([*words, "--standalone", *handed.words])


def slurm(handed: Handed) -> str:
    minutes = round(handed.limit / 60)
    days, hours = divmod(minutes // 60, 24)
    gpus = "" if handed.device.kind == "cpu" else f"\n#SBATCH --gpus-per-node={handed.each}"
    return f"""#!/bin/bash
# {handed.comment}
#SBATCH --job-name={handed.name}
#SBATCH --nodes={handed.nodes}
#SBATCH --ntasks-per-node=1{gpus}
#SBATCH --cpus-per-task={handed.each * _CPUS_PER_DEVICE}
#SBATCH --exclusive
#SBATCH --time={days}-{hours:02d}:{minutes % 60:02d}:00

{_exports(handed)}
export HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
srun {_line(handed, "$HEAD_NODE")}
"""


def skypilot(handed: Handed) -> str:
    cloud = handed.cluster.nodes[0].rented_as.partition(":")[0]
    board = handed.device.name
    names = _SKY | (_SKY_RUNPOD if cloud == "runpod" else {})
    resources: dict[str, object] = {"accelerators": f"{names.get(board, board.upper().replace('-', ''))}:{handed.each}"}
    if cloud in _SKY_CLOUDS:
        resources["infra"] = cloud
    if handed.nodes > 1:
        resources["network_tier"] = "best"  # the network that nodes of such instances have is off unless it is wanted
    if handed.choice.term == "spot":
        resources["use_spot"] = True
    task = {
        "name": handed.name,
        "resources": resources,
        "num_nodes": handed.nodes,
        "envs": handed.variables,
        "run": f'export HEAD_NODE=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\ntimeout {handed.limit:.0f} {_line(handed, "$HEAD_NODE")}\n',
    }
    return f"# {handed.comment}\n{_yaml(task)}"


def kubernetes(handed: Handed) -> str:
    """A Job of one pod per node, which Kueue admits from a queue named `default` and ends at its limit."""
    limit = int(handed.limit)
    labels = {"kueue.x-k8s.io/queue-name": "default", "kueue.x-k8s.io/max-exec-time-seconds": f"{limit}"}
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
            "template": {"spec": _pod(handed)},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": handed.name},
        "spec": {"clusterIP": "None", "selector": {"batch.kubernetes.io/job-name": handed.name}},
    }
    return f"# {handed.comment}\n{_yaml(job)}---\n{_yaml(service)}"


def _pod(handed: Handed) -> dict[str, Any]:
    device = handed.device
    limits = {} if device.kind == "cpu" else {_resource(device): handed.each}
    container = {
        "name": "train",
        "image": "IMAGE",
        "command": ["bash", "-c", _line(handed, f"{handed.name}-0.{handed.name}")],
        "env": [{"name": name, "value": value} for name, value in handed.variables.items()],
        "resources": {"limits": limits},
        # Loaders and NCCL hand tensors over in shared memory, of which a container has 64 MB by itself.
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # nosec B108  # the container's
    }
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    return {"subdomain": handed.name, "restartPolicy": "Never", "containers": [container], "volumes": [volume]}


def _resource(device: Device) -> str:
    vendor = "habana" if device.name.startswith("gaudi") else device.vendor.lower()
    if vendor not in _RESOURCES:
        raise InputError(
            f"no resource of Kubernetes is known for {device.name} of {device.vendor}. Known: {', '.join(_RESOURCES)}. "
            "Hand over to torchrun, and write the job around it."
        )
    return _RESOURCES[vendor]


def _yaml(value: object) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, width=1000))
