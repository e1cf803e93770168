"""Memory and power of measured steps: the figures that the model ships with are those that the results have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from foretell_bench.cli import app
from foretell_bench.tables import published, resources
from typer.testing import CliRunner

from foretell.cost.accuracy import FILE, Accuracy, shipped_accuracy
from foretell.cost.folder import check_seal, shipped, versions
from foretell.errors import InputError

RESULTS = Path(__file__).parents[1] / "results"
STEPS, JOBS = RESULTS / "resources.json", RESULTS / "published.json"


def test_what_the_model_ships_with_is_what_was_measured() -> None:
    """No figure of a page of accuracy is typed in: 8.3 % of error in the middle is a sigma of 0.123, not of 0.16."""
    jobs = published.read(JOBS).jobs
    assert resources.accuracy(resources.read(STEPS), jobs) == shipped_accuracy()
    [shown] = [
        f.value
        for f in published.figures(published.read(JOBS))
        if (f.source, f.measure) == ("all jobs", "step time, median error")
    ]
    assert shipped_accuracy().step_sigma == pytest.approx((shown or 0) / 0.6745, rel=1e-3)


def test_figures_are_written_into_a_models_folder(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shipped(), tmp_path / "model"))
    (folder / FILE).unlink(missing_ok=True)  # its own, or that of the version before
    told = CliRunner().invoke(
        app, ["resources", "--from", str(STEPS), "--jobs", str(JOBS), "--write", str(folder), "--json"]
    )
    assert told.exit_code == 0, told.output
    assert Accuracy.load(folder / FILE) == shipped_accuracy()
    assert "published jobs" in json.loads((folder / FILE).read_text())["sources"]["step_sigma"]
    for before in versions(shipped())[1:]:
        shutil.copytree(before, tmp_path / before.name)
    check_seal(folder)


def test_errors_of_memory_are_of_the_total(tmp_path: Path) -> None:
    step = resources.MeasuredStep(source="a", settings="{}", allocated=(90, 100), reserved=(110, 100), context=900)
    steps = [step, step]
    found = resources.accuracy(steps, published.read(JOBS).jobs)
    assert found.memory_sigma == pytest.approx(0.01 / 0.6745, abs=1e-4)
    resources.save(steps, tmp_path / "kept.json")
    assert resources.read(tmp_path / "kept.json") == steps
    (tmp_path / "kept.json").write_text("{}")
    with pytest.raises(InputError, match="foretell bench resources"):
        resources.read(tmp_path / "nothing.json")
