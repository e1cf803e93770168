"""Answers that once misled: a law, and the step, precisions and device that broke it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.cost.model import load_model
from foretell.forecasting.memory import of_ranks
from foretell.hardware import device
from foretell.laws.answers import Answer, Answers, Case
from foretell.laws.scope import Scope
from foretell.laws.suite import LAWS, check
from tests.laws.steps import captured, step

pytestmark = pytest.mark.slow  # steps are captured

SEEN = [
    ("better-facts", "depthwise", "fp16", "h200"),  # trees were given facts of no device
    ("precision-order", "convolutions", "bf16 fp32", "gaudi2"),  # as small a part of the peak as on an H200
    ("halves-alike", "depthwise", "amp-bf16 amp-fp16", "mi300x"),  # kernels that torch has for NVIDIA boards alone
    ("halves-alike", "depthwise", "amp-bf16 amp-fp16", "h200"),
    ("half-without-units", "dense", "amp-bf16 amp-fp16", "gaudi"),
    ("half-without-units", "recurrent", "bf16 fp16", "titan-xp"),  # fp32 units multiply both
    ("halves-alike", "convolutions", "amp-bf16 amp-fp16", "gaudi2"),  # batch norms as torch's kernels for boards
    ("precision-without-units", "convolutions", "fp32 torch-fp32 tf32", "mi100"),
    ("precision-without-units", "convolutions", "fp32 torch-fp32 tf32", "v100-16g-sxm"),
    ("replicas", "dense", "amp-bf16", "mi250x"),  # two devices of eight have one of their links
    ("more-is-no-surer", "dense", "amp-bf16", "a100-80g-sxm"),  # copies into buckets made the host count less
    ("overlap", "depthwise", "amp-bf16", "a2"),  # a collective takes units from a pass that the next stage waits for
    ("batches", "recurrent", "fp32", "l40"),  # blocks that fit nothing at 16 sequences are used at 17
]  # fmt: skip


def _kept(law: str, kind: str, precisions: str, name: str, answers: type[Answers] = Answers) -> bool:
    steps = [replace(step(kind), precisions=tuple(precisions.split()), batches=(16, 17))]
    scope = Scope(steps=steps, devices=[device(name)], others=[device(name)])
    found = check(scope, answers(steps, load_model()), [LAWS[law]])
    assert found.laws[0].checked
    return found.kept


@pytest.mark.parametrize(("law", "kind", "precisions", "name"), SEEN)
def test_what_was_broken_is_kept(law: str, kind: str, precisions: str, name: str) -> None:
    assert _kept(law, kind, precisions, name)


class _Worse(Answers):
    """Forecasts that are far too long by a plan, or a fifth too long in a precision."""

    def again(self, case: Case, graph: foretell.Graph) -> Answer:
        answer = super().again(case, graph)
        longer = 30 if case.on.startswith("1x2x") or case.plan.endswith(",overlap=true") else 1
        slower = 1.2 if case.precision == "amp-bf16" else 1.0
        return replace(answer, step=answer.step * longer, device=answer.device * slower)


@pytest.mark.parametrize(
    ("law", "kind", "precisions", "name"),
    [
        ("replicas", "dense", "amp-bf16", "mi250x"),
        ("replicas", "dense", "amp-bf16", "t4"),
        ("overlap", "depthwise", "amp-bf16", "a2"),
        ("halves-alike", "dense", "amp-bf16 amp-fp16", "h200"),
    ],
)
def test_a_law_that_allows_for_something_allows_for_no_more(law: str, kind: str, precisions: str, name: str) -> None:
    assert not _kept(law, kind, precisions, name, _Worse)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_communication_that_is_waited_for_is_waited_for(zero: int) -> None:
    """`overlap=false` was ignored where gradients or parameters are sharded."""
    graph = captured("words", "amp-bf16", 8)
    apart, hidden = (
        foretell.forecast(graph, "8xl4", f"dp=8,zero={zero},overlap={word}").step_time.seconds
        for word in ("false", "true")
    )
    assert apart > 1.02 * hidden


def test_facts_are_of_their_maker_s_table() -> None:
    assert device("gaudi").peak("bf16") == 60e12
    assert device("gaudi2").peak("fp32") == 108e12


@pytest.mark.parametrize(
    ("on", "plan"), [("2xt4+2xl4", "dp=4,zero=2"), ("4xt4+4xa10", "dp=2,pp=4,grad_accumulation=4")]
)
def test_memory_is_of_the_rank_that_fills_its_device_most(on: str, plan: str) -> None:
    """Where devices differ a rank's total was that of its largest device, and `memory` was another's."""
    memory = foretell.forecast(captured("convolutions", "amp-bf16", 8), on, plan).memory
    fullest = max(memory.ranks, key=lambda rank: rank.total / rank.capacity)
    assert (fullest.total, fullest.capacity) == (memory.total, memory.capacity)


def test_a_rank_is_as_heavy_as_its_own_device_allows() -> None:
    """It was cut down to the capacity of the device of another rank."""
    step = foretell.forecast(captured("dense", "fp32", 8), "t4").memory
    other = replace(step.ranks[0], total=20 * 2**30, capacity=24 * 2**30)
    assert of_ranks(step, (step.ranks[0], other)).ranks[1].total == other.total
