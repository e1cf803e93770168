"""Pipeline schedules in which a stage has a chunk near the beginning of the model and one near its end.

zb-v: chunks go down the stages and back, and gradients of weights are postponed where the pipeline drains (Qi et al. 2023).
dualpipe: micro-batches enter at both ends, so that a stage always has a forward pass of one to run beside a backward pass of
another; each direction has a copy of the model (DeepSeek-AI 2024). dualpipe-v: the same on chunks that go down and back, with
one copy. Of dualpipe, both halves of the stages do alike, so it is dualpipe-v on half of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from foretell.errors import PlanError
from foretell.plans import Plan
from foretell.program import Action

_NEAR, _FAR = 0, 1  # a stage's chunks


def check_micro_batches(plan: Plan, micro_batches: int) -> None:
    """Whether a schedule of this kind can run so many."""
    if plan.virtual_stages != (chunks := 1 if plan.schedule == "dualpipe" else 2):
        raise PlanError(
            f"schedule={plan.schedule} has virtual_stages={chunks}, got {plan.virtual_stages}. Leave it out."
        )
    if plan.schedule == "dualpipe" and (plan.pp % 2 or micro_batches % 2):
        raise PlanError(
            f"schedule=dualpipe goes through stages from both ends, and needs an even pp and grad_accumulation, got pp={plan.pp} "
            f"and {micro_batches} micro-batches. Choose even ones."
        )
    if plan.schedule != "zb-v" and micro_batches < 2 * plan.pp:
        raise PlanError(
            f"schedule={plan.schedule} needs 2 × pp = {2 * plan.pp} micro-batches or more, got grad_accumulation={micro_batches}. "
            "Raise it, or choose schedule=zb-v."
        )


def zb_v(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """As if there were enough micro-batches to fill the pipeline; those beyond the last are left out."""
    count = max(2 * stages - 1, micro_batches)
    turns = _Turns(stage, 2 * stages - 1 - stage)
    turns.run(2 * (stages - stage) - 1, turns.forward(_NEAR))
    turns.run(stage, turns.forward(_FAR), turns.forward(_NEAR))
    turns.run(stages - stage, turns.forward(_FAR), *turns.split(_FAR))
    while turns.done["forward", _FAR] < max(turns.done["forward", _NEAR], count):
        if turns.done["forward", _NEAR] < count:
            turns.run(1, turns.forward(_NEAR))
        turns.run(1, *turns.split(_NEAR), turns.forward(_FAR), *turns.split(_FAR))
    turns.run(stage, turns.inputs(_NEAR), turns.inputs(_FAR))
    turns.run(stages - stage, turns.inputs(_NEAR), turns.weights(_NEAR))
    for chunk in (_FAR, _NEAR):
        turns.run(turns.done["backward", chunk] - turns.done["weights", chunk], turns.weights(chunk))
    return [a for a in turns.actions if a.micro_batch < micro_batches]


def dualpipe_v(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    return _dual(stage, stages, micro_batches, (stage, 2 * stages - 1 - stage), waits=stage == stages - 1)


def dualpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Both halves of the stages begin with the direction that is nearer to its entry."""
    half, mirrored = stages // 2, min(stage, stages - 1 - stage)
    own = (stage, 2 * stages - 1 - stage)
    near_first = own if stage < half else own[::-1]
    return _dual(mirrored, half, micro_batches // 2, near_first, waits=mirrored == half - 1)


def _dual(stage: int, stages: int, micro_batches: int, own: tuple[int, int], *, waits: bool) -> list[Action]:
    turns, behind = _Turns(*own), stages - stage - 1
    turns.run(2 * behind, turns.forward(_NEAR))
    turns.run(stage + 1, turns.forward(_NEAR), turns.forward(_FAR))
    turns.run(behind, turns.inputs(_FAR), turns.oldest, turns.forward(_FAR))
    for turn in range(micro_batches - 2 * stages + stage + 1):
        if turn == 0 and waits:  # where the directions meet, what arrives is still to be made
            turns.run(1, turns.forward(_NEAR), *turns.whole(_FAR))
        else:
            turns.run(1, *turns.pair(_NEAR, _FAR))
        turns.run(1, *turns.pair(_FAR, _NEAR))
    turns.run(behind, *turns.whole(_FAR), *turns.pair(_FAR, _NEAR))
    postpones = False
    for turn in range(stage + 1):
        for chunk, parity in ((_FAR, 1), (_NEAR, 0)):
            postpones |= turn == (stage + 1) // 2 and stage % 2 == parity
            turns.run(1, *((turns.inputs(chunk),) if postpones else turns.whole(chunk)))
    turns.run(behind, turns.oldest, *((turns.inputs(_NEAR),) if postpones else turns.whole(_NEAR)))
    turns.run(stage + 1, turns.oldest)
    return turns.actions


_Turn = Callable[[], Action | None]


class _Turns:
    """The actions of a stage so far; each kind takes the micro-batches of a chunk in order."""

    def __init__(self, near: int, far: int) -> None:
        self.chunks: Final = (near, far)
        self.actions: list[Action] = []
        self.done = {(phase, chunk): 0 for phase in ("forward", "backward", "weights") for chunk in (_NEAR, _FAR)}
        self.postponed: deque[int] = deque()

    def run(self, times: int, *turns: _Turn) -> None:
        for _ in range(times):
            self.actions += [action for turn in turns if (action := turn()) is not None]

    def forward(self, chunk: int) -> _Turn:
        return lambda: self._next("forward", chunk)

    def inputs(self, chunk: int) -> _Turn:
        """A backward pass whose gradients of weights come later."""

        def turn() -> Action:
            self.postponed.append(chunk)
            return self._next("backward", chunk)

        return turn

    def weights(self, chunk: int) -> _Turn:
        return lambda: self._next("weights", chunk)

    def oldest(self) -> Action | None:
        """Of the postponed."""
        return self._next("weights", self.postponed.popleft()) if self.postponed else None

    def split(self, chunk: int) -> Sequence[_Turn]:
        return (lambda: self._next("backward", chunk)), self.weights(chunk)

    def whole(self, chunk: int) -> Sequence[_Turn]:
        return (lambda: self._next("backward", chunk)), self._joined(self.weights(chunk))

    def pair(self, forward: int, backward: int) -> Sequence[_Turn]:
        first, second = self.whole(backward)
        return self.forward(forward), self._joined(first), second

    def _joined(self, turn: _Turn) -> _Turn:
        def joined() -> Action | None:
            action = turn()
            return action and replace(action, joined=True)

        return joined

    def _next(self, phase: str, chunk: int) -> Action:
        number = self.done[phase, chunk]
        self.done[phase, chunk] += 1
        return Action(phase, self.chunks[chunk], number)
