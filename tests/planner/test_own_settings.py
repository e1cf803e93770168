"""What a script decides of its plan stays; the rest is searched."""

from __future__ import annotations

from dataclasses import replace

import foretell
from foretell.plans import Plan, PlanTemplate

from .small import llama


def plans(settings: dict[str, object], plan: str | None = None) -> tuple[set[Plan], tuple[str, ...]]:
    graph = foretell.capture_graph(llama(batch=2))
    template = PlanTemplate(source="train.py", by="script", settings=settings)
    graph = replace(graph, facts=replace(graph.facts, plan=template))
    found = foretell.plan(
        graph, "4xl40s", plan, job=foretell.JobLength.usual(samples=1e6), model="roofline",
        search=foretell.Search(cache=False),
    )  # fmt: skip
    return {Plan.parse(choice.plan) for choice in found.choices}, found.caveats


def test_a_script_that_shards_keeps_to_it() -> None:
    found, caveats = plans({"zero": 3})
    assert {(p.zero, p.tp, p.pp) for p in found} == {(3, 1, 1)}
    assert any("train.py decides tp=1,pp=1,cp=1,ep=1,zero=3" in text for text in caveats)
    assert {p.zero for p in plans({"zero": 3}, "zero=1")[0]} == {1}, "what is asked for comes first"


def test_a_script_without_a_wrapper_leaves_all_open() -> None:
    found, caveats = plans({})
    assert len({(p.zero, p.tp, p.pp) for p in found}) > 1
    assert not any("decides" in text for text in caveats)
