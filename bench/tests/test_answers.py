"""The table of questions: asked of a small step, compared digit for digit, differences by their reason."""

import json
from pathlib import Path

import pytest
from foretell_bench.answers import compare
from foretell_bench.answers.asking import ask_all, read_answers
from foretell_bench.answers.questions import Question, questions
from foretell_bench.answers.reasons import REASONS, Difference, Reason
from foretell_bench.cli import app
from typer.testing import CliRunner

SOURCE = """
import foretell, torch

def linear(batch: int = 4) -> foretell.Workload:
    return foretell.Workload(
        name="linear",
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda: {"x": torch.randn(batch, 8)},
        loss=lambda model, b: model(b["x"]).sum(),
    )
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "linear.py").write_text(SOURCE)
    source = f"{folder}/linear.py:linear"
    asking = [
        Question(source=source, settings={"batch": "8"}, on="h200"),
        Question(source=source, settings={"batch": "8"}, on="2xt4", plan="dp=2", conditions={"trainer": 0.0}),
        Question(source=source, settings={"batch": "8"}, on="2xt4", plan="dp=3"),
        Question(verb="scale", source=source, settings={"batch": "8"}, on="l4"),
        Question(verb="fit_batch", source=source, settings={}, on="8xh200", plan="dp=4"),
    ]
    reported: list[str] = []
    ask_all(asking, folder / "out.jsonl.gz", workers=1, progress=reported.append)
    assert reported[-1] == "5 of 5 questions answered"
    return folder / "out.jsonl.gz"


@pytest.mark.nightly
def test_a_run_that_was_stopped_goes_on_where_it_was(answered: Path, tmp_path: Path) -> None:
    rows = list(read_answers(answered).values())
    asking = [Question(**row["question"]) for row in rows]
    marked = [{**row, "plan": "as it was"} for row in rows]
    (tmp_path / "again.jsonl.part").write_text("".join(json.dumps(row) + "\n" for row in marked))
    ask_all(asking, tmp_path / "again.jsonl", workers=1, progress=lambda text: None)
    assert list(read_answers(tmp_path / "again.jsonl").values()) == marked


def test_there_are_enough_questions_and_none_twice() -> None:
    every = questions()
    assert len({question.key for question in every}) == len(every) >= 1000
    assert {question.verb for question in every} == {"forecast", "fit_batch", "scale"}
    assert {question.source for question in questions("hf/gpt2")} == {"hf/gpt2"}


def test_answers_have_the_numbers_of_the_contract_and_refusals_their_text(answered: Path) -> None:
    forecast, spread, refused, scaled, fitted = read_answers(answered).values()
    assert forecast["step_time.low"] < forecast["step_time.seconds"] < forecast["step_time.high"]
    assert forecast["memory.ranks"][0][1] == 1
    assert spread["trainer.seconds"] == 0.0
    assert refused["error"].startswith("PlanError: ")
    assert scaled["step_time.seconds.at_1"] > 0
    assert scaled["plan"] == "dp=64"
    assert fitted["error"]


def test_equal_answers_are_counted_as_the_same(answered: Path) -> None:
    rows = read_answers(answered)
    found = compare.compare(rows, rows)
    assert (found.questions, found.same, found.missing, found.unexplained) == (5, 5, 0, ())


def test_differences_are_grouped_by_the_defect_that_explains_them(
    answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_answers(answered)
    after = {key: dict(row) for key, row in before.items()}
    first, _, third, *_ = after.values()
    first["memory.total"] *= 2
    first["step_time.high"] += 1.0
    third["error"] = "PlanError: other words"
    wide = Reason(text="intervals were too narrow", explains=lambda d: d.field == "step_time.high")
    monkeypatch.setattr(compare, "REASONS", (wide,))
    found = compare.compare(before, after)
    assert found.same == 3
    assert {d.field for d in found.unexplained} == {"memory.total", "error"}
    assert "| intervals were too narrow | 1 | step_time |" in compare.markdown(found)
    assert "| not explained | 2 | error, memory | 100.00% |" in compare.summary(found)

    other = tmp_path / "after.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in after.values()))
    page = tmp_path / "page.md"
    page.write_text("<!-- table: answers -->\n<!-- end -->\n")
    ran = CliRunner().invoke(app, ["answers", "--compare", str(answered), str(other), "--page", str(page)])
    assert ran.exit_code == 3
    assert "5 questions in both files, 3 answered the same" in ran.stdout
    assert "| not explained | 2 |" in page.read_text()


@pytest.mark.parametrize(
    ("on", "precision", "explained"),
    [
        ("t4", "tf32", "no units"),
        ("t4", "torch-fp32", "no units"),
        ("4xv100-16g-sxm", "compute:bf16/reduce:fp32", "no units"),
        ("t4", "amp-fp16", "not explained"),
        ("h200", "tf32", "not explained"),
        ("t4", "parameters:bf16/master:fp32", "no units"),
        ("m3-max", "fp32", "check bits"),
    ],
)
def test_reasons_explain_what_their_defect_changed_and_no_more(on: str, precision: str, explained: str) -> None:
    question = {"verb": "forecast", "settings": {"precision": precision}, "on": on}
    difference = Difference(question=question, field="step_time.seconds", before=1.0, after=2.0)
    text = next((reason.text for reason in REASONS if reason.explains(difference)), compare.UNEXPLAINED)
    assert explained in text
    assert difference.change == 1.0


@pytest.mark.parametrize(
    ("verb", "on", "field", "explained"),
    [
        ("forecast", "8xh200", "step_time.low", "0.943"),
        ("scale", "h200", "step_time.high", "0.943"),
        ("forecast", "h200", "step_time.low", "not explained"),
        ("forecast", "8xh200", "step_time.seconds", "not explained"),
        ("forecast", "h200", "energy.joules_per_step", "busy and idle"),
        ("forecast", "h200", "memory.fit_probability", "forecast of memory"),
        ("fit_batch", "h200", "batch", "forecast of memory"),
        ("forecast", "h200", "memory.total", "not explained"),
        ("forecast", "h200", "error", "not explained"),
    ],
)
def test_reasons_are_of_the_fields_they_change(verb: str, on: str, field: str, explained: str) -> None:
    question = {"verb": verb, "settings": {}, "on": on}
    difference = Difference(question=question, field=field, before=1.0, after=2.0)
    text = next((reason.text for reason in REASONS if reason.explains(difference)), compare.UNEXPLAINED)
    assert explained in text


def test_one_of_the_two_ways_must_be_chosen() -> None:
    assert CliRunner().invoke(app, ["answers"]).exit_code == 2


def test_every_difference_from_the_last_release_is_explained_on_its_page() -> None:
    bench = Path(__file__).parents[1]
    before, after = (read_answers(bench / "results" / f"answers-{name}.jsonl.gz") for name in ("0.1", "0.2"))
    found = compare.compare(before, after)
    assert found.questions >= 1000
    assert found.unexplained == ()
    assert compare.markdown(found) in (bench / "notes" / "answers.md").read_text(encoding="utf-8")
