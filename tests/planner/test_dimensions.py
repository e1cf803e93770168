"""What a search tries beside plans and batches: precisions, offloading, spot prices and instances."""

from __future__ import annotations

from collections import Counter

import pytest

from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.planner.candidates import candidates_of
from foretell.planner.cluster_search import search_cluster
from foretell.planner.space import DIMENSIONS, Space
from tests.planner.small import evaluator, steps
from tests.planner.test_plan import planned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compile",), "search=compile is not possible yet: steps are forecast as they run eagerly"),
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
