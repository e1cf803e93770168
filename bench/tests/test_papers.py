"""Jobs of papers: what is asked is possible, and what is kept is shown again."""

from __future__ import annotations

from pathlib import Path

import pytest
from foretell_bench.tables import papers

import foretell
from foretell.errors import InputError
from foretell.hardware import Cluster


def test_every_plan_is_for_its_cluster() -> None:
    for paper in papers.PAPERS:
        foretell.Plan.parse(paper.plan).check_devices(Cluster.parse(paper.on).devices)
        assert paper.says is None or paper.within > 0


def test_what_was_found_is_kept_and_judged(tmp_path: Path) -> None:
    llama, deepseek = papers.PAPERS[0], papers.PAPERS[2]
    found = [
        papers.Answered(name=llama.name, seconds=11.0, bare=10.0, value=0.46, fits=True, gibibytes=70.0),
        papers.Answered(name=deepseek.name, why="PlanError: no"),
    ]
    path = tmp_path / "papers.json"
    papers.save(found, path)
    assert papers.read(path) == found
    error, fits, refused, neither = papers.figures(found)
    assert (error.value, error.met) == (pytest.approx(0.46 / 0.43 - 1), True)
    assert (fits.value, fits.met) == (1.0, True)
    assert (refused.value, refused.met, neither.met) == (None, False, False)
    assert "PlanError" in refused.note


def test_one_job_is_named_by_a_part_of_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="DeepSeek-V3"):
        papers.run(only="no such paper")
    (tmp_path / "other.json").write_text('[{"name": "somebody else"}]')
    with pytest.raises(InputError, match="somebody else"):
        papers.read(tmp_path / "other.json")
