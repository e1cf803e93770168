"""What collectives of tensor parallelism keep from being used again, under software that ran them on streams of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.forecasting.retained_memory import retained_memory, streams_hold
from foretell.graph.facts import StepFacts
from foretell.parallel import parallelize
from foretell.program import Role

from ..parallel.models import graph


def role(plan: str) -> Role:
    return parallelize(graph("llama"), foretell.Plan.parse(plan)).roles[0]


@pytest.mark.parametrize(
    ("software", "trainer", "holds"),
    [
        (None, "megatron", False),
        ("torch-2.3", "megatron", True),
        ("torch-2.8", "megatron", False),
        ("2022-03", "megatron-deepspeed", True),
        ("torch-2.3", "nemo", False),
        ("torch-2.3", "torchtitan", False),
        ("torch-2.3", None, True),
    ],
)
def test_streams_hold_memory_under_older_software_but_for_who_turned_it_off(
    software: str | None, trainer: str | None, holds: bool
) -> None:
    assert streams_hold(foretell.Conditions(software=software, trainer=trainer), StepFacts()) is holds


def test_sums_of_ranks_are_held_until_the_host_has_caught_up() -> None:
    assert retained_memory(role("dp=2")) == ()
    two = role("dp=1,tp=2")
    retained = retained_memory(two)
    assert retained
    ops = two.graph.ops
    turn = next(i for i, op in enumerate(ops) if op.phase == "backward")
    update = next(i for i, op in enumerate(ops) if op.phase == "optimizer")
    for each in retained:
        assert each.released < each.until
        assert each.until <= (turn if each.released < turn else update)  # a loss is read there, or the step ends
    assert [each.released for each in retained] == sorted(each.released for each in retained)


def test_it_is_reserved_and_not_allocated() -> None:
    step = graph("llama")
    now, then = (
        foretell.forecast(step, "2xa100-80g-sxm", "dp=1,tp=2", conditions=foretell.Conditions(software=software)).memory
        for software in ("torch-2.9", "torch-2.3")
    )
    assert then.allocated == now.allocated
    assert then.reserved >= now.reserved
    full = replace(foretell.Conditions(), software="torch-2.3", trainer="nemo")
    assert foretell.forecast(step, "2xa100-80g-sxm", "dp=1,tp=2", conditions=full).memory.reserved == now.reserved
