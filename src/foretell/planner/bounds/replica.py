"""One replica of a step, priced alone on the few devices that share it; and bounds on others that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from foretell.cost.flops import total_flops
from foretell.cost.model import CostModel
from foretell.errors import InputError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.memory import transient_at_peak
from foretell.forecasting.run import time_alike
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.parallel import parallelize
from foretell.parallel.balance import balanced
from foretell.parallel.blocks import BlockOf, blocks
from foretell.parallel.parameters import parameters
from foretell.parallel.rewrite import last_of
from foretell.parallel.state import ModelState
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.profile import Profile
from foretell.recomputing import Recomputing
from foretell.simulate.step import simulate
from foretell.units import Bytes, Flops, Seconds

_LINE: Final = 0.95  # of a step that is continued from two batches
_RECOMPUTED: Final = 0.75  # of a block's forward pass, at least: recomputing ends where the last thing needed is made


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """A step's work and bytes as it was captured, for bounds that need no prices."""

    flops: Flops  # of a micro-step
    state: ModelState
    precision: Precision


def totals_of(graph: Graph) -> StepTotals:
    return StepTotals(
        flops=total_flops(graph) / graph.grad_accumulation,
        state=_state_of(graph),
        precision=graph.precision,
    )


def totals_at(known: Sequence[tuple[int, StepTotals]], batch: int) -> StepTotals:
    """Totals at a batch, from those of one or two: work grows with the batch, the model's state does not."""
    (first, small), (last, large) = known[0], known[-1]
    if batch in (first, last):
        return small if batch == first else large
    more = (large.flops - small.flops) / (last - first)
    return replace(small, flops=max(_LINE * (small.flops + more * (batch - first)), 0.0))


def _scaled_copies(graph: Graph) -> Bytes:
    """Of weights, for 8-bit products: each rank makes them of what it has, so they are not gathered."""
    writes = [op for op in graph.ops if op.signature.name == "foretell.fp8_cast"]
    made = {graph.tensors[t].storage for op in writes for t in op.outputs}
    return sum(graph.storages[number].nbytes for number in made if graph.storages[number].role == "parameter")


def _state_of(graph: Graph) -> ModelState:
    return ModelState(
        parameters=graph.bytes_of("parameter") - _scaled_copies(graph),
        gradients=graph.bytes_of("gradient"),
        optimizer=graph.bytes_of("optimizer"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One micro-step of one replica on a rank of those that share it, and what it keeps; `why` it cannot be, if so."""

    units: tuple[Seconds, ...] = ()  # forward and backward: before the repeated blocks, of each of them, and after
    host: Seconds = 0.0  # that it takes to issue them
    blocks_forward: Seconds = 0.0  # the part of it that checkpointing of all blocks would repeat
    update: Seconds = 0.0
    state: ModelState = field(default_factory=ModelState)
    in_blocks: Bytes = 0  # of the parameters: what FSDP gathers twice
    activations: Bytes = 0  # kept for the backward pass
    temporaries: Bytes = 0  # at the peak, with everything in one stage
    why: str = ""

    @property
    def micro(self) -> Seconds:
        return sum(self.units)


def price_replica(
    graph: Graph, cluster: Cluster, plan: Plan, model: CostModel, conditions: Conditions, profile: Profile | None
) -> Replica:
    """Price a replica with a plan's tensor and context parallelism and checkpointing, and nothing else of it."""
    alone = Plan(
        tp=plan.tp,
        cp=plan.cp,
        ulysses=plan.ulysses,
        cp_gather=plan.cp_gather,
        sequence_parallel=plan.sequence_parallel,
        overlap_tp=plan.overlap_tp,
        checkpointing=plan.checkpointing,
        grad_accumulation=1,
    )
    try:
        step = time_alike(parallelize(graph, alone), first_devices(cluster, alone.devices), model, conditions, profile)
    except InputError as error:
        return Replica(why=str(error))
    role, durations = step.role, step.durations
    units, forward, update = _by_block(role.graph, durations.device.tolist())
    ahead = simulate(role, replace(durations, host=0.0 * durations.host), draw=False).period
    scale = max(ahead - update, 0.0) / (sum(units) or 1.0)  # communication is spread evenly
    issuing = sum(s for op, s in zip(role.graph.ops, durations.host, strict=True) if op.phase != "optimizer")
    inside = BlockOf(blocks(role.graph))
    turn = last_of(role.graph, "forward")
    alive = [s for s in role.graph.storages if s.role == "activation" and s.born <= turn < s.freed]
    return Replica(
        units=tuple(seconds * scale for seconds in units),
        host=issuing,
        blocks_forward=forward,
        update=update,
        state=_state_of(role.graph),
        in_blocks=sum(p.layout.nbytes for p in parameters(role.graph) if inside[p.module]),
        activations=sum(s.nbytes for s in alive),
        temporaries=transient_at_peak(role.graph, cluster.nodes[0].device),
    )


def _by_block(graph: Graph, device: Sequence[Seconds]) -> tuple[list[Seconds], Seconds, Seconds]:
    """Seconds before the repeated blocks, of each and after them, of their forward passes together, and of the update."""
    number = {path: i for i, path in enumerate(blocks(graph), start=1)}
    inside = BlockOf(number)
    units, forward, update = [0.0] * (len(number) + 2), 0.0, 0.0
    seen: set[str] = set()
    for op, seconds in zip(graph.ops, device, strict=True):
        if op.phase == "optimizer":
            update += seconds
            continue
        block = inside[op.module]
        if block:
            seen.add(op.phase)
            units[number[block]] += seconds
            forward += seconds if op.phase == "forward" else 0.0
        else:
            units[0 if (op.phase == "forward") != (op.phase in seen) else -1] += seconds
    return units, forward, update


def first_devices(cluster: Cluster, devices: int) -> Cluster:
    """The first devices of a cluster."""
    nodes, left = [], devices
    for node in cluster.nodes:
        nodes.append(node if node.count <= left else replace(node, count=left))
        left -= nodes[-1].count
        if not left:
            break
    return replace(cluster, nodes=tuple(nodes), name="")


def at_batch(sizes: tuple[int, int], known: tuple[Replica, Replica], to: int) -> Replica:
    """A bound at another batch, along the line through two; kernels of a larger batch may be somewhat more efficient."""
    small, large = known
    along = (to - sizes[0]) / (sizes[1] - sizes[0])

    def on_line(a: float, b: float) -> float:
        return max(a + (b - a) * along, 0.0)

    return replace(
        small,
        units=tuple(_LINE * on_line(a, b) for a, b in zip(small.units, large.units, strict=True)),
        host=_LINE * min(small.host, large.host),
        blocks_forward=on_line(small.blocks_forward, large.blocks_forward),
        activations=round(on_line(small.activations, large.activations)),
        temporaries=round(on_line(small.temporaries, large.temporaries)),
    )


def recomputing(replica: Replica, plan: Plan) -> Replica:
    """A bound for a plan that recomputes, from its replica that does not: it keeps nothing, and repeats what it must."""
    share = Recomputing.parse(plan.checkpointing).least_share
    if replica.why:
        return replica
    before, *own, after = replica.units
    more = _RECOMPUTED * share * replica.blocks_forward / max(len(own), 1)
    return replace(replica, units=(before, *(x + more for x in own), after), activations=0, temporaries=0)


@lru_cache(4096)
def stages_of(units: tuple[Seconds, ...], stages: int) -> tuple[int, ...]:
    """The stage of what comes before the blocks, of each block and of what follows, as a pipeline is balanced."""
    return tuple(balanced(units, stages)) if stages > 1 else (0,) * len(units)
