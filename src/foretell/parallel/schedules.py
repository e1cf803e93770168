"""Pipeline schedules (GPipe, 1F1B, interleaved, zero-bubble, V-shaped ones): in which order a stage runs its micro-batches.

gpipe: all forward, then all backward (Huang et al. 2019). 1f1b: a stage starts with as many forward passes as there are
stages behind it, then alternates (Narayanan et al. 2019). interleaved: the same with several chunks per stage (Narayanan
et al. 2021). zero-bubble: 1f1b or interleaved with gradients of weights postponed, later on later stages, to fill the end
(Qi et al. 2023). Where passes of two micro-batches run side by side (`overlap_ep`), a stage starts with one forward pass more,
as Megatron's does, so that neither of a pair waits for the other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from foretell.errors import PlanError
from foretell.parallel.v_schedules import check_micro_batches, dualpipe, dualpipe_v, zb_v
from foretell.plans import V_SHAPED, Plan
from foretell.program import Action

_FORWARD: Final = "forward"
_PASSES: Final = 10_000  # through stages: so many are timed one by one in a moment
_ROUNDS: Final = 12  # of micro-batches: more than a pipeline takes to run evenly
_CHUNKED: Final = ("interleaved", "zero-bubble")  # that take several chunks per stage
_TWO_SIDED: Final = (*V_SHAPED, "dualpipe")
_POSTPONES: Final = ("zero-bubble", *_TWO_SIDED)  # gradients of weights


def postpones(plan: Plan) -> bool:
    """Whether gradients of weights have turns of their own."""
    return plan.schedule in _POSTPONES


def stages_of_chunks(plan: Plan) -> tuple[int, ...]:
    """The stage of every chunk that a schedule's actions name."""
    row = tuple(range(plan.pp))
    return (*row, *reversed(row)) if plan.schedule in _TWO_SIDED else row * plan.virtual_stages


Order = tuple[tuple[Action, ...], ...]  # by stage


def timed_actions(plan: Plan, micro_batches: int, *, training: bool) -> tuple[Order, Order | None, int]:
    """The actions of as many micro-batches as fill a pipeline, run evenly for some rounds and drain it; of a round fewer;
    and how many rounds are left out. All micro-batches, if they are not too many."""
    size, chunks = _round(plan.pp, micro_batches), plan.pp * plan.virtual_stages
    enough = max(_ROUNDS, math.ceil(_PASSES / (chunks * size)))
    left_out = micro_batches // size - enough
    if left_out <= 1 or size != plan.pp:  # rounds are larger only where they are few
        return stage_actions(plan, micro_batches, training=training), None, 0
    timed = micro_batches - left_out * size
    longer, shorter = (stage_actions(plan, some, training=training) for some in (timed, timed - size))
    return longer, shorter, left_out


def stage_actions(plan: Plan, micro_batches: int, *, training: bool) -> Order:
    """The actions of every stage, in order."""
    if plan.schedule in _TWO_SIDED:
        check_micro_batches(plan, micro_batches)
    elif plan.schedule == "interleaved" or plan.virtual_stages > 1:
        if plan.schedule not in _CHUNKED:
            raise PlanError(
                f"virtual_stages={plan.virtual_stages} needs schedule={' or '.join(_CHUNKED)}, got {plan.schedule!r}. "
                "Set one or the other."
            )
        if micro_batches % (rounds := max(1, micro_batches // plan.pp)):
            fewer = micro_batches - micro_batches % rounds
            raise PlanError(
                f"schedule={plan.schedule} takes micro-batches in rounds of pp={plan.pp} or a few more, and "
                f"grad_accumulation={micro_batches} does not divide into {rounds} equal ones. Choose {fewer} or {fewer + rounds}."
            )
    schedule = _overlapped(plan) if plan.overlap_ep else _SCHEDULES[plan.schedule]
    made = (schedule(stage, plan.pp, micro_batches, plan.virtual_stages) for stage in range(plan.pp))
    return tuple(tuple(a for a in actions if training or a.phase == "forward") for actions in made)


def _overlapped(plan: Plan) -> Schedule:
    """Pairs on one stage, or on several with several chunks each: with one, half of the stages would wait all the time."""
    if plan.schedule in ("dualpipe", "dualpipe-v"):
        return _SCHEDULES[plan.schedule]  # which pair passes anyway
    if plan.pp > 1 and (plan.schedule != "interleaved" or plan.virtual_stages == 1):
        raise PlanError(
            f"overlap_ep=true runs passes of two micro-batches side by side, which with pp={plan.pp} needs schedule=interleaved and "
            f"virtual_stages=2 or more, or schedule=dualpipe or dualpipe-v, got schedule={plan.schedule} and "
            f"virtual_stages={plan.virtual_stages}. Set them, or leave overlap_ep out."
        )
    return partial(_in_rounds, apart=2, joins=True)


def _gpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    return [Action(phase, stage, m) for phase in ("forward", "backward") for m in range(micro_batches)]


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    ahead = min(stages - stage - 1, micro_batches)
    return _alternate(
        [Action("forward", stage, m) for m in range(micro_batches)],
        [Action("backward", stage, m) for m in range(micro_batches)],
        ahead,
    )


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    return _in_rounds(stage, stages, micro_batches, chunks, apart=1 if chunks == 1 else 2)


def _in_rounds(
    stage: int, stages: int, micro_batches: int, chunks: int, *, apart: int, joins: bool = False
) -> list[Action]:
    """Each chunk takes all micro-batches of a round before the next chunk does; sizes of rounds as torch has them. A stage
    starts with as many forward passes as a round of all chunks but one has, and `apart` for each stage behind it."""
    size = _round(stages, micro_batches)

    def action(phase: str, k: int) -> Action:
        turn, place = divmod(k, size * chunks)
        chunk = place // size
        if phase == "backward":
            chunk = chunks - 1 - chunk
        return Action(phase, chunk * stages + stage, turn * size + place % size)

    count = micro_batches * chunks
    ahead = min((stages - stage - 1) * apart + (chunks - 1) * size + joins, count)
    forward, backward = ([action(phase, k) for k in range(count)] for phase in ("forward", "backward"))
    return _alternate(forward, backward, ahead, joins=joins)


def _zero_bubble(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """A stage postpones gradients of weights of as many backward passes as stages come before it."""
    actions: list[Action] = []
    postponed: deque[Action] = deque()
    for action in _in_rounds(stage, stages, micro_batches, chunks, apart=1):
        actions.append(action)
        if action.phase == "backward":
            postponed.append(Action("weights", action.chunk, action.micro_batch))
        if len(postponed) > stage:
            actions.append(postponed.popleft())
    return [*actions, *postponed]


def _round(stages: int, micro_batches: int) -> int:
    return micro_batches // max(1, micro_batches // stages)


def _alternate(forward: list[Action], backward: list[Action], ahead: int, *, joins: bool = False) -> list[Action]:
    actions = forward[:ahead]
    for first, second in zip(forward[ahead:], backward, strict=False):
        actions += first, replace(second, joined=joins)
    return actions + backward[len(forward) - ahead :]


Schedule = Callable[[int, int, int, int], list[Action]]
_SCHEDULES: dict[str, Schedule] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
}


def last_end(actions: Sequence[Sequence[Action]], chunks: Sequence[float]) -> float:
    """When all is done, if each chunk takes so long and nothing is in the way; a backward pass takes twice a forward one."""
    ends: dict[tuple[str, int, int], float] = {(_FORWARD, -1, a.micro_batch): 0.0 for own in actions for a in own}
    clocks, following = [0.0] * len(actions), [0] * len(actions)
    waiting = set(range(len(actions)))
    while waiting:
        for stage in sorted(waiting):
            own = actions[stage]
            while following[stage] < len(own):
                a = own[following[stage]]
                if a.phase == "weights":  # a part of what a backward pass takes here
                    following[stage] += 1
                    continue
                if a.phase == _FORWARD:
                    needed, lasts = (_FORWARD, a.chunk - 1, a.micro_batch), 1
                elif a.chunk == len(chunks) - 1:
                    needed, lasts = (_FORWARD, a.chunk, a.micro_batch), 2
                else:
                    needed, lasts = (a.phase, a.chunk + 1, a.micro_batch), 2
                if needed not in ends:
                    break
                clocks[stage] = max(clocks[stage], ends[needed]) + lasts * chunks[a.chunk]
                ends[a.phase, a.chunk, a.micro_batch] = clocks[stage]
                following[stage] += 1
            else:
                waiting.discard(stage)
    return max(clocks)


def most_in_flight(actions: tuple[Action, ...]) -> dict[int, int]:
    """Chunk → micro-batches whose activations are allocated when the stage has most of them.

    Of two passes side by side the forward one takes, block by block, what the backward one frees.
    """
    in_flight: dict[int, int] = {}
    most: dict[int, int] = {}
    for number, action in enumerate(actions):
        if action.phase == "weights":
            continue
        in_flight[action.chunk] = in_flight.get(action.chunk, 0) + (1 if action.phase == "forward" else -1)
        pair = action.phase == "forward" and number + 1 < len(actions) and actions[number + 1].joined
        if not pair and sum(in_flight.values()) > sum(most.values()):
            most = dict(in_flight)
    return most
