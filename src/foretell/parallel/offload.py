"""What the host keeps: optimizer state and its update, or the parameters too, as DeepSpeed's ZeRO-Offload and FSDP do it.

Gradients leave the device as they become ready, in buckets; the host updates its fp32 state; updated parameters come back
before the next step. Parameters that the host keeps are fetched block by block wherever FSDP would gather them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from foretell.errors import PlanError
from foretell.graph import Graph, Signature, Storage
from foretell.parallel.parameters import Parameter, parameters
from foretell.parallel.rewrite import NOTHING, first_of, last_of, with_storages
from foretell.plans import Plan
from foretell.program import Collective, Group, Role
from foretell.units import MIB, Bytes

_BUCKET = 64 * MIB  # of gradients on their way to the host
_TO_HOST, _FROM_HOST = "host", "from host"  # lanes: a link carries both ways at once
_UPDATE = "foretell.host_update.default"


def check_offload(plan: Plan) -> None:
    if plan.offload == "none" and plan.offload_to != "cpu":
        raise PlanError(
            f"offload_to={plan.offload_to} says where, but offload=none keeps nothing there. Set offload=optimizer."
        )
    if plan.offload == "parameters" and plan.zero != 3:
        raise PlanError(
            f"offload=parameters fetches parameters block by block, which zero=3 does, got zero={plan.zero}. Set zero=3, or "
            "offload=optimizer."
        )
    if plan.offload != "none" and (plan.servers or plan.data_parallel == "dp"):
        raise PlanError(
            f"offload={plan.offload} goes with ddp and zero, not with parameter servers or data_parallel=dp."
        )


def offloaded(role: Role, plan: Plan, before: Role, ways: int) -> Role:
    """The role with what the host keeps left out; `before` is the role before its state was shared among `ways` ranks."""
    if plan.offload == "none" or not role.graph.training:
        return role
    known = parameters(before.graph)
    trained = [p for p in known if p.gradient is not None]
    numbers = sum(-(-p.layout.numel // ways) for p in trained)
    own: Bytes = sum(-(-p.layout.nbytes // ways) for p in trained)
    graph = _updated_on_host(role.graph)
    if plan.zero >= 2:
        graph = _without_gradients(graph)
    moves = [*_gradients_out(before.graph, plan, ways), _update(graph, numbers, plan)]
    collectives = role.collectives
    if plan.offload == "parameters":
        graph = _without_parameters(graph, known)
        collectives = tuple(_fetched(role.collectives, plan))
    else:
        end = len(graph.ops)
        moves.append(_move("from-host", own, "updated parameters from the host", end - 1, end, lane=_TO_HOST))
    return replace(role, graph=graph, collectives=(*collectives, *moves))


def _updated_on_host(graph: Graph) -> Graph:
    """The update's ops take no time on the device, and what they keep no memory there."""
    update = first_of(graph, "optimizer")
    ops = list(graph.ops)
    made: dict[Signature, Signature] = {}
    for position, op in enumerate(ops[update:], start=update):
        s = op.signature
        if s not in made:
            made[s] = Signature(_UPDATE, s.inputs, s.outputs, (), s.mutates or tuple(range(len(s.inputs)))[:1])
        ops[position] = replace(op, signature=made[s])
    changed = {
        i: NOTHING if s.role == "optimizer" else replace(s, nbytes=0)
        for i, s in enumerate(graph.storages)
        if s.role == "optimizer" or s.born >= update
    }
    return with_storages(replace(graph, ops=tuple(ops)), changed)


def _backward_passes(graph: Graph) -> Iterator[dict[int, int]]:
    """For each recorded micro-step: storage of a gradient → the op that writes it last."""
    ready: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "backward":
            for t in op.outputs or [op.inputs[i] for i in op.signature.mutates]:
                storage = graph.tensors[t].storage
                if graph.storages[storage].role == "gradient":
                    ready[storage] = position
        elif ready:
            yield ready
            ready = {}
    if ready:
        yield ready


def _without_gradients(graph: Graph) -> Graph:
    """Each leaves the device when it is ready, and adds up on the host; parts that ranks keep are the host's too."""
    first = next(_backward_passes(graph), {})
    touched = {graph.tensors[t].storage for op in graph.ops for t in (*op.inputs, *op.outputs)}
    changed: dict[int, Storage] = {}
    for i, s in enumerate(graph.storages):
        if s.role == "gradient" and s.born >= 0:
            if i not in touched:
                changed[i] = replace(s, nbytes=0)
            elif i in first:
                changed[i] = replace(s, freed=min(s.freed, max(first[i], s.born)))
    return with_storages(graph, changed)


def _without_parameters(graph: Graph, known: Sequence[Parameter]) -> Graph:
    kept = {p.storage for p in known}
    return with_storages(graph, {i: replace(graph.storages[i], nbytes=0) for i in kept})


def _gradients_out(graph: Graph, plan: Plan, ways: int) -> Iterator[Collective]:
    """In buckets as they become ready where each rank keeps a part alone; else once, when all are reduced."""
    update = first_of(graph, "optimizer")
    if plan.zero < 2:
        total = sum(s.nbytes for s in graph.storages if s.role == "gradient")
        yield _move(
            "to-host", -(-total // ways), "gradients to the host", last_of(graph, "backward"), update, lane=_TO_HOST
        )
        return
    for ready in _backward_passes(graph):
        filled = 0
        for number, (position, nbytes) in enumerate(
            sorted((at, graph.storages[i].nbytes) for i, at in ready.items()), 1
        ):
            filled += -(-nbytes // ways)
            if filled >= _BUCKET or number == len(ready):
                name = "gradients to the host"
                yield replace(_move("to-host", filled, name, position, update, lane=_TO_HOST), every_micro_step=True)
                filled = 0


def _update(graph: Graph, numbers: int, plan: Plan) -> Collective:
    end = len(graph.ops)
    kind = "host-update" if plan.offload_to == "cpu" else "nvme-update"
    return _move(kind, numbers, "update on the host", last_of(graph, "backward"), end, lane=_TO_HOST)


def _fetched(collectives: Sequence[Collective], plan: Plan) -> Iterator[Collective]:
    """Every gather is preceded by fetching the rank's part; a rank alone fetches the whole, and reduces nothing."""
    kind = "from-host" if plan.offload_to == "cpu" else "from-nvme"
    for c in collectives:
        if c.kind == "all-gather" and c.lane == "dp":
            part = -(-c.nbytes // c.group.size)
            name = c.name.replace("all-gather", "fetch")
            yield replace(c, kind=kind, nbytes=part, group=Group(size=1), name=name, lane=_FROM_HOST)
        if c.group.size > 1:
            yield c


def _move(kind: str, nbytes: Bytes, name: str, after: int, wanted: int, *, lane: str) -> Collective:
    return Collective(
        kind=kind, nbytes=nbytes, group=Group(size=1), name=name, starts_after=after, waited_for_by=wanted, lane=lane
    )
