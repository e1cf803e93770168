"""What surrounds a network, as numbers: precision, batch, plan and cluster.

Every method that sees any of it sees all of it, by these numbers: a rival that is blind to what another sees is no rival.
Amounts are logarithms to the base two, choices are zeros and ones. What a query does not have is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, get_args

from foretell.hardware import Cluster
from foretell.methods.protocol import Query
from foretell.plans import DDP_BUCKET_BYTES, Plan, Schedule
from foretell.precision import Precision
from foretell.recomputing import Recomputing

_DEGREES: Final = ("dp", "tp", "pp", "cp", "ulysses", "ep", "virtual_stages")
_FLAGS: Final = (
    "sequence_parallel",
    "cp_gather",
    "overlap_tp",
    "overlap_ep",
    "delay_wgrad",
    "overlap",
    "overlap_gather",
    "asynchronous",
)
_PARTS_RECOMPUTED: Final = 0.5  # of a block's activations, about, where parts of blocks are recomputed
_PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16")
_HALF_A_BLOCK: Final = 0.5  # what a stage of no blocks counts as, which has embeddings or a head


def surroundings(query: Query) -> dict[str, float]:
    """Name → number, the same names in the same order for every query."""
    precision = precision_of(query)
    return _settings(query) | _precision(precision) | _plan(query.plan) | _cluster(query.cluster, precision)


def precision_of(query: Query) -> Precision | None:
    """The graph's, or what the source says; None: nobody does."""
    if query.graph is not None:
        return query.graph.precision
    return Precision.parse(query.settings["precision"]) if query.settings.get("precision") else None


def micro_steps(query: Query) -> int:
    """That a replica goes through before it updates."""
    own = query.graph.grad_accumulation if query.graph is not None else 1
    return query.plan.grad_accumulation or own


def same_but_for_scale(plan: Plan) -> Plan:
    """The plan without how many replicas there are, and how often each goes through its batch: what a law of scale is for.

    One process for all devices, or one each: on one device they are the same run, so they are one series.
    """
    return replace(plan, dp=plan.ep, hybrid_shard=None, grad_accumulation=None, data_parallel="ddp")


def _settings(query: Query) -> dict[str, float]:
    replica = query.batch / query.plan.dp
    steps = float(query.settings.get("steps", 1))
    amounts = {"batch": query.batch, "batch of a replica": replica, "micro-batch": replica / micro_steps(query),
               "micro-steps": micro_steps(query), "fraction": query.fraction, "steps": steps}  # fmt: skip
    training = query.graph is not None and query.graph.training
    return _logs(amounts) | {"training": float(training)}


def _precision(precision: Precision | None) -> dict[str, float]:
    mixed, wanted = (precision.is_autocast, precision.wanted()) if precision else (False, None)
    return {"mixed": float(mixed)} | {f"in {name}": float(wanted == name) for name in _PRECISIONS}


def _plan(plan: Plan) -> dict[str, float]:
    given, stages = Recomputing.parse(plan.checkpointing), [float(blocks) for blocks in plan.stages or (1,)]
    return {
        **_logs({name: float(getattr(plan, name)) for name in _DEGREES}),
        **{name: float(getattr(plan, name)) for name in _FLAGS},
        **{f"schedule {name}": float(plan.pp > 1 and plan.schedule == name) for name in get_args(Schedule)},
        "zero": float(plan.zero),
        "sharded among": _log(float(plan.hybrid_shard or plan.dp * plan.cp) if plan.zero else 1.0),
        "sharded as DeepSpeed": (plan.live_parameters or 1e9) / 1e9 if plan.sharding == "deepspeed" else 0.0,
        "uneven stages": _log(max(stages) / max(min(stages), _HALF_A_BLOCK)),
        "recomputed": {"none": 0.0, "blocks": given.share}.get(given.kind, _PARTS_RECOMPUTED),
        "experts whole": float(plan.tp > 1 and plan.etp == 1),
        "rows sent once": float(plan.dispatch != "all-to-all"),
        "rows sent in 8 bits": float(plan.dispatch == "deepep-fp8"),
        "servers": float(plan.servers),
        "one process": float(plan.data_parallel == "dp" and plan.dp > 1),
        "bucket": _log(plan.bucket_bytes or DDP_BUCKET_BYTES) if plan.dp > 1 else 0.0,
        "offloaded": ("none", "optimizer", "parameters").index(plan.offload) / 2,
        "offloaded to disk": float(plan.offload != "none" and plan.offload_to == "nvme"),
    }


def _cluster(cluster: Cluster, precision: Precision | None) -> dict[str, float]:
    """What the nodes have, the least of each where they differ: the others wait."""
    nodes = tuple({id(node): node for node in cluster.nodes}.values())  # equal ones are one object
    devices, most = [node.device for node in nodes], max(node.count for node in nodes)
    wanted = precision.wanted() if precision else "fp32"
    amounts = {
        "devices": float(cluster.devices),
        "nodes": float(len(cluster.nodes)),
        "devices of a node": float(most),
        "cores": min(node.host.cores for node in nodes),
        "peak": min(device.peak(wanted) for device in devices),
        "peak in fp32": min(device.peak("fp32") for device in devices),
        "bandwidth": min(device.bandwidth for device in devices),
        "memory": min(device.memory_bytes for device in devices),
        "compute units": min(device.compute_units for device in devices),
        "clock": min(device.clock_hz for device in devices),
        "inside": min(node.inside.bandwidth for node in nodes) if most > 1 else 0.0,
        "between": cluster.between_bandwidth or 0.0,
        "host's op": min(node.host.op_seconds for node in nodes),
        "latency": cluster.between.latency if cluster.between is not None else nodes[0].inside.latency if most > 1 else 0.0,
    }  # fmt: skip
    return _logs(amounts)


def _logs(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: _log(amount) for name, amount in amounts.items()}


def _log(amount: float) -> float:
    return math.log2(amount) if amount > 0 else 0.0
