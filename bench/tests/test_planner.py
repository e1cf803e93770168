"""The planner on a table of measured configurations, made up here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.pages import planner as pages
from foretell_bench.tables import spaces
from foretell_bench.tables.planner import Measured, Table, figures, loss_of, read, save, summaries
from foretell_bench.tables.planner import _Reached as Reached
from foretell_bench.tables.planner import _Runs as Runs

from foretell import Goal, Plan

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 4096, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2,
}  # fmt: skip


def row(plan: str, batch: int, seconds: float | None) -> Measured:
    return Measured(plan=Plan.parse(f"{plan},grad_accumulation=1"), batch=batch, seconds=seconds)


TABLE = Table(
    name="llama-1b, made up", model="1B", cluster="1x2xh100-sxm@efa-400g",
    rows=(row("dp=2", 1, 0.4), row("dp=2,zero=1", 1, 0.5), row("dp=1,tp=2", 1, None), row("dp=1,tp=2", 2, 0.8),
          row("dp=2", 2, 0.6), row("dp=2,zero=1", 2, 1.0), row("dp=1,pp=2", 2, None)),
)  # fmt: skip


def test_runs_look_up_what_was_measured_and_end_when_it_is_enough() -> None:
    runs = Runs(TABLE, until=0.35)
    assert runs(Plan.parse("dp=1,tp=2,grad_accumulation=1"), 1) is None
    assert runs(Plan.parse("dp=2,zero=1,grad_accumulation=1"), 1) == 0.5
    try:
        runs(Plan.parse("dp=2,grad_accumulation=1"), 1)  # 0.2 s per sample, and the best is 0.15
    except Reached:
        pass
    else:
        raise AssertionError("a third more than the best is near enough")
    assert runs.rates == [None, 0.25, 0.2]


@pytest.mark.nightly
def test_a_table_is_planned_measured_and_kept(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    source.write_text(json.dumps(SMALL))
    found = figures(TABLE, str(source))
    assert (found.configurations, found.crashing) == (7, 2)
    assert found.regret is None or found.regret >= 0
    assert 2 <= found.measured_runs <= 7
    assert found.measured_regret is not None
    assert found.measured_crashes <= 2
    assert found.cherrypick_runs_to_best <= found.cherrypick_runs <= 7
    save([found], tmp_path / "planner.json")
    assert read(tmp_path / "planner.json") == [found]
    [of_1b, *_] = summaries([found])
    assert of_1b.loss == loss_of(found.regret)
    assert found.three_runs_loss is not None
    assert found.three_runs_loss >= loss_of(found.measured_regret), "more runs lose no more"
    assert of_1b.three_runs_loss == found.three_runs_loss
    text = pages.markdown([found], summaries([found]))
    assert "| llama-1b, made up" in text
    assert len({line.count("|") for line in text.splitlines() if line}) == 1


def test_of_random_spaces_no_recommendation_is_beaten_and_no_limit_broken() -> None:
    found = spaces.run(12)
    assert sum(each.recommended for each in found) >= 4, "limits are drawn so that many can be kept"
    assert [figure.value for figure in spaces.figures(found)] == [0.0, 0.0, 0.0]
    assert spaces.draw(3) == spaces.draw(3)


def test_a_run_over_spaces_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of this engine are kept line by line; one that was cut off, or that another engine gave, is asked again."""
    answers = tmp_path / "spaces.jsonl"
    whole = spaces.run(3, workers=2, answers=answers)
    first, *others = answers.read_text().splitlines()
    older = [json.dumps(json.loads(line) | {"engine": "another"}) for line in others[:1]]
    answers.write_text("\n".join([first, *older, others[-1][:20]]) + "\n")
    asked: list[int] = []
    monkeypatch.setattr(spaces, "draw", lambda number, draw=spaces.draw: asked.append(number) or draw(number))
    assert spaces.run(3, answers=answers) == whole
    assert sorted(asked) == sorted({0, 1, 2} - {json.loads(first)["number"]})


def test_a_choice_that_is_beaten_is_counted() -> None:
    result = spaces.ask(spaces.draw(0), {batch: spaces.step(batch) for batch in (2, 8)})
    first = result.choices[0]
    slower = replace(first, time=first.time.times(1.1), cost=first.cost.times(1.1) if first.cost else None)
    assert spaces.beats(first, slower)
    assert not spaces.beats(slower, first)
    assert not spaces.beats(replace(first, headroom=0.02), replace(slower, headroom=0.5)), (
        "room counts, up to its margin"
    )
    goal = Goal(deadline=first.time.low / 10)
    assert spaces.judge(replace(result, recommended=slower, choices=(first, slower)), Goal()).beaten
    assert spaces.judge(replace(result, recommended=slower, choices=(first, slower)), goal).broken
