"""Pipeline parallelism: a replica's step cut into stages, each a role of its own that takes turns by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from foretell.graph import Graph
from foretell.parallel.fp8 import Places
from foretell.parallel.rewrite import first_of, last_of
from foretell.parallel.schedules import most_in_flight, timed_actions
from foretell.parallel.sharding.propagate import EXPERTS_LANE
from foretell.parallel.stages import Ranges, Stages
from foretell.plans import Plan
from foretell.program import Action, Collective, Group, Pipeline, Role
from foretell.units import Bytes

Weigh = Callable[[Graph], Sequence[float]]


def bytes_touched(graph: Graph) -> list[float]:
    """What an op weighs where nothing better is known."""
    return [float(sum(x.nbytes for x in (*op.signature.inputs, *op.signature.outputs))) for op in graph.ops]


def pipelined(
    role: Role, plan: Plan, micro_batches: int, weigh: Weigh, finish: Callable[[Role], tuple[Role, Places | None]]
) -> tuple[tuple[Role, ...], Pipeline]:
    """Cut a role into stages; `finish` adds what each stage communicates with its replicas, and says where ops went."""
    actions, shorter, left_out = timed_actions(plan, micro_batches, training=role.graph.training)
    stages = Stages(role.graph, plan, weigh(role.graph), micro_batches // plan.directions)
    count = plan.devices // plan.pp
    roles, ranges, delayed = [], [], []
    for stage in range(plan.pp):
        graph, where, places = stages.stage(stage)
        own = tuple(_moved(c, places, len(graph.ops)) for c in role.collectives if c.starts_after in places)
        own += tuple(_tied(stages, stage, graph, count))
        part, moved = finish(replace(role, name=f"stage {stage}", count=count, graph=graph, collectives=own))
        later = (places[p] for p in (stages.weights if plan.delay_wgrad else ()) if p in places)
        delayed.append(frozenset(later if moved is None else (moved[at + 1] - 1 for at in later)))
        if moved is not None:
            where = {key: (moved[first], moved[end]) for key, (first, end) in where.items()}
        waiting = _activations_in_flight(part.graph, where, actions[stage], micro_batches)
        roles.append(part.with_persistent("activation", waiting))
        ranges.append(where)
    send = Collective(
        kind="send-recv",
        nbytes=0,
        group=Group(size=2, stride=count, count=count),
        name="",
        starts_after=-1,
        waited_for_by=0,
        lane="pp",
        every_micro_step=True,
    )
    return tuple(roles), Pipeline(
        micro_batches=micro_batches,
        stage_of=stages.stage_of,
        directions=plan.directions,
        hides=EXPERTS_LANE if any(a.joined for own in actions for a in own) or plan.delay_wgrad else None,
        delayed=tuple(delayed) if plan.delay_wgrad and not stages.postponed else (),
        actions=actions,
        shorter=shorter,
        rounds_left_out=left_out,
        ranges=tuple(ranges),
        hand_over=tuple(
            replace(
                send, nbytes=nbytes, name=f"send to chunk {chunk + 1}", group=send.group if nbytes else Group(size=1)
            )
            for chunk, nbytes in enumerate(_between_stages(stages))
        ),
    )


def _between_stages(stages: Stages) -> Iterator[Bytes]:
    """What each chunk sends to the next; nothing where both lie on one stage."""
    for nbytes, (one, other) in zip(stages.crossings(), pairwise(stages.stage_of), strict=True):
        yield nbytes if one != other else 0


def _tied(stages: Stages, stage: int, graph: Graph, count: int) -> Iterator[Collective]:
    """Each stage that uses a tied parameter has a copy of it; what they add up are its gradients."""
    for gradient, homes in stages.tied(stage):
        yield Collective(
            kind="all-reduce",
            nbytes=graph.storages[gradient].nbytes,
            group=Group(
                size=len(homes), stride=count * (homes[1] - homes[0] if homes[1] > homes[0] else 1), count=count
            ),
            name="all-reduce of a tied parameter",
            starts_after=last_of(graph, "backward"),
            waited_for_by=first_of(graph, "optimizer"),
            lane="tied",
        )


def _moved(collective: Collective, places: Mapping[int, int], end: int) -> Collective:
    """A collective of the whole step, at its place among the stage's ops; what it waits for may lie on the next stage."""
    starts = places[collective.starts_after]
    waited = places.get(collective.waited_for_by, starts + 1)
    return replace(collective, starts_after=starts, waited_for_by=min(max(waited, starts + 1), end))


def _activations_in_flight(graph: Graph, ranges: Ranges, actions: tuple[Action, ...], micro_batches: int) -> Bytes:
    """Activations of micro-batches between their passes, beside those of the one that is in the stage's graph."""
    forward = {chunk: where for (phase, chunk), where in ranges.items() if phase == "forward"}
    lives = [(s.born, s.freed, s.nbytes) for s in graph.storages if s.role == "activation"]
    # What a chunk hands over torch keeps until its backward pass; Megatron is rid of it once it is sent.
    until = {chunk: last if graph.calls.has_engine else 0 for chunk, (_, last) in forward.items()}
    kept = {
        chunk: sum(n for born, freed, n in lives if first <= born < last and freed >= until[chunk])
        for chunk, (first, last) in forward.items()
    }
    timed = 1 + max(a.micro_batch for a in actions)
    many = {chunk: micro_batches if count == timed else count for chunk, count in most_in_flight(actions).items()}
    in_flight = sum(kept[chunk] * count for chunk, count in many.items())
    return max(in_flight - sum(kept.values()), 0)
