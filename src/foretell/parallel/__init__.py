"""Parallel plans: Graph + Plan → Program, one pure pass per strategy."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, replace

from foretell.errors import NotModelled, PlanError
from foretell.graph import Caveat, Graph
from foretell.parallel.accumulate import MARKED, accumulate, repeated, steady_micro_step
from foretell.parallel.checkpoint import checkpointed, chosen_units
from foretell.parallel.context import check_context, context_parallel, exchanged
from foretell.parallel.data import data_parallel
from foretell.parallel.expert import check_overlap, expert_parallel, replicas_of_experts
from foretell.parallel.fp8 import Places, in_fp8
from foretell.parallel.fp8_layers import layers_in_fp8
from foretell.parallel.fsdp import sharded_data_parallel
from foretell.parallel.input_gradients import summed_in_products
from foretell.parallel.offload import check_offload, offloaded
from foretell.parallel.parameter_servers import parameter_servers
from foretell.parallel.pipeline import Weigh, bytes_touched, pipelined
from foretell.parallel.recompute import Unit
from foretell.parallel.single_process import single_process
from foretell.parallel.tensor import tensor_parallel
from foretell.parallel.zero1 import ShardGroups, check_sharding
from foretell.plans import Plan
from foretell.program import Group, Program, Role
from foretell.recomputing import Recomputing

Units = tuple[Unit, ...] | None  # that were chosen by what ops cost
_MODELLED = (
    "dp", "tp", "pp", "sequence_parallel", "overlap_tp", "bucket_bytes", "overlap", "overlap_gather", "zero", "hybrid_shard",
    "grad_accumulation", "schedule", "virtual_stages", "stages", "checkpointing", "cp", "ulysses", "cp_gather", "ep", "etp",
    "dispatch", "overlap_ep", "delay_wgrad",
    "servers", "asynchronous", "data_parallel", "sharding", "offload", "offload_to", "live_parameters",
)  # fmt: skip


def parallelize(graph: Graph, plan: Plan, weigh: Weigh = bytes_touched) -> Program:
    """Place a step on ranks. A setting that is not modelled is refused, never ignored.

    Args:
        graph: The captured step.
        plan: How it is parallelized.
        weigh: What each op of a graph costs, for cutting a pipeline where it balances.

    Returns:
        The program: a role for each kind of rank, with its ops and collectives.

    Raises:
        InputError: The step cannot be placed so.

    Examples:
        >>> graph = foretell.capture_graph("torchvision/resnet18")
        >>> foretell.parallelize(graph, foretell.Plan(dp=8)).roles[0].count
        8
    """
    _check(plan)
    _check_compiled(graph, plan)
    micro_steps = plan.grad_accumulation or graph.grad_accumulation
    if not graph.training:
        plan = replace(plan, overlap_ep=False, delay_wgrad=False)  # there is no backward pass
        micro_steps = 1 if plan.pp == 1 else micro_steps
    units = chosen_units(_cut(graph, plan, micro_steps), plan, weigh)
    if not plan.takes_turns:
        return graph.remember(("program", plan, units), lambda: _without_stages(graph, plan, micro_steps, units))
    role = _replica(graph, plan, micro_steps, units)
    whole = _whole(graph, role, plan)
    roles, pipeline = pipelined(role, plan, micro_steps, weigh, lambda part: _finished(part, graph, plan))
    return Program(roles=roles, ranks=plan.devices, whole=whole, micro_steps=micro_steps, pipeline=pipeline)


def cuts_of_compiled(graph: Graph, plan: Plan) -> list[str]:
    """What of a plan would have kernels fused that are not among this graph's."""
    if not graph.is_compiled:
        return []
    cuts = [f"{name}={getattr(plan, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1]
    parts = Recomputing.parse(plan.checkpointing).modules - {"core_attn"}
    return cuts + [f"checkpointing={plan.checkpointing}"] * bool(parts)


def _check_compiled(graph: Graph, plan: Plan) -> None:
    """Fused kernels are those of a whole step or of its blocks: what cuts them would be compiled otherwise."""
    if cuts := cuts_of_compiled(graph, plan):
        raise NotModelled(
            f"plan {plan} asks for {', '.join(cuts)} of a compiled step, whose kernels are fused for one device. "
            "Replicate it or shard it by its blocks (dp, zero), recompute whole blocks or what is cheap in them, or ask for "
            "the eager step: compile=False, or TORCH_COMPILE_DISABLE=1 in the environment where the code calls torch.compile."
        )


def _by_blocks(graph: Graph, plan: Plan) -> tuple[Caveat, ...]:
    """Blocks that are gathered, or run again, one by one are compiled one by one."""
    settings = {"zero=3": plan.zero == 3, f"checkpointing={plan.checkpointing}": plan.checkpointing != "none"}
    if not graph.is_compiled or not any(settings.values()):
        return ()
    named = ", ".join(name for name, is_there in settings.items() if is_there)
    text = (
        f"{named} of a compiled step runs its blocks one by one: kernels that are fused across blocks, or what is run again "
        "with what reads it, would be others."
    )
    return (Caveat("compiled-by-blocks", text),)


def _without_stages(graph: Graph, plan: Plan, micro_steps: int, units: Units) -> Program:
    role = _replica(graph, plan, micro_steps, units)
    whole = _whole(graph, role, plan)
    finished, _ = _finished(role, graph, plan)
    return Program(roles=(finished,), ranks=plan.devices, whole=whole, micro_steps=micro_steps)


def _finished(role: Role, whole: Graph, plan: Plan) -> tuple[Role, Places | None]:
    """One replica's role with its replicas, and where its ops went if their products are in 8 bits."""
    role = _replicated(role, plan)
    if whole.precision.fp8 is None:
        return role, None
    return in_fp8(role, whole.remember("layers in fp8", lambda: layers_in_fp8(whole)), plan)


def _whole(graph: Graph, role: Role, plan: Plan) -> Graph:
    caveats = (*role.graph.caveats, *_by_blocks(graph, plan))
    return graph if caveats == graph.caveats else replace(graph, caveats=caveats)


def _check(plan: Plan) -> None:
    ahead = [f.name for f in fields(plan) if f.name not in _MODELLED and getattr(plan, f.name) != f.default]
    if ahead:
        raise NotModelled(
            f"plan {plan} asks for {', '.join(ahead)}, which this version does not model yet. "
            f"Settings that work: {', '.join(_MODELLED)}."
        )
    check_offload(plan)
    check_context(plan)
    if plan.asynchronous and not plan.servers:
        raise PlanError("asynchronous=true needs parameter servers, got servers=0. Set servers=1 or more.")
    if plan.servers and plan.dp == 1:
        raise PlanError(
            f"servers={plan.servers} keep the parameters that several workers share, but dp=1 is one worker. "
            "Set dp=2 or more, or leave servers out."
        )
    if plan.hybrid_shard is not None and plan.zero == 0:
        raise PlanError(
            f"hybrid_shard={plan.hybrid_shard} says among how many ranks a copy is split, but zero=0 splits nothing. "
            "Set zero=3 (or 1, 2), or leave hybrid_shard out."
        )
    if plan.sharding != "torch" and plan.zero == 0:
        raise PlanError(
            f"sharding={plan.sharding} says whose way a step is sharded, but zero=0 shards nothing. "
            "Set zero=1, 2 or 3, or leave sharding out."
        )
    check_sharding(plan)
    if plan.overlap_tp and plan.tp == 1:
        raise PlanError(
            "overlap_tp=true lets what tensor-parallel ranks communicate run beside their products, but tp=1 has none. "
            "Set tp=2 or more, or leave overlap_tp out."
        )
    check_overlap(plan)
    if plan.overlap_gather and plan.zero != 1:
        raise PlanError(
            f"overlap_gather=true gathers the parameters that zero=1 updates while the next forward pass runs, but zero={plan.zero} "
            "gathers none, or as it needs them. Set zero=1, or leave overlap_gather out."
        )
    if plan.virtual_stages > plan.pp == 1:
        raise PlanError(
            f"virtual_stages={plan.virtual_stages} cuts the stages of a pipeline, but pp=1 is none. "
            "Set pp=2 or more, or leave virtual_stages out."
        )


def _sharing(plan: Plan) -> tuple[Hashable, ...]:
    """What decides which part of a replica each of its ranks has."""
    experts = plan.ep, plan.splits_experts, plan.dispatch
    return plan.tp, plan.sequence_parallel, plan.overlap_tp, plan.cp, plan.ulysses, plan.cp_gather, *experts


def _recorded(graph: Graph, plan: Plan, micro_steps: int) -> int:
    """Micro-steps that are recorded one by one; 0: one that is like all others."""
    recorded = 0 if plan.takes_turns else micro_steps
    return min(recorded, MARKED) if graph.grad_accumulation == 1 else recorded


def _cut(graph: Graph, plan: Plan, micro_steps: int) -> Role:
    """One replica's step on each of the ranks that share it; it is remembered for other plans and devices."""
    recorded = _recorded(graph, plan, micro_steps)

    def cut() -> Role:
        own = accumulate(graph, recorded) if recorded else steady_micro_step(graph)
        # Sequences are cut first: under sequence parallelism tensor-parallel ranks share what is left of them.
        role = context_parallel(Role(name="dp", count=plan.devices, graph=own), plan)
        role = tensor_parallel(role, plan)
        if graph.calls.has_engine:
            role = summed_in_products(role)
        return exchanged(expert_parallel(role, plan), plan)

    return graph.remember(("cut", recorded, _sharing(plan)), cut)


def _replica(graph: Graph, plan: Plan, micro_steps: int, units: Units) -> Role:
    """What each rank of a replica computes, with what it recomputes."""
    recorded, settings = _recorded(graph, plan, micro_steps), (*_sharing(plan), plan.checkpointing, units)
    role = graph.remember(
        ("replica", recorded, settings), lambda: checkpointed(_cut(graph, plan, micro_steps), plan, units)
    )
    if micro_steps > recorded > 0:
        marked = role
        role = graph.remember(
            ("replica", micro_steps, settings), lambda: replace(marked, graph=repeated(marked.graph, micro_steps))
        )
    return _among(role, plan.devices)


def _among(role: Role, devices: int) -> Role:
    """A replica's role where so many devices have it: more groups of ranks do what its own group does."""
    if role.count == devices:
        return role
    groups = {c.group: replace(c.group, count=devices // c.group.size) for c in role.collectives}
    return replace(role, count=devices, collectives=tuple(replace(c, group=groups[c.group]) for c in role.collectives))


def _replicated(role: Role, plan: Plan) -> Role:
    """One replica's role, with what it communicates with the others."""
    if plan.servers:
        return parameter_servers(role, plan)
    if plan.data_parallel == "dp":
        return single_process(role, plan)
    inner = plan.tp  # ranks between neighbours of a data-parallel group
    # Context-parallel ranks have the same parameters, and their gradients add up too; so have copies in each direction.
    replicas = plan.dp * plan.cp * plan.directions
    groups_of_stages = plan.pp // plan.directions
    if plan.zero == 0:
        averaged = data_parallel(role, plan, Group(size=replicas, stride=inner, count=inner * groups_of_stages))
        return offloaded(averaged, plan, role, ways=1)
    size = plan.hybrid_shard or replicas
    if replicas % size:
        raise PlanError(
            f"hybrid_shard={size} must divide dp × cp = {plan.dp} × {plan.cp} = {plan.dp * plan.cp}. "
            "It is how many ranks share one copy of the model: choose a divisor, usually the devices of a node."
        )
    copies = replicas // size
    if plan.ep > 1 and copies > 1:
        raise NotModelled(
            f"ep={plan.ep} with hybrid_shard={size} is not modelled: several copies of a model would share its experts in "
            "different ways. Leave out one of the two."
        )
    groups = ShardGroups(
        shard=Group(size=size, stride=inner, count=copies * inner * groups_of_stages),
        replicas=Group(size=copies, stride=inner * size, count=size * inner * groups_of_stages),
        experts=replicas_of_experts(plan),
    )
    return offloaded(sharded_data_parallel(role, plan, groups), plan, role, ways=size)
