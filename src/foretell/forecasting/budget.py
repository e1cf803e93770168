"""How much a step must recompute to stay within a share of its devices' memory: as little as does."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from foretell.cost.communicators import communicator_bytes
from foretell.cost.model import CostModel
from foretell.forecasting.memory import rank_memory
from foretell.forecasting.question import Question
from foretell.parallel import parallelize
from foretell.program import Program
from foretell.recomputing import Recomputing

_STEPS: Final = 64  # between nothing and all that blocks keep


def program_of(question: Question, model: CostModel) -> Program:
    """The step on its ranks; stages, and what is recomputed, are chosen by the seconds of ops on the first device."""
    device = question.cluster.nodes[0].device
    return parallelize(question.graph, question.plan, lambda g: model.price(g, device).seconds.tolist())


def within_budget(question: Question, model: CostModel) -> Question:
    """The question with a budget replaced by what is cheapest to recompute within it.

    Where recomputing all blocks is not enough, they all are, and the verdict on memory says how much is missing.
    """
    budget = Recomputing.parse(question.plan.checkpointing)
    if budget.kind != "budget":
        return question

    def recomputing(step: int) -> Question:
        word = "none" if step == 0 else "full" if step == _STEPS else f"cheapest:{step / _STEPS:.4g}"
        return replace(question, plan=replace(question.plan, checkpointing=word))

    def fits(step: int) -> bool:
        return _is_within(recomputing(step), budget.share, model)

    if not question.graph.training or fits(0):
        return recomputing(0)
    too_little, enough = 0, _STEPS
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        too_little, enough = (too_little, middle) if fits(middle) else (middle, enough)
    return recomputing(enough)


def _is_within(question: Question, share: float, model: CostModel) -> bool:
    devices = list({id(node.device): node.device for node in question.cluster.kinds}.values())
    program, cluster = program_of(question, model), question.cluster
    hand_over = () if program.pipeline is None else program.pipeline.hand_over
    found = [
        rank_memory(role, device, communicators=communicator_bytes(role, cluster, hand_over))[1]
        for role in program.roles
        for device in devices
    ]
    return all(memory.fits and memory.total <= share * memory.capacity for memory in found)
