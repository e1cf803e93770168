"""The comparison of methods: what splits leave out, what a line counts, and what the pages say of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import pytest
from foretell_bench.pages.methods import fill_pages, methods_table, table_named
from foretell_bench.sources.ddp_step_times import placement_of
from foretell_bench.sources.examples import cnn_many_gpus, ddp_step_times, several
from foretell_bench.sources.question import evenly
from foretell_bench.tables import classics, searches
from foretell_bench.tables import methods as bench
from foretell_bench.tables.classics import NETWORKS
from foretell_bench.tables.methods import Job, lines_of
from foretell_bench.tables.results import Line, errors, keep_lines, keep_rows, read, study_results
from foretell_bench.tables.splits import Split, splits

from foretell.errors import InputError
from foretell.methods.conformance import made_up, perceptron
from foretell.methods.ernest import Ernest
from foretell.methods.examples import dataset_of
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Prediction, Query
from foretell.store.importers import Selection, public_rows

PUBLIC = Path(__file__).parents[3] / "shared" / "data"


def by_name(examples: Sequence[Example]) -> dict[str, Split]:
    return {split.name: split for split in splits(examples)}


def test_nothing_is_both_learned_and_tested() -> None:
    examples = made_up()
    for split in splits(examples):
        assert not set(split.train) & set(split.test)
        assert not set(split.own) & set(split.test)
        assert not set(split.own) & set(split.train)


def test_a_point_that_was_measured_twice_is_on_one_side() -> None:
    examples = made_up()
    again = [
        replace(e, query=replace(e.query, settings={**e.query.settings, "record": "2", "org": "b"})) for e in examples
    ]
    whole = [*examples, *again]
    for name in ("random", "unseen configuration"):
        split = by_name(whole)[name]
        assert {i % len(examples) for i in split.train}.isdisjoint(i % len(examples) for i in split.test)


def test_each_split_leaves_out_what_it_says() -> None:
    examples = made_up()
    made = by_name(examples)
    assert set(made) == {"random", "unseen configuration", "unseen architecture", "unseen scale"}

    def of(split: str, part: str, what: str) -> set[object]:
        ask = {"architecture": lambda q: q.architecture, "devices": lambda q: q.cluster.devices}[what]
        return {ask(examples[i].query) for i in getattr(made[split], part)}

    assert not of("unseen architecture", "train", "architecture") & of("unseen architecture", "test", "architecture")
    assert max(of("unseen scale", "train", "devices")) < min(of("unseen scale", "test", "devices"))  # type: ignore[type-var]
    assert of("unseen configuration", "test", "architecture") <= of("unseen configuration", "train", "architecture")


def test_one_device_more_can_be_left_out() -> None:
    from foretell.hardware import Cluster

    examples = made_up()
    moved = [replace(e, query=replace(e.query, cluster=Cluster.parse("a100-80g-sxm"))) for e in examples[:6]]
    split = by_name([*examples, *moved])["unseen device"]
    assert split.test == tuple(range(len(examples), len(examples) + 6))


def test_a_black_box_has_runs_of_its_own_and_never_all() -> None:
    examples = made_up()
    split = by_name(examples)["unseen architecture"]
    assert split.own
    tested = {examples[i].query.architecture for i in split.test}
    assert {examples[i].query.architecture for i in split.own} <= tested


def test_errors_are_fractions_and_absolute() -> None:
    found = errors([(1.1, 1.0), (1.5, 2.0)])
    assert found["answered"] == 2
    assert found["mean"] == pytest.approx((0.1 + 0.25) / 2)
    assert found["rmse_absolute"] == pytest.approx(((0.1**2 + 0.5**2) / 2) ** 0.5)
    assert errors([]) == {"answered": 0}


class Half:
    """Answers step times of every other query."""

    name = "half"

    def fit(self, examples: Sequence[Example]) -> Self:
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [
            Prediction(values={STEP_TIME: 1.0}, low={STEP_TIME: 0.0}, high={STEP_TIME: 9.0 if i > 1 else 1e-9})
            if i % 2
            else Prediction(values={}, why="odd")
            for i, _ in enumerate(queries)
        ]


def test_a_line_counts_what_was_answered_and_says_why_not() -> None:
    examples = made_up()
    job = Job("half", "made up", Split(name="random", train=(), test=()))
    step, device, *_ = lines_of(Half(), job, examples[:10], examples[10:20])
    assert (step.target, step.rows, step.answered, step.trained) == (STEP_TIME, 10, 5, 10)
    assert step.why == "odd"
    assert (step.inside, device.inside) == (0.8, None)  # four of five
    assert (device.target, device.answered, device.mean) == (DEVICE_TIME, 0, None)
    assert step.measuring_seconds == pytest.approx(sum(e.cost for e in examples[:10]))


def test_a_method_that_cannot_be_fitted_is_a_line_too() -> None:
    bare = [replace(e, query=replace(e.query, graph=None)) for e in made_up()]
    job = Job("dnnabacus", "made up", Split(name="random", train=(), test=()))
    lines = lines_of(bench.compared("dnnabacus")(), job, bare[:10], bare[10:])
    assert all(line.mean is None and "none of 10" in line.why for line in lines)


def test_what_ernest_ran_is_what_it_is_charged_for() -> None:
    examples = made_up()
    job = Job("ernest", "made up", Split(name="random", train=(), test=()))
    made = Ernest(budget=0.5)
    line, *_ = lines_of(made, job, examples, examples)
    assert line.measuring_seconds == pytest.approx(made.spent_)
    assert made.spent_ < sum(e.cost for e in examples)


def a_line(method: str, mean: float | None, split: str = "unseen architecture") -> Line:
    return Line(method=method, source="h200", split=split, target=DEVICE_TIME, rows=9, answered=9 if mean else 0, trained=20,
                mean=mean, median=mean, p90=mean, rmse=mean, fit_seconds=1.0, measuring_seconds=60.0, milliseconds=2.0,
                why="" if mean else "it would not")  # fmt: skip


def test_results_are_merged_line_by_line(tmp_path: Path) -> None:
    keep = keep_lines(tmp_path / "r.json")
    keep([a_line("foretell", 0.1), a_line("scaledl", 0.2)])
    keep([a_line("scaledl", 0.15)])
    assert {line["method"]: line["mean"] for line in read(tmp_path / "r.json")["lines"]} == {
        "foretell": 0.1,
        "scaledl": 0.15,
    }


def test_what_is_there_is_not_fitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h200").mkdir()
    monkeypatch.setattr(
        bench,
        "SOURCES",
        {"h200": lambda place, say, most: Selection(items=tuple(made_up()), left_out={"not drawn": 3})},
    )
    text: list[str] = []
    done = {("h200", "random", "ernest")}
    kept = keep_rows(tmp_path / "r.json")
    lines = bench.run(None, tmp_path, only=["ernest"], chosen=["h200"], say=text.append, done=done, keep_rows=kept)
    rows = table_named("rows", read(tmp_path / "r.json"))
    assert "| h200 | 24 of 27 rows; left out: 3 not drawn |" in rows
    assert {line.split for line in lines} == {"unseen configuration", "unseen architecture", "unseen scale"}
    assert text[-1] == "3 of 3 fits done: ernest on unseen scale rows of h200"
    assert all(line.milliseconds is not None and line.milliseconds > 0 for line in lines)


def test_lines_of_other_inputs_are_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_lines(tmp_path / "r.json")([replace(a_line("ernest", 0.1), inputs=1), a_line("scaledl", 0.1)])
    given: dict[str, object] = {}
    monkeypatch.setattr(bench, "run", lambda *_, **options: given.update(options))
    monkeypatch.setattr(bench.classics, "lines", lambda *_: [])
    bench.run_all(None, tmp_path, tmp_path / "r.json", resume=True)
    assert given["done"] == {("h200", "unseen architecture", "scaledl")}


def test_lines_of_other_inputs_are_marked() -> None:
    old = replace(a_line("scaledl", 0.2), inputs=1)
    assert "scaledl ‡" in table_named("method scaledl", {"lines": [asdict(old)]})


def test_pages_are_filled_and_nothing_else_is_touched(tmp_path: Path) -> None:
    keep = keep_lines(tmp_path / "r.json")
    keep([a_line("foretell", 0.1), a_line("scaledl", 0.2), a_line("ernest", None)])
    results = read(tmp_path / "r.json")
    (tmp_path / "a.md").write_text("before\n<!-- table: method foretell -->\nold\n<!-- end -->\nafter\n")
    (tmp_path / "b.md").write_text("plain\n![errors](ernest-errors.svg)\n")
    assert fill_pages(tmp_path, results) == [tmp_path / "a.md"]
    page = (tmp_path / "a.md").read_text()
    assert "old" not in page
    assert "10.0%" in page
    assert page.startswith("before\n")
    assert page.endswith("<!-- end -->\nafter\n")
    assert fill_pages(tmp_path, results) == []
    assert table_named("claims", results).count("not run") == 15
    assert "it would not" in table_named("refusals", results)
    assert "| 9 † |" in page  # fewer than thirty rows
    assert methods_table(results)
    assert (tmp_path / "ernest-errors.svg").read_text().startswith("<svg")


def test_tables_of_the_methods_own_benchmarks() -> None:
    e = {"mean": 0.1, "median": 0.08, "p90": 0.2, "rows": 4}
    errors_of = {
        "PredictDDL": e,
        "Ernest, five runs of each": e | {"mean": 0.2},
        "Ernest, reused with no run": e | {"mean": 0.5},
    }
    spent = {"measuring": 10.0, "fit": 0.0, "predict": 0.0, "workloads": 2, "runs": 6}
    box = {"networks": ["a", "a", "b", "b"], "unseen architectures": {"errors": {"PredictDDL": e}},
           "timing": {"predict": 0.05, "forecast": 0.02},
           "ernest": {"errors": errors_of, "spent": spent},
           "validated": [{"linear": 0.1, "polynomial": 0.3, "svr": 0.2, "mlp": 0.4}]}  # fmt: skip
    studies = {"predictddl": {"box": box}}
    assert (
        "| jobs of emulated hosts | 4 | 10.0%, 8.0% | 20.0%, 8.0% | 2 (1) | 5 | 6, 10 s | 5 s, 0.05 s, 0.02 s | 100 |"
        in table_named("predictddl ernest", {}, studies)
    )
    assert "emulated hosts, whole jobs, 4 rows of 2 |" in table_named("predictddl errors", {}, studies)
    assert "| emulated hosts, whole jobs | 10.0%, 1 of 1 |" in table_named("predictddl validated", {}, studies)
    claims = table_named("claims", {}, studies)
    assert "| 2× (over Ernest without a run 5×) | 2 to 2 over 1 comparisons | 4 rows" in claims
    assert "| 100×, capturing the graph not counted |" in claims
    box["timing"] = {"predict": 0.05, "capture": 0.45}
    assert "| 10× |" in table_named("claims", {}, studies)
    error = {w: {"mre": 0.1, "median": 0.1, "rmse_seconds": 1e-3, "rows": 9} for w in ("device", "step")}
    scaledl = {"tables": {"architecture, all": {"after ScaleDL": error}}, "ratios": {}, "tried": {"layers": {"96": [0.1, 12.0]}},
               "designs": [{"budget": 30.0, "by": "random", "points": 3, "device": 0.3, "step": 0.4}]}  # fmt: skip
    assert "| after ScaleDL | 10.0% | 10.0% | 1.0 ms |" in table_named("scaledl architecture", {}, {"scaledl": scaledl})
    assert "| layers | 96 | 10.0% |  | 12 s |" in table_named("scaledl tried", {}, {"scaledl": scaledl})
    assert "| 30 s | – | 30.0%, 40.0% (3 steps) |" in table_named("scaledl designs", {}, {"scaledl": scaledl})


def test_a_table_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="no table"):
        table_named("weather", {})


def test_rows_are_drawn_evenly_and_whatever_their_order() -> None:
    rows = [{"kind": kind, "n": n} for kind in "abc" for n in range(30 if kind == "a" else 4)]
    chosen = evenly(rows, 9, by=lambda r: r["kind"])
    assert sorted(r["kind"] for r in chosen) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert {tuple(r.values()) for r in evenly(rows[::-1], 9, by=lambda r: r["kind"])} == {
        tuple(r.values()) for r in chosen
    }


def test_kinds_with_several_are_taken_whole() -> None:
    rows = ["a1", "b1", "a2", "c1", "c2", "c3"]
    assert sorted(several(rows, 5, by=lambda r: r[0])) == ["a1", "a2", "c1", "c2", "c3"]
    assert {r[0] for r in several(rows, 3, by=lambda r: r[0])} in ({"a"}, {"c"})


def test_the_type_of_data_is_read_from_the_graph() -> None:
    assert dataset_of(perceptron(64, layers=2, batch=8)) == "other"


def test_placements_are_read_as_digits() -> None:
    assert placement_of({"placement": "44", "nodes": 2, "replicas": 8}) == (4, 4)
    assert placement_of({"placement": None, "nodes": 2, "replicas": 5}) == (3, 2)


def test_a_search_is_scored_against_the_best_there_is() -> None:
    examples = made_up()
    many = [replace(e, query=replace(e.query, architecture="one", batch=e.query.batch * (1 + i / 7)))
            for i, e in enumerate(examples)]  # fmt: skip
    [table] = searches.tables("mlperf_training", many)
    assert len(table.candidates) == len(many)
    picked, ranked = searches.cherrypick(table, seeds=2), searches.ranked(table)
    assert picked.regret is not None
    assert picked.regret >= 0
    assert 6 <= picked.runs <= len(many)
    assert ranked.runs == 0
    assert ranked.regret is not None
    assert ranked.regret >= 0


def test_searches_are_compared_on_the_same_tables_and_a_choice_that_crashes_loses_all() -> None:
    def row(ours: float | None, theirs: float) -> dict[str, float | None]:
        measured = {"measured_runs": 2, "measured_crashes": 0, "measured_regret": 0.01}
        return measured | {"regret": ours, "cherrypick_loss": theirs, "cherrypick_runs": 30, "cherrypick_crashes": 9}

    text = table_named("claims", {}, {"planner": [row(0.0, 0.1), row(None, 0.4), row(0.25, 0.1)]})
    assert "CherryPick loses 20.0% of the best after 30 runs, 9 of them crashes" in text
    assert "Foretell's choice 40.0% with no run, 1 of 3 crashed" in text
    assert "CherryPick is better than the choice with no run on 2 of 3" in text


def test_claims_can_be_read_from_the_results_that_lie_here() -> None:
    there = Path(__file__).parents[1] / "results"
    assert "not run" not in table_named("claims", read(there / "methods.json"), study_results(there))


def test_claims_of_variants_have_an_interval_over_folds_and_seeds() -> None:
    def fit(variant: str, fold: int, seed: int, mean: float) -> dict[str, object]:
        return {"source": "five-batches", "variant": variant, "fold": fold, "seed": seed, "mean": mean}

    fits = [fit("ScaleDL", 0, 0, 0.1), fit("ScaleDL", 0, 1, 0.2), fit("ScaleDL", 1, 0, 0.1), fit("additive", 0, 0, 0.4),
            fit("ScaleDL, messages cut", 0, 1, 0.3)]  # fmt: skip
    text = table_named("claims", {}, {"variants": {str(i): f for i, f in enumerate(fits)}})
    assert "| 2.8× | 2.1 to 3.9 over nine tenths of 2 folds and seeds |" in text  # 4 and 2; fold 1 has no pair
    assert "without: 1.5× on five-batches" in text


def test_there_are_29_classics_and_the_data_has_them() -> None:
    assert len(set(NETWORKS)) == 29
    from foretell.store.store import Store

    store = Path(__file__).parents[2] / "bench" / "data" / "h200"
    assert set(NETWORKS) <= {s.source for s in Store(store).steps("kind = 'step'")}


def test_classics_are_left_out_by_point_or_by_network() -> None:
    steps = [classics.whole(e) for e in (*made_up(), *made_up())]  # every point twice
    every = classics.folds(steps)
    assert {(fold.split, fold.method) for fold in every} == set(itertools.product(classics.SPLITS, classics.METHODS))
    for fold in every:
        away = {classics._point(steps[i]) for i in fold.test}
        assert away.isdisjoint(classics._point(e) for i, e in enumerate(steps) if i not in fold.test)
        names = {steps[i].query.architecture for i in fold.test}
        if fold.split == classics.LEFT_OUT:
            assert len(names) == 1
    by_network = [fold for fold in every if fold.split == classics.LEFT_OUT and fold.method == "dnnabacus"]
    assert sorted(i for fold in by_network for i in fold.test) == list(range(len(steps)))
    pairs = {"step_time": [(1.1, 1.0)]}
    [line] = classics.gathered([(fold, pairs) for fold in by_network], len(steps))
    assert (line.rows, round(line.mean or 0, 3)) == (len(by_network), 0.1)
    random = replace(line, split=classics.RANDOM)
    lines = [asdict(one) for one in (random, replace(random, method="foretell", mean=0.5))]
    assert f"| 10.0% | – | {line.rows} steps of an H200 |" in table_named("claims", {"lines": lines})


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="public measurements are not here")
def test_public_rows_become_examples() -> None:
    taken = ddp_step_times(PUBLIC, most=24, graphs=False)
    assert taken.rows == len(public_rows(PUBLIC, "ddp_step_times")), "every row is taken or counted"
    found = taken.items
    assert len(found) == 24
    assert len({e.query.architecture for e in found}) == 6
    assert all(e.query.plan.dp == e.query.cluster.devices for e in found)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cnn_many_gpus"):
        cnn_many_gpus(tmp_path)
    with pytest.raises(InputError, match="no source 'h20'"):
        bench.run(None, tmp_path, chosen=["h20"])
    with pytest.raises(InputError, match="no method 'ernst'"):
        bench.run(None, tmp_path, only=["ernst"])
