"""Hand-written networks of the kinds that are predicted worst, their operators, and the list that stays blind."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from foretell_bench.measuring.h200.campaign import points_named
from foretell_bench.measuring.h200.kinds import operators
from foretell_bench.measuring.h200.kinds.points import LISTS, networks
from foretell_bench.tables.generated import BlindStep, Pair
from foretell_bench.tables.kinds import BLIND, OPEN, figures

from foretell.capture import capture
from foretell.design.blind import is_blind
from foretell.errors import WorkloadError
from foretell.measure.record import Point
from foretell.sources.resolve import load_workload

_FIRST = {p.source: p for p in (*LISTS["kinds"], *LISTS["kinds-blind"])}


def test_the_blind_list_is_the_one_that_was_drawn() -> None:
    """It was drawn before any of it was measured. Nothing is fitted, and nothing chosen, on it: a new hash is a new list."""
    text = "\n".join(point.key for point in LISTS["kinds-blind"])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "366be9a488c3393a"


def test_lists_hold_every_network_and_keep_blind_ones_apart() -> None:
    opened, blind = points_named("kinds"), points_named("kinds-blind")
    assert (len(opened), len(blind)) == (76, 46)
    assert {is_blind(p.source) for p in opened} == {False}
    assert {is_blind(p.source) for p in blind} == {True}
    assert {p.source for p in (*opened, *blind)} == set(networks())
    kinds = Counter(n.kind for n in networks().values() if is_blind(n.source))
    assert sum(kinds.values()) >= 28
    assert min(kinds.values()) >= 2
    first = {networks()[p.source].kind for p in opened[:14]}
    assert len(first) == 14  # however early it stops, all kinds were there


def test_a_later_draw_of_operators_has_none_of_the_first() -> None:
    first, later = LISTS["kinds-operators"], LISTS["kinds-operators-later"]
    assert not {p.key for p in first} & {p.key for p in later}
    assert sum(int(p.settings["count"]) for p in later) >= 2000


@pytest.mark.parametrize("name", ["kinds-operators", "kinds-operators-later"])
def test_operators_are_enough_and_spread(name: str) -> None:
    points = points_named(name)
    assert sum(int(p.settings["count"]) for p in points) >= 2200
    half = Counter(p.settings["of"] for p in points[: len(points) // 2])
    for kind, count in Counter(p.settings["of"] for p in points).items():
        assert abs(half[kind] - count / 2) <= 1
    with pytest.raises(WorkloadError, match="no kind of operator"):
        operators.bundle(of="grouped_convolutions")


@pytest.mark.nightly
@pytest.mark.parametrize("source", sorted(_FIRST), ids=lambda source: source.partition("kinds.")[2])
def test_a_network_is_captured(source: str) -> None:
    least, _ = networks()[source].batches
    settings = {**_FIRST[source].settings, "batch": str(max(2, least))}
    assert len(capture(load_workload(source, settings)).ops) >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("of", [kind for kind in operators.KINDS if kind != "recurrent"])
def test_a_bundle_is_captured(of: str) -> None:
    point = next(p for p in LISTS["kinds-operators"] if p.settings["of"] == of)
    few = {**point.settings, "count": "2"}
    assert capture(load_workload(Point(source=point.source).source, few)).ops


def test_figures_tell_open_from_blind() -> None:
    def step(part: str, predicted: float) -> BlindStep:
        pair = Pair(measured=1.0, predicted=predicted, low=0.9, high=1.2)
        return BlindStep(source=part, part=part, kind="vgg", precision="fp32", training=True, plain=True, device=pair,
                         step=pair, allocated=(100, 100), reserved=(100, 110))  # fmt: skip

    found = {(f.source, f.measure): f for f in figures([step(BLIND, 1.1), step(OPEN, 1.3)])}
    assert found[f"{BLIND}: device time", "mean error"].value == pytest.approx(0.1)
    assert found[f"{OPEN}: device time", "mean error"].value == pytest.approx(0.3)
    assert found[f"{BLIND}: device time", "mean error"].bar == 0.065
    assert found[f"{BLIND}: vgg: peak reserved", "mean error"].value == pytest.approx(0.1)
