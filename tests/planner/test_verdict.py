"""The recommendation: what the goal orders first, never beaten in its own table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from io import StringIO

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from foretell.cli.remote import _front
from foretell.planner.candidates import complexity
from foretell.planner.cluster_search import ALIKE
from foretell.planner.goal import Goal
from foretell.planner.result import Choice, Range
from foretell.planner.verdict import ROOM, choose, front
from foretell.report.plan import plan_panel
from foretell.units import show_dollars
from tests.planner.test_plan import planned

DAY = 86400.0
PLANS = ("dp=8", "dp=8,zero=1", "dp=8,zero=3", "dp=4,tp=2", "dp=2,pp=4")


@cache
def some_choice() -> Choice:
    found = planned().recommended
    assert found is not None
    return found


def made(
    days: float, dollars: float | None, *, plan: str = "dp=8", headroom: float = 0.3, fits: float = 0.99
) -> Choice:
    def around(middle: float) -> Range:
        return Range(median=middle, low=0.8 * middle, high=1.25 * middle)

    return replace(
        some_choice(), plan=plan, time=around(days * DAY), cost=None if dollars is None else around(dollars), headroom=headroom,
        fit_probability=fits, deadline_probability=0.99 if days < 30 else 0.1, budget_probability=None if dollars is None else 0.99,
    )  # fmt: skip


def recommended(choices: list[Choice], goal: Goal) -> Choice:
    found = choose(choices, goal).recommended
    assert found is not None
    return found


def test_of_what_costs_the_same_the_fastest_is_taken() -> None:
    """A 7 B model on up to 32 H100, as it was seen: eight devices were recommended, the dearest and the slowest of four."""
    slow = made(17.3, 8950, plan="dp=2,pp=4", headroom=0.5)
    seen = [slow, made(4.21, 8693, plan="dp=8,zero=3"), made(8.5, 8775), made(16.8, 8679)]
    verdict = choose(seen, Goal(deadline=30 * DAY, budget=200_000))
    assert verdict.recommended is seen[1]
    assert "Next is" in verdict.reason
    assert "longer and $14.00 less" in verdict.reason  # 16.8 days: 14 dollars less for 12.6 days more


def test_room_counts_up_to_a_margin() -> None:
    """A ResNet-18 with nearly all memory free was given FSDP, which leaves yet more of it free."""
    plain, sharded = made(1.0, 100, headroom=0.94), made(1.02, 102, plan="dp=8,zero=3", headroom=0.97)
    assert recommended([sharded, plain], Goal()) is plain
    tight, roomy = made(1.0, 100, headroom=0.02), made(1.02, 102, plan="dp=8,zero=3", headroom=0.15)
    assert recommended([tight, roomy], Goal()) is roomy


def test_of_what_looks_the_same_the_simpler_is_taken() -> None:
    choices = [made(1.0, 100, plan=plan) for plan in reversed(PLANS)]
    assert recommended(choices, Goal()).plan == "dp=8"
    assert sorted(PLANS, key=complexity) == ["dp=8", "dp=8,zero=1", "dp=8,zero=3", "dp=4,tp=2", "dp=2,pp=4"]


def test_ddp_is_not_given_up_for_what_nobody_sees() -> None:
    """Times and costs that differ past the third digit are ties for the choice; the numbers stay as they were forecast."""
    plain, sharded = made(1.0004, 100.04), made(1.0, 100, plan="dp=8,zero=1")
    assert recommended([sharded, plain], Goal()) is plain
    assert plain in front([sharded, plain])
    assert plain.time.median == 1.0004 * DAY
    assert recommended([sharded, made(1.01, 101.0)], Goal()) is sharded


def test_what_has_no_price_is_left_to_those_who_have_none() -> None:
    priced, faster = made(2.0, 100), made(1.0, None)
    assert recommended([priced, faster], Goal(deadline=30 * DAY)) is priced
    assert recommended([faster], Goal()) is faster


numbers = st.floats(min_value=0.1, max_value=40.0)
rows = st.tuples(numbers, numbers, st.sampled_from(PLANS), st.floats(0.0, 0.95), st.floats(0.5, 1.0))
goals = st.sampled_from([Goal(), Goal(deadline=30 * DAY), Goal(budget=1e6), Goal(deadline=30 * DAY, budget=1e6)])


@settings(max_examples=300, deadline=None)
@given(st.lists(rows, min_size=1, max_size=12), goals)
def test_a_recommendation_is_never_beaten_and_keeps_to_the_goal(
    table: list[tuple[float, float, str, float, float]], goal: Goal
) -> None:
    choices = [made(d, 100 * c, plan=plan, headroom=room, fits=fits) for d, c, plan, room, fits in table]
    good = [c for c in choices if not goal.missed_by(c)]
    verdict = choose(choices, goal)
    if not good:
        assert verdict.recommended is None
        return
    best = verdict.recommended
    assert best is not None
    assert best in front(good)
    assert not goal.missed_by(best)
    for other in good:
        assert best.cost is not None
        assert other.cost is not None
        less = other.time.median <= best.time.median and other.cost.median <= best.cost.median
        same = (other.time, other.cost) == (best.time, best.cost)
        assert not (less and not same and other.headroom >= min(best.headroom, ROOM))
    if goal.deadline is not None:
        costs = [c.cost.distribution.mean / c.fit_probability for c in front(good) if c.cost is not None]
        assert best.cost is not None
        assert best.cost.distribution.mean / best.fit_probability <= (1 + ALIKE) * min(costs, default=math.inf) + 1e-9


def test_nothing_qualifies_names_the_nearest() -> None:
    verdict = choose([made(40.0, 100)], Goal(deadline=30 * DAY))
    assert verdict.recommended is None
    assert verdict.nearest is not None
    assert verdict.reason.startswith("Nothing qualifies")
    assert choose([], Goal()).reason.startswith("Nothing qualifies")


def test_more_room_than_the_margin_does_not_save_what_is_slower_and_dearer() -> None:
    """Both leave a tenth of the memory free; one was kept for its fifth, and taken where its interval was narrower."""
    better, roomier = made(1.0, 100, headroom=0.12), made(1.01, 101, headroom=0.25)
    wide = Range(median=better.time.median, low=0.5 * better.time.median, high=2 * better.time.median)
    assert better.cost is not None
    uncertain = replace(better, time=wide, cost=wide.times(better.cost.median / better.time.median))
    assert recommended([roomier, uncertain], Goal()) is uncertain


def test_of_what_takes_the_same_to_the_last_digit_the_roomier_is_on_the_front() -> None:
    simpler, roomier = made(1.0, 100, headroom=0.12), made(1.0, 100, plan="dp=8,zero=3", headroom=0.19)
    assert recommended([simpler, roomier], Goal()) in front([simpler, roomier])


def test_what_is_faster_and_cheaper_but_fits_less_surely_is_named() -> None:
    """It stands in the same table, without a word of why it was not taken."""
    sure, unsure = (
        made(16.3, 10_287, plan="dp=8,zero=3"),
        made(16.0, 10_093, plan="dp=8,zero=2", headroom=0.11, fits=0.7),
    )
    verdict = choose([sure, unsure], Goal(deadline=30 * DAY))
    assert verdict.recommended is sure
    cluster, shorter = sure.cluster, "7.2 h shorter and $194.00 less"
    assert verdict.reason.endswith(
        f"{cluster} with dp=8,zero=2: {shorter}, but it fits into memory with 70 % where 90 % is wanted."
    )
    assert "but it" not in choose([sure, made(16.5, 10_000, fits=0.7)], Goal(deadline=30 * DAY)).reason, "it is slower"


def test_the_recommended_choice_is_in_the_table_of_a_terminal() -> None:
    """The front has what fits less surely, and the one that was recommended was left out where such a plan beats it."""
    result = planned(deadline=1e9)
    best = result.recommended
    assert best is not None
    beaten = replace(result, front=tuple(choice for choice in result.front if choice != best))
    console = Console(width=120, record=True, file=StringIO())
    console.print(plan_panel(beaten, 120))
    shown = console.export_text()
    assert "→" in shown
    assert "Fits" in shown
    assert "by what fits less surely" in shown
    console.print(_front(json.loads(beaten.to_json())))  # as a service answers
    answered = console.export_text()
    assert answered.count("→") == 1
    assert "100 %" not in answered, "no forecast is that sure, wherever it is made"


def test_thousands_of_dollars_have_no_cents() -> None:
    assert [show_dollars(d) for d in (0.0, 0.25, 999.5, 10286.9)] == ["$0", "$0.25", "$999.50", "$10,287"]
