"""`foretell.plan`: the best of all candidates, for a deadline, a budget or neither."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import foretell
from foretell import Conditions
from foretell.cli import app
from foretell.distribution import LogNormal
from foretell.errors import InputError
from foretell.hardware import Cluster, Term, instance
from foretell.planner.candidates import SURE, candidates_of, decided
from foretell.planner.cluster_search import search_cluster
from foretell.planner.pool import Processes
from foretell.planner.result import Choice, PlanResult, Range
from foretell.planner.space import Space
from foretell.report.plan import front_table, plan_page, plan_panel
from foretell.units import show_dollars
from tests.parallel.models import graph
from tests.planner.small import evaluator, llama, steps

SMALL = f"{Path(__file__).parent / 'small.py'}:llama"  # as a SOURCE, whose captures are cached


def planned(
    on: str | None = None, *, model: str = "roofline", conditions: Conditions | None = None, **asked: Any
) -> PlanResult:
    """Each setting goes to the type that has it."""
    given = {
        "gpus": ("h100-sxm", "l40s"),
        "max_devices": 4,
        "global_batch": 8,
        "batches": (1, 2),
        "samples": 1e8,
    } | asked
    kinds = {foretell.Goal: "goal", foretell.Space: "space", foretell.Search: "search"}
    made = {
        name: kind(**{f.name: given.pop(f.name) for f in fields(kind) if f.name in given})
        for kind, name in kinds.items()
    }
    job = foretell.JobLength.usual(**given)
    return foretell.plan(SMALL, on, job=job, model=model, conditions=conditions, **made)


def test_the_search_finds_what_simulating_everything_finds() -> None:
    evaluates, cluster = evaluator("4xh100-sxm"), Cluster.parse("4xh100-sxm")
    every = candidates_of(Space(global_batch=8, batches=(2,)), steps(), cluster).found
    found = search_cluster(evaluates, 0, every)
    best = min(o.seconds for _, o in found.simulated if o.fit_probability >= SURE)
    all_of_them = [o for c in every if not (o := evaluates.simulate(c)).why and o.fits]
    assert best <= min(o.seconds for o in all_of_them) / 0.98
    assert len(found.simulated) < len(every)
    assert found.pruned.total() + sum(o.fits for _, o in found.simulated) == len(every)


def test_a_trainer_lengthens_bounds_as_it_lengthens_steps() -> None:
    cluster = Cluster.parse("4xh100-sxm")
    every = candidates_of(Space(global_batch=8, batches=(2,)), steps(), cluster).found
    bare, slow = (search_cluster(evaluator("4xh100-sxm", trainer=t), 0, every) for t in (0.0, 1.0))
    assert [c for c, _ in slow.simulated] == [c for c, _ in bare.simulated]


def test_a_plan_is_forecast_as_predict_forecasts_it() -> None:
    """The same question has one answer: steps were rounded to three digits, so that `predict` differed by up to 0.5 %."""
    conditions = Conditions(trainer=0.0, host="cloud-vm")
    for choice in planned("4xh100-sxm", gpus=(), conditions=conditions).choices:
        asked = {"batch": choice.batch}
        answer = foretell.forecast(
            SMALL, "4xh100-sxm", choice.plan, settings=asked, model="roofline", conditions=conditions
        )
        assert choice.step.median == answer.step_time.seconds
        assert choice.memory == answer.memory.total


def test_without_a_goal_the_product_of_time_and_cost_decides() -> None:
    result = planned()
    best = result.recommended
    assert best is not None
    assert best.cost is not None
    product = best.time.median * best.cost.median
    assert all(product <= c.time.median * c.cost.median * 1.0001 for c in result.choices if c.cost)
    assert "compromise" in result.reason
    assert result.candidates > 4 * result.simulated > 0
    assert {p.reason for p in result.pruned} >= {"others are faster: its bound is not below theirs"}
    assert best.global_batch == 8
    assert best in result.front


def test_a_deadline_takes_the_cheapest_and_a_budget_the_fastest() -> None:
    free = planned()
    fastest, slowest = free.choices[0], free.choices[-1]
    deadline = (fastest.time.high * slowest.time.high) ** 0.5
    kept = planned(deadline=deadline).recommended
    assert kept is not None
    assert kept.cost is not None
    assert kept.deadline_probability is not None
    assert kept.deadline_probability >= 0.9
    assert kept.time.median < deadline
    within = planned(budget=kept.cost.high * 1.5).recommended
    assert within is not None
    assert within.time.median <= kept.time.median


def test_nothing_qualifies_names_what_binds_and_what_would_do() -> None:
    result = planned(deadline=1.0)
    assert result.recommended is None
    assert "the deadline cannot be kept with 90 % certainty" in result.reason
    assert result.nearest is not None
    again = planned(deadline=result.nearest.time.high * 1.01)
    assert again.recommended is not None
    poor = planned(budget=1e-6)
    assert "the budget cannot be kept" in poor.reason


def test_the_front_has_nothing_that_another_beats() -> None:
    result = planned()
    for one in result.front:
        for other in result.front:
            if one != other and one.cost and other.cost:
                better = (one.time.median < other.time.median, one.cost.median < other.cost.median)
                assert any(better) or one.headroom > other.headroom - 0.05


def test_the_answer_as_json_and_as_a_page() -> None:
    result = planned(deadline=1e9)
    told = json.loads(result.to_json())
    assert result.recommended is not None
    assert told["recommended"]["plan"] == result.recommended.plan
    assert told["front"][0]["time"]["low"] < told["front"][0]["time"]["high"]
    page = plan_page(result)
    assert "Time against cost" in page
    assert page.count("<circle") == len(result.choices) + len(result.front)
    assert plan_panel(result)


def test_a_narrow_terminal_shortens_no_number() -> None:
    result = planned(deadline=1e9)
    long = "dp=64,zero=3,checkpointing=selective,grad_accumulation=32"
    wordy = replace(result, front=tuple(replace(choice, plan=long) for choice in result.front))
    console = Console(width=80, record=True, file=StringIO())
    console.print(front_table(wordy, 80))
    shown = console.export_text()
    for choice in wordy.front:
        assert choice.cluster in shown
        assert choice.cost is None or show_dollars(choice.cost.median) in shown
    assert "In time" in shown


def test_a_graph_keeps_its_batch_and_a_cluster_its_devices() -> None:
    space, job = Space(global_batch=16), foretell.JobLength.usual(samples=1e6)
    result = foretell.plan(graph("llama"), "4xh100-sxm", "tp=2", job=job, space=space, model="roofline")
    assert {c.cluster for c in result.choices} == {"4xh100-sxm"}
    assert all("tp=2" in c.plan and c.batch == 2 for c in result.choices)
    assert all(c.global_batch == pytest.approx(16) for c in result.choices)


def test_a_function_that_takes_a_batch_is_asked_for_it() -> None:
    job = foretell.JobLength.usual(samples=1e6)
    result = foretell.plan(llama, "h100-sxm", job=job, space=Space(batches=(1, 3)), model="roofline")
    assert {c.batch for c in result.choices} <= {1, 3}
    with pytest.raises(InputError, match="settings are for a SOURCE"):
        foretell.plan(llama, "h100-sxm", job=job, settings={"x": "1"})


def test_processes_answer_as_one_does() -> None:
    one, two = (planned(workers=n, cache=False, gpus=("l40s",), max_devices=2) for n in (1, 2))
    assert one.recommended == two.recommended


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"samples": None}, "as long as its samples or its tokens"),
        ({"samples": None, "epochs": 3}, "give both epochs and dataset"),
        ({"gpus": ("8xh100-sxm",)}, "names of devices or instances"),
        ({"on": "h100-sxm"}, "Give one of them"),
        ({"gain": 2.0}, "gain must be"),
        ({"deadline": -1.0}, "deadline must be more than 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(**asked)


def test_one_device_has_the_trainer_of_several() -> None:
    """Else it would win by what trainers add to several, which they add to one as well."""
    asked = {"gpus": ("h200",), "max_devices": 1, "batches": (2,), "model": "h200-2026.11", "cache": False}
    usual, bare = (planned(**asked, conditions=c) for c in (None, foretell.Conditions(trainer=0.0)))
    assert usual.recommended
    assert bare.recommended
    assert usual.recommended.step.median > 1.05 * bare.recommended.step.median
    assert any("--trainer says which" in text for text in usual.caveats), (
        "it is longer than a forecast of that plan alone"
    )
    assert not any("trainer" in text for text in bare.caveats)


def test_prices_of_ones_own_replace_the_catalogs() -> None:
    space = Space(gpus=("h100-sxm", "l40s"), max_devices=16, prices={"l40s": 0.5})
    by_name = {str(c): c.dollars_per_hour for c in space.clusters()}
    assert by_name["16xl40s"] == 8.0
    assert by_name["1xl40s"] == 0.5
    assert by_name["2xh100-sxm"] == Cluster.parse("2xh100-sxm").dollars_per_hour
    with pytest.raises(InputError, match="a price is given for t4"):
        Space(gpus=("l40s",), prices={"t4": 1.0}).clusters()


def test_prices_of_a_term_and_a_region() -> None:
    def dollars(name: str, **terms: str) -> float | None:
        [cluster] = Space(**terms).clusters(Cluster.parse(name))  # type: ignore[arg-type]
        return cluster.dollars_per_hour

    p5 = instance("aws:p5.48xlarge")
    spot = p5.offer("spot", "us-west-2")
    assert spot is not None
    assert dollars("2xaws:p5.48xlarge", term="spot") == 2 * spot.dollars_per_hour
    assert dollars("4xh100-sxm", term="spot") == spot.dollars_per_hour, "instances are rented whole"
    assert dollars("aws:p5.48xlarge", region="us-west-1") == 68.8
    assert dollars("aws:p5.48xlarge") == p5.dollars_per_hour
    [cluster] = Space(term="spot").clusters(Cluster.parse("aws:p5.48xlarge"))
    assert cluster.price_source == "aws:p5.48xlarge, spot in us-west-2, 2026-08"
    with pytest.raises(InputError, match="no spot price in the-moon"):
        dollars("4xh100-sxm", term="spot", region="the-moon")
    with pytest.raises(InputError, match="term='weekly' is not possible"):
        dollars("4xh100-sxm", term="weekly")


def test_a_price_counts_also_where_the_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))

    def best(price: float, term: Term = "on-demand") -> Choice | None:
        job = foretell.JobLength.usual(samples=1e8, spot=term == "spot")
        space = Space(batches=(2,), prices={"l40s": price}, term=term)
        return foretell.plan(
            SMALL, "2xl40s", "dp=2,zero=0,checkpointing=none", job=job, space=space, model="roofline"
        ).recommended

    first, second, spot = best(1.0), best(2.0), best(2.0, "spot")
    assert first is not None
    assert second is not None
    assert spot is not None
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost.median == pytest.approx(2 * first.cost.median)
    assert spot.time.median > second.time.median  # a spot node is taken back now and then
    assert spot.goodput.low <= spot.goodput.median < second.goodput.median
    assert spot.job.checkpoint_seconds > second.job.checkpoint_seconds


def test_settings_of_a_plan_that_are_decided() -> None:
    assert decided("dp=1,tp=2") == {"dp": 1, "tp": 2}
    assert decided(foretell.Plan(tp=2)) == {"tp": 2}
    assert decided(None) == {}


def test_odds_of_a_limit() -> None:
    known = Range.of(LogNormal.from_sigma(10, 0.2))
    assert known.distribution.probability_below(10) == pytest.approx(0.5)
    assert known.distribution.probability_below(10 * math.exp(0.2 * 1.2816)) == pytest.approx(0.9, abs=1e-3)


def test_another_cluster_of_the_same_name_is_not_answered_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One made in Python may have any name, and another host."""
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))
    usual = Cluster.parse("h100-sxm")
    node = replace(
        usual.nodes[0], device=replace(usual.nodes[0].device, bandwidth=usual.nodes[0].device.bandwidth / 1000)
    )
    job, space = foretell.JobLength.usual(samples=1e6), Space(batches=(2,))
    fast, slow = (
        foretell.plan(SMALL, on, job=job, space=space, model="roofline").choices[0]
        for on in (usual, replace(usual, nodes=(node,), name=str(usual)))
    )
    assert slow.cluster == fast.cluster
    assert slow.step.median > 1.5 * fast.step.median


def test_the_verb(tmp_path: Path) -> None:
    graph("llama").save(tmp_path / "llama.graph")
    asked = ["plan", str(tmp_path / "llama.graph"), "--gpus", "h100-sxm", "--max-devices", "4", "--model", "roofline"]
    asked += ["--tokens", "1e9", "--workers", "1"]
    ran = CliRunner().invoke(app, [*asked, "--json", "--html", str(tmp_path / "plan.html")])
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["recommended"]["cluster"].endswith("h100-sxm")
    assert "Time against cost" in (tmp_path / "plan.html").read_text()
    written = CliRunner().invoke(app, [*asked, "--to", f"slurm={tmp_path / 'job.sbatch'}", "--command", "run.py"])
    assert written.exit_code == 0
    assert "run.py" in (tmp_path / "job.sbatch").read_text()
    (tmp_path / "job.sbatch").write_text("mine")
    again = [*asked, "--to", f"slurm={tmp_path / 'job.sbatch'}"]
    kept = CliRunner().invoke(app, again)
    assert kept.exit_code == 2
    assert "--force" in kept.output
    assert (tmp_path / "job.sbatch").read_text() == "mine"
    assert CliRunner().invoke(app, [*again, "--force"]).exit_code == 0
    assert "#SBATCH" in (tmp_path / "job.sbatch").read_text()
    late = CliRunner().invoke(app, [*asked, "--deadline", "1s", "--require"])
    assert late.exit_code == 3
    assert "nothing qualifies" in late.stdout


def test_processes_stay_while_they_share_the_same() -> None:
    pool, shared = Processes(2), object()

    def asked(what: object) -> set[int]:
        return set(pool.each(_pid, what, range(8)))

    first = asked(shared) | asked(shared)
    assert os.getpid() not in first
    assert len(first | asked(shared)) <= 2  # no more than the two that were started
    assert not first & asked(object())
    pool.close()


def _pid(shared: object, one: int) -> int:
    return os.getpid()


def test_recomputing_may_be_left_to_the_search() -> None:
    listed, left = (
        planned("2xl40s", gpus=(), recompute=words, batches=(2,)).recommended for words in (("none", "full"), "auto")
    )
    assert listed is not None
    assert left is not None
    assert left.time.median <= listed.time.median * 1.02  # a search ends within 2 %
    assert "checkpointing" not in left.plan or "budget:" in left.plan
    with pytest.raises(InputError, match="must be auto"):
        Space(recompute="some")  # type: ignore[arg-type]
