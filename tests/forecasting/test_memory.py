"""The verdict on memory: one rule for whether a step fits and for how probable that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell.forecasting.memory import adjusted, of_ranks, rank_memory
from foretell.hardware import device
from foretell.parallel import parallelize
from foretell.plans import Plan
from foretell.profile import MemoryFactors

from ..parallel.models import graph


@pytest.mark.parametrize("plan", ["dp=1", "dp=2", "pp=2,grad_accumulation=4", "dp=2,zero=3"])
def test_verdict_and_probability_agree_at_every_capacity(plan: str) -> None:
    h100 = device("h100-sxm")
    verdicts = set[tuple[bool, bool]]()
    for role in parallelize(graph("llama"), Plan.parse(plan)).roles:
        free = rank_memory(role, h100)[1]
        least = free.allocated + free.context + free.communicator
        steps = [least + (free.total - least) * i // 12 for i in range(-6, 19)]
        for capacity in (*steps, least - 1, least + 1, round(1.000001 * least)):
            one = rank_memory(role, replace(h100, usable_bytes=capacity))[1]
            several = of_ranks(one, tuple(replace(r, count=8) for r in one.ranks))
            for memory in (one, several, adjusted(several, MemoryFactors(allocated=1.01, reserved=1.02))):
                assert memory.fits == (memory.fit_probability >= 0.5) == (memory.total <= memory.capacity)
                assert memory.total == memory.reserved + memory.context + memory.communicator
                assert memory.reserved >= memory.allocated
                if memory.fits:
                    assert all(r.total <= memory.capacity for r in memory.ranks)
                verdicts.add((one.fits, several.fits))
    assert {(True, True), (False, False)} <= verdicts
