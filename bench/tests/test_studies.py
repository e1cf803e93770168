"""Studies of one method at a time: each on a few rows that were made up, and what their figures mean."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foretell_bench.cli import app
from foretell_bench.methods import plainer
from foretell_bench.studies import variants
from foretell_bench.studies.driple import fits as driple
from foretell_bench.studies.driple import report as driple_report
from foretell_bench.studies.driple.run import JUDGED, Options, Study, wanted
from foretell_bench.studies.predictddl import fits as predictddl
from foretell_bench.studies.predictddl import report as predictddl_report
from foretell_bench.studies.predictddl import run as predictddl_run
from foretell_bench.studies.scaledl import fits as scaledl
from foretell_bench.studies.scaledl import report as scaledl_report
from foretell_bench.studies.scaledl.run import read_predictions
from typer.testing import CliRunner

from foretell.methods.conformance import made_up
from foretell.methods.driple.method import Driple
from foretell.methods.protocol import STEP_TIME, Example


def quiet(text: str) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("verb", ["predictddl", "scaledl", "driple", "variants"])
def test_every_study_says_what_it_does(verb: str) -> None:
    result = CliRunner().invoke(app, ["study", verb, "--help"])
    assert result.exit_code == 0
    assert "--out" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predictddl", "--only", "cnns"], "Allowed: digits, cnn"),
        (["predictddl", "--only", "cnn"], "give --data FOLDER"),
        (["variants", "--source", "boxes", "--show"], "--source='boxes' is not possible"),
    ],
)
def test_a_name_that_is_not_known_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["study", *arguments], env={"FORETELL_DATA": ""})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


# PredictDDL.


def test_folds_keep_a_network_together() -> None:
    examples = made_up()
    found = predictddl.folds(examples, predictddl.architecture)
    assert sorted(row for rows in found for row in rows) == list(range(len(examples)))
    by_fold = [{examples[i].query.architecture for i in rows} for rows in found]
    assert sum(map(len, by_fold)) == len(set.union(*by_fold))


def test_ernest_predicts_what_it_did_not_run() -> None:
    examples = made_up()
    rows = predictddl_run.Rows(examples, examples, STEP_TIME)
    seen = {id(e) for e in examples[::2]}
    predicted, spent = predictddl.ernest(examples, predictddl.architecture, lambda e: id(e) in seen, STEP_TIME)
    assert spent["runs"] + spent["answers"] <= len(examples)
    assert np.isnan(predicted[::2]).all()
    assert np.isfinite(predicted[1::2]).any()
    found: dict[str, Any] = {"timing": {}, "unseen architectures": {"predicted": {"all": np.ones(len(examples))}}}
    own = predictddl_run.compare_ernest(
        found, rows, predictddl.architecture, lambda e: id(e) in seen, "Ernest", quiet
    )  # fmt: skip
    assert own["errors"]["all"]["rows"] == own["errors"]["Ernest"]["rows"] == np.isfinite(predicted).sum()


def test_predictddl_is_compared_with_networks_left_out_and_the_others_are_kept(tmp_path: Path) -> None:
    examples = [replace(e, measured={STEP_TIME: e.measured[STEP_TIME]}) for e in made_up()]
    rows = predictddl_run.Rows(examples, examples, STEP_TIME)
    results = tmp_path / "predictddl.json"
    before = {"unseen architectures": {"said": {"PredictDDL": [1.0] * len(examples)}}, "timing": {"predict": 0.1}}
    results.write_text(json.dumps({"part": before}))  # the name that older results have
    options = predictddl_run.Options(
        data=tmp_path, stores=tmp_path, results=results, methods=["nearest network"], untimed=True, say=quiet
    )  # fmt: skip
    found = predictddl_run.compare("part", rows, options, times=None)
    split = found["unseen architectures"]
    assert list(split["errors"]) == ["PredictDDL", "nearest network"]
    assert found["timing"] == {"predict": 0.1}
    text = json.dumps({"part": predictddl_run.short(found)})
    assert predictddl_report.predictions(json.loads(text)["part"]["unseen architectures"])["PredictDDL"][0] == 1.0
    assert "<svg" in predictddl_report.chart(json.loads(text))


def test_what_was_not_predicted_is_null() -> None:
    assert predictddl_run.short({"a": np.array([1.23456, np.nan]), "b": (1, "x")}) == {
        "a": [1.235, None],
        "b": [1, "x"],
    }


# ScaleDL.


def scaledl_done(data: scaledl.Data) -> dict[str, Any]:
    """As if a fold of two had been fitted, with everything twice as long."""
    steps = [i for i, fold in enumerate(data.folds) if fold == 0]
    measured = {w: data.measured(w)[steps] for w in scaledl.TARGETS}
    twice = {w: (2 * values).tolist() for w, values in measured.items()}
    thrice = {w: (3 * values).tolist() for w, values in measured.items()}
    predicted = {scaledl.WHOLE: twice, "additive, on steps": thrice}
    spent = {"fit": 2.0, "predict": 0.1}
    return {
        "chosen": {"layers": "width 96", "network": "2 rounds"},
        "on": "cpu",
        "layers: width 96": ["width 96", 0.1, 2.0],
        "fold: 0": {"left out": 0, "steps": steps, "predicted": predicted, "seconds": spent},
        "without: 0, messages cut, seed 0": {
            "left out": 0, "seed": 0, "steps": steps, "predicted": {scaledl.CUT: thrice},
        },
        "points: 0, 30 s, random 0": {"budget": 30.0, "by": "random", "points": 2, "device": 0.2, "step": 0.3},
    }  # fmt: skip


@pytest.fixture(scope="module")
def scaledl_data() -> scaledl.Data:
    from foretell.methods.scaledl.method import read

    found = scaledl.Data([], [], [], [], [], [], [], [], [], [])
    for i, e in enumerate(made_up()):
        measured = {scaledl.TARGETS[w]: 0.001 * (i + 1) for w in scaledl.TARGETS}
        found.pages.append(read(Example(query=e.query, measured=measured, ops=e.ops)))
        found.sources.append(e.query.architecture)
        found.names.append(str(i))
        found.training.append(True)
        found.costs.append(1.0)
        found.folds.append(i % 2)
        found.largest.append(False)
        found.families.append(e.query.architecture)
    return found


def test_errors_of_scaledl_are_those_of_the_steps_left_out(scaledl_data: scaledl.Data) -> None:
    forecasts = {"architecture": {name: (0.0011 * (i + 1),) * 2 for i, name in enumerate(scaledl_data.names)}}
    made = scaledl_report.report(scaledl_data, scaledl_done(scaledl_data), forecasts)
    table = made["tables"]["architecture, all"]
    assert table[scaledl.WHOLE]["step"]["mre"] == pytest.approx(1.0)
    assert table["Foretell"]["device"]["mre"] == pytest.approx(0.1)
    assert table[scaledl.WHOLE]["step"]["rows"] == sum(fold == 0 for fold in scaledl_data.folds)
    ratio = made["ratios"]["after ScaleDL: architecture, all"]["additive, on steps"]["step"]["mre"]
    assert ratio == pytest.approx(2.0)
    [message] = made["messages"]
    assert message[scaledl.CUT]["step"] == pytest.approx(2.0)
    shown: list[str] = []
    scaledl_report.show(made, shown.append)
    assert any("30 s random" in line for line in shown)
    assert "<svg" in scaledl_report.chart(made)


def test_forecasts_that_accuracy_saved_are_read() -> None:
    found = read_predictions(Path(__file__).parents[2] / "bench" / "results" / "accuracy.json")
    assert len(found) > 100
    assert all(device > 0 and step > 0 for device, step in found.values())
    assert read_predictions(None) == {}


def test_a_fold_of_scaledl_sees_nothing_of_what_it_leaves_out(
    scaledl_data: scaledl.Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Instead:
        """Predicts how many pages it saw."""

        def fit_pages(self, pages: list[Any]) -> Instead:
            self.count, self.layer_models_ = float(len(pages)), None
            return self

        def with_layers(self, pages: list[Any]) -> Instead:
            return self.fit_pages(pages)

        def seconds(self, sheets: list[Any]) -> tuple[Any, Any]:
            return np.full(len(sheets), self.count), np.full(len(sheets), self.count)

    def none(*data: Any) -> Any:
        return np.zeros(len(scaledl_data.pages))

    scaledl.share(scaledl_data)
    monkeypatch.setattr(scaledl, "scaledl", lambda *chosen, **changed: Instead())
    for name in ("additive", "additive_layers", "flop_linear", "roofline"):
        assert hasattr(plainer, name)
        monkeypatch.setattr(scaledl, name, none)
    found = scaledl.fold(0, "width 96", "2 rounds", "cpu")
    away = [i for i, fold in enumerate(scaledl_data.folds) if fold == 0]
    assert found["steps"] == away
    assert set(found["predicted"][scaledl.WHOLE]["step"]) == {float(len(scaledl_data.pages) - len(away))}
    train, validating = scaledl.validation()
    assert not (train & validating).any()
    assert not any(scaledl_data.folds[i] == 0 for i in np.flatnonzero(train | validating))


# Driple.


def driple_rows() -> list[Example]:
    """Of enough architectures for some to be left out twice."""
    return [
        replace(e, query=replace(e.query, architecture=f"{e.query.architecture.replace('-', '')}-{i}"))
        for e in made_up()
        for i in range(3)
    ]


@pytest.mark.slow  # torch-geometric takes long to load
def test_a_fit_is_kept_and_another_is_tailored_from_it(tmp_path: Path) -> None:
    rows = driple.by_setting(driple_rows())
    source, *others = rows
    data = driple.Data(source=source, targets=(STEP_TIME,), read=driple_rows)
    chosen = replace(driple.SMALL, groups=4, rounds=1, readings=1, epochs=2, batch=4)
    study = Study(tmp_path / "driple.json", source)
    first = driple.Fit(setting=source, seed=0, share="all", way=driple.SCRATCH)
    assert study.is_ready(first)
    tailored = replace(first, way="transfer, frozen", setting=(others or [source])[0])
    assert not study.is_ready(tailored)
    study.add(first, *driple.fit_one(first, rows, data, chosen, None))
    assert study.has(first)
    assert Study(tmp_path / "driple.json", source).results["judged"] == JUDGED
    base = study.base(tailored)
    assert base is not None
    study.add(tailored, *driple.fit_one(tailored, rows, data, chosen, base))
    assert study.has(tailored) or tailored.setting == source


@pytest.mark.slow  # as above
def test_a_network_is_saved_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    rows = driple_rows()
    chosen = replace(driple.SMALL, groups=4, rounds=1, readings=1, epochs=1)
    made = Driple(chosen).fit(rows)
    setting, fitted = next(iter(made.fitted_.items()))
    driple.save(fitted, tmp_path / "0.safetensors")
    again = Driple(chosen)
    again.fitted_ = {setting: driple.load(tmp_path / "0.safetensors")}
    queries = [e.query for e in driple.by_setting(rows)[setting]]
    assert [p.values for p in again.predict(queries)] == [p.values for p in made.predict(queries)]


def test_every_seed_leaves_out_another_network_of_each_family() -> None:
    names = ["a-1", "a-2", "b-1", "b-2"]
    assert driple.unseen_architectures(names, 0) == {"a-2", "b-2"}
    assert driple.unseen_architectures(names, 1) == {"a-1", "b-1"}
    tasks = wanted(["source", "other"], "source", Options(stores=Path(), seeds=1, training={}, say=quiet))
    assert tasks[0] == driple.Fit(setting="source", seed=0, share="all", way=driple.SCRATCH)
    assert len(tasks) == 1 + 3 * 3  # shares × ways of the other


def test_equal_is_sustained_and_never_counts_as_no_saving() -> None:
    def fit(*errors: float) -> dict[str, Any]:
        return {"curve": [[i + 1, 2.0 * (i + 1), error] for i, error in enumerate(errors)], "error": errors[-1]}

    scratch = fit(*[4.0] * 5, *[1.0] * 15)
    once = fit(4.0, 1.0, *[4.0] * 18)  # touches it, and leaves again
    seed = {
        "fits": {"all": {"from scratch": scratch, "transfer, frozen": fit(*[1.0] * 20), "transfer, all tuned": once}}
    }
    saved, epochs = driple_report.saved, driple_report.EPOCHS
    assert saved(seed, "transfer, frozen") == saved(seed, "transfer, frozen", epochs) == 8 / 5
    assert saved(seed, "transfer, all tuned") == 0
    found = driple_report.times_less({"source": {}, "there": {"0": seed, "1": seed}}, "source")
    assert found["transfer, all tuned"]["never"] == 2
    assert math.isclose(found["transfer, frozen"]["median"], 1.6)


def test_results_of_driple_that_are_there_are_shown(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    results = json.loads((root / "bench" / "results" / "driple.json").read_text())
    shown: list[str] = []
    driple_report.show(results, "dp=2 on 2xcpu@1000Mbit/s", shown.append)
    assert any("Transfer from dp=2" in line for line in shown)
    assert "<polyline" in driple_report.picture(results, "dp=2 on 2xcpu@1000Mbit/s")


# Variants.


def test_a_source_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "variants.json"
    variants.run(
        "timm_train", None, tmp_path, out, only=(), rows=None, seeds=1, workers=1, on="cpu", say=quiet
    )  # fmt: skip
    assert not out.exists()
