"""`foretell bench peers`: other tools on the same jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from foretell_bench.peers.tool import PeerAnswer, effort, question_of
from foretell_bench.peers.tools import MEM_TRACKER, Foretell, Stored, WrittenScript, ZeroFormula, stored
from foretell_bench.sources.published_steps import Job, jobs
from foretell_bench.tables import peers

from bench.tests.test_published import row, written


@pytest.fixture
def job(tmp_path: Path) -> Job:
    [made] = jobs(written(tmp_path, row())).items
    return made


def test_the_formula_shares_each_part_by_its_stage(job: Job) -> None:
    from foretell_bench.graphs import graph_of

    parameters = graph_of(job.ask.model).facts.parameters
    assert parameters is not None
    assert ZeroFormula().answer(job).memory == parameters * (2 + 2 + 12 // 2)  # zero=1 on two


def test_a_script_answers_in_a_process_of_its_own_or_says_why_not(job: Job, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(
        "import json, sys\nprint(json.dumps({'seconds': json.load(sys.stdin)['devices']}))"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit('no GPU')")
    found = [
        WrittenScript(name="a", file=str(tmp_path / name), start=(sys.executable,)).answer(job)
        for name in ("fine.py", "bad.py")
    ]
    assert (found[0].seconds, found[1].why) == (2, "no GPU")
    assert "wrappers" in MEM_TRACKER.answer(job).why


def test_answers_of_others_are_read_as_they_kept_them(job: Job, tmp_path: Path) -> None:
    line = {"id": job.id, "tool": "other", "setting": "usual", "error_of_seconds": -0.5, "reserved_gib": 2.0}
    (tmp_path / "peers.jsonl").write_text(json.dumps(line))
    [tool] = stored(tmp_path)
    assert tool.answer(job) == PeerAnswer(seconds=0.005, memory=2 * 2**30)


def test_tools_are_compared_on_the_jobs_that_both_answer_and_failures_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        name, written = "broken", "one\n# not this\ntwo"

        def answer(self, job: Job) -> PeerAnswer:
            raise ValueError("its own fault")

    rival = Stored(name="rival", found={"a/1": {"error_of_seconds": 1.0}})
    monkeypatch.setattr(peers, "tools", lambda data, other: [Foretell(), rival, Broken()])
    data = written(tmp_path, row(), row(id="a/2", seconds=None))
    found = peers.run(data, keep=tmp_path / "kept.json")
    assert peers.read(tmp_path / "kept.json") == found
    table = {(f.source, f.measure): f for f in peers.figures(found)}
    assert table["rival", "step time, median error"].value == pytest.approx(1.0)
    assert table["rival", "step time, Foretell on the same jobs"].rows == 1
    assert table["rival", "jobs with an answer"].value == 0.5
    assert "2 ValueError" in table["broken", "jobs with an answer"].note
    assert effort(Broken()) == found.lines["broken"] == 2
    assert "| rival | 100.0% |" in peers.page_table(found)


def test_what_is_written_for_a_tool_takes_the_question_as_it_is(job: Job) -> None:
    question = question_of(job)
    assert (question["config"]["model_type"], question["zero"], question["precision"]) == ("llama", 1, "bf16")
    assert effort(Foretell()) == 1 < effort(MEM_TRACKER)
