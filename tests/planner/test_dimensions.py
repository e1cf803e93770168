"""What a search tries beside plans and batches: precisions, offloading, spot prices and instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

import foretell
from foretell.cost.compile_time import compile_time
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.planner.candidates import candidates_of
from foretell.planner.cluster_search import search_cluster
from foretell.planner.space import DIMENSIONS, Space
from foretell.planner.steps import Steps, Variant, steps_of
from foretell.planner.verdict import describe
from tests.capture.test_compiled import compiled, eager
from tests.planner.small import evaluator, steps
from tests.planner.test_plan import planned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("precison",), "Did you mean 'precision'"),
        (("batches",), "parallelism, micro-batches and accumulation are always searched"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_words(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Space(search=words)
    assert all(word in str(caught.value) for word in DIMENSIONS)


def test_spot_is_compared_with_the_list_price() -> None:
    result = planned(gpus=("h100-sxm",), max_devices=8, search=("spot",))
    terms = Counter(choice.term for choice in result.choices)
    assert terms["spot"]
    assert terms["on-demand"]
    spot = next(c for c in result.choices if c.term == "spot")
    same = next(
        c for c in result.choices if (c.cluster, c.plan, c.batch, c.term) == (spot.cluster, spot.plan, spot.batch, "on-demand")
    )  # fmt: skip
    assert spot.step == same.step, "one step, rented in two ways"
    assert spot.time.median > same.time.median, "spot nodes are taken back, others are not"
    assert spot.cost is not None
    assert same.cost is not None
    assert spot.cost.median < same.cost.median
    alone = planned(gpus=("h100-sxm",), max_devices=8)
    assert {c.time for c in alone.choices} >= {c.time for c in result.choices if c.term == "on-demand"}


def test_spot_needs_a_price_to_compare_with() -> None:
    with pytest.raises(InputError, match="search=spot compares spot with other prices, got term=spot"):
        Space(search=("spot",), term="spot")
    with pytest.raises(InputError, match="prices of your own for l40s"):
        Space(search=("spot",), prices={"l40s": 1.0})


def test_offloading_is_tried_and_its_bounds_hold() -> None:
    cluster, evaluates = Cluster.parse("2xl40s"), evaluator("2xl40s")
    found = candidates_of(Space(global_batch=8, batches=(2,), search=("offload",)), steps(), cluster).found
    kept = Counter(c.plan.offload for c in found)
    assert kept["none"] == kept["optimizer"] > kept["parameters"] > 0
    assert all(c.plan.zero == 3 for c in found if c.plan.offload == "parameters")
    for c in (c for c in found if c.plan.offload != "none" and c.plan.checkpointing == "none"):
        outcome, replica = evaluates.simulate(c), evaluates.replica(c)
        assert not outcome.why
        assert evaluates.bound(c, replica) <= outcome.seconds
        assert evaluates.memory(c, replica) <= outcome.total


def test_precisions_and_recomputing() -> None:
    assert Space(search=("precision",)).varied({"precision": "fp32"}) == {"precision": ["fp32", "amp-bf16", "bf16"]}
    with pytest.raises(InputError, match="both say which to try"):
        Space(search=("precision",), vary={"precision": ["bf16"]}).varied({})
    cluster = Cluster.parse("2xl40s")
    plans = candidates_of(Space(global_batch=8, batches=(2,), search=("checkpointing",)), steps(), cluster).found
    words = {str(c.plan.checkpointing).partition(":")[0] for c in plans}
    assert words == {"none", "selective", "full", "budget"}


def test_a_search_goes_on_until_something_fits_as_surely_as_wanted() -> None:
    """What fits in nine of ten cases ended the search, although 99 of 100 were wanted."""
    evaluates, cluster = evaluator("4xl40s"), Cluster.parse("4xl40s")
    every = candidates_of(Space(global_batch=8, batches=(1, 2)), steps(), cluster).found
    usual = search_cluster(evaluates, 0, every)
    never = search_cluster(evaluates, 0, every, sure=1.1)
    assert len(never.simulated) > len(usual.simulated)


def in_ways(*words: str) -> Steps:
    """A step as it is written (false), and compiled (true)."""
    ways: dict[str, Graph] = {"false": eager(), "true": compiled()}
    variants = [Variant(settings={"compile": word}, captured={32: ways[word]}, free=False) for word in words]
    return Steps(name="block", variants=tuple(variants))


def test_compiling_is_searched_as_a_setting_of_the_source() -> None:
    assert Space(search=("compile",)).varied({}) == {"compile": ["false", "true"]}
    assert Space(search=("compile", "precision")).varied({"compile": "max-autotune"})["compile"] == [
        "max-autotune", "false", "true"
    ]  # fmt: skip
    with pytest.raises(InputError, match="search=compile and vary of compile both say which to try"):
        Space(search=("compile",), vary={"compile": ["true"]}).varied({})


def test_plans_that_cut_a_compiled_step_are_left_out() -> None:
    found = candidates_of(Space(), in_ways("false", "true"), Cluster.parse("2xh100-sxm"))
    cut = "it cuts a compiled step, whose kernels are fused for one device"
    assert found.left_out[cut] > 0
    plans = [{str(c.plan) for c in found.found if c.variant == v} for v in (0, 1)]
    assert plans[1] < plans[0]
    assert not any("tp=2" in plan or "pp=2" in plan for plan in plans[1])
    assert any("zero=3" in plan for plan in plans[1])  # its blocks are gathered one by one


def test_each_start_of_a_compiled_job_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    job = foretell.JobLength.usual(samples=1e6)
    takes = compile_time(compiled(), Cluster.parse("h200").nodes[0].host.op_seconds).median
    for word, start in (("false", job.startup), ("true", job.startup + takes)):
        monkeypatch.setattr("foretell.planner.plan.steps_of", lambda *asked, word=word, **how: in_ways(word))
        best = foretell.plan("x", "h200", job=job, space=Space(search=("compile",))).recommended
        assert best is not None
        assert best.job.startup_seconds == pytest.approx(start)
        assert str(best.compiled).lower() == best.settings["compile"] == word
        assert (", compiled, and micro-batches" in describe(best)) is best.compiled


def test_a_compiled_step_is_captured_at_the_largest_batches_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def capture(workload: str, settings: Mapping[str, str], batch: int | None, *how: object) -> Graph:
        asked.append((settings["compile"], batch or 0))
        return compiled() if settings["compile"] == "true" else eager()

    monkeypatch.setattr("foretell.planner.steps._capture", capture)
    both = {"compile": ["false", "true"]}
    steps_of("x", {}, both, batches=[8, 2, 4])
    assert asked == [("false", 2), ("false", 4), ("true", 4), ("true", 8)]
    asked.clear()
    steps_of("x", {}, both)
    assert asked[2:] == [("true", 32), ("true", 64)]
