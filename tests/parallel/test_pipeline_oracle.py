"""The interleaved order of every stage is torch's, action by action; 1f1b is its case of one chunk a stage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.distributed.pipelining.schedules import (
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from foretell.parallel.schedules import stage_actions
from foretell.plans import Plan
from foretell.program import Action


def torch_order(
    stages: int, chunks: int, micro_batches: int, schedule: type = ScheduleInterleaved1F1B
) -> list[list[str]]:
    """torch writes down the order of every rank when a schedule is made; its stages need not run for that."""
    made = [
        SimpleNamespace(
            group_size=stages, group_rank=0, num_stages=stages * chunks, stage_index=chunk * stages, is_first=chunk == 0,
            is_last=False, has_backward=True, submod=None,
            stage_index_to_group_rank={i: i % stages for i in range(stages * chunks)},
        )
        for chunk in range(chunks)
    ]  # fmt: skip
    written = schedule(made, micro_batches).pipeline_order
    return [[str(action) for action in written[rank] if action is not None] for rank in range(stages)]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(("rounds", "more"), [(1, 0), (2, 0), (4, 0), (2, 2), (1, 1), (1, -1)])
def test_interleaved_takes_torchs_turns(stages: int, chunks: int, rounds: int, more: int) -> None:
    plan, micro_batches = Plan(pp=stages, schedule="interleaved", virtual_stages=chunks), stages * rounds + more
    ours = [
        [f"{a.chunk}{a.phase[0].upper()}{a.micro_batch}" for a in actions]
        for actions in stage_actions(plan, micro_batches, training=True)
    ]
    assert ours == torch_order(stages, chunks, micro_batches)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_one_chunk_per_stage_is_one_forward_one_backward(stages: int) -> None:
    plans = [Plan(pp=stages, schedule=schedule) for schedule in ("1f1b", "interleaved")]
    first, second = (stage_actions(plan, 2 * stages, training=True) for plan in plans)
    assert first == second


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("rounds", [1, 3])
def test_zero_bubble_takes_torchs_turns(stages: int, chunks: int, rounds: int) -> None:
    plan, micro_batches = Plan(pp=stages, schedule="zero-bubble", virtual_stages=chunks), stages * rounds
    letters = {"forward": "F", "backward": "I", "weights": "W"}
    ours = [
        [f"{a.chunk}{letters[a.phase]}{a.micro_batch}" for a in actions]
        for actions in stage_actions(plan, micro_batches, training=True)
    ]
    theirs = torch_order(stages, chunks, micro_batches, ScheduleInterleavedZeroBubble)
    assert [sorted(order) for order in ours] == [sorted(order) for order in theirs]
    if rounds == 3:
        assert ours == theirs


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_zb_v_takes_torchs_turns(stages: int, rounds: int) -> None:
    plan, letters = Plan(pp=stages, schedule="zb-v"), {"forward": "F", "backward": "I", "weights": "W"}
    ours = [
        [f"{a.chunk}{letters[a.phase]}{a.micro_batch}" for a in actions]
        for actions in stage_actions(plan, stages * rounds, training=True)
    ]
    assert ours == torch_order(stages, 2, stages * rounds, ScheduleZBVZeroBubble)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_dualpipe_v_takes_torchs_turns(stages: int, more: int) -> None:
    plan, micro_batches = Plan(pp=stages, schedule="dualpipe-v"), 2 * stages + more
    ours = [written(actions) for actions in stage_actions(plan, micro_batches, training=True)]
    assert ours == torch_order(stages, 2, micro_batches, ScheduleDualPipeV)


def written(actions: tuple[Action, ...]) -> list[str]:
    """As torch writes them: a backward pass with its weights is one action, and so are two passes side by side."""
    out: list[list[str]] = []
    for action, after in zip(actions, [*actions[1:], None], strict=True):
        whole = after is not None and after.joined and after.phase == "weights"
        letter = {"forward": "F", "backward": "B" if whole else "I", "weights": "W"}[action.phase]
        if not action.joined:
            out.append([])
        if not (action.joined and action.phase == "weights"):
            out[-1].append(f"{action.chunk}{letter}{action.micro_batch}")
    return [parts[0] if len(parts) == 1 else f"({';'.join(parts)})OVERLAP_F_B" for parts in out]
