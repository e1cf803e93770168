"""`foretell compare`, `sweep` and `check`: what-if questions, and limits in pipelines."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from foretell.cli import app
from foretell.errors import InputError
from foretell.planner.agreed import read_agreement
from tests.parallel.models import graph


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    graph("llama").save(tmp_path / "llama.graph")
    graph("cnn").save(tmp_path / "cnn.graph")
    return tmp_path


def test_compare_has_a_row_for_each_question(saved: Path) -> None:
    asked = [
        "compare",
        "llama.graph on=2xh100-sxm plan=dp:1/tp:2",
        "llama.graph plan=dp:1/tp:3 on=3xh100-sxm",
        "cnn.graph",
    ]
    ran = CliRunner().invoke(app, [*asked, "--on", "h200", "--model", "roofline", "--json", "--html", "a.html"])
    assert ran.exit_code == 0, ran.output
    rows = json.loads(ran.stdout)
    assert [r["forecast"] and r["forecast"]["plan"] for r in rows] == ["dp=1,tp=2", None, "dp=1"]
    assert "cannot share" in rows[1]["why"]
    assert (saved / "a.html").read_text().count('role="img"') == 2  # charts; marks of legends are drawn too
    assert CliRunner().invoke(app, ["compare", "cnn.graph"]).exit_code == 2
    assert CliRunner().invoke(app, ["compare", "cnn.graph batch", "--on", "h200"]).exit_code == 2


def test_sweep_multiplies_out_and_writes_csv(saved: Path) -> None:
    asked = ["sweep", "llama.graph", "--on", "2xh100-sxm", "--on", "2xl40s", "--plan", "dp=2", "--plan", "dp=2,zero=3"]
    ran = CliRunner().invoke(app, [*asked, "--model", "roofline", "--csv", "out.csv"])
    assert ran.exit_code == 0, ran.output
    rows = list(csv.DictReader((saved / "out.csv").open()))
    assert [(r["cluster"], r["plan"]) for r in rows] == [
        (c, p) for c in ("2xh100-sxm", "2xl40s") for p in ("dp=2", "dp=2,zero=3")
    ]
    assert all(float(r["step_seconds"]) > 0 for r in rows)


def agree(folder: Path, **limits: object) -> list[str]:
    lines = [f"    {name}: {value}" for name, value in limits.items()]
    (folder / "plan.yaml").write_text("\n".join(["steps:", "  - source: cnn.graph", "    on: h200", *lines, ""]))
    return ["check", "plan.yaml", "--model", "roofline"]


def test_check_exits_with_3_where_a_limit_is_not_kept(saved: Path) -> None:
    kept = CliRunner().invoke(app, agree(saved, step_time="1 s", memory="100 GiB", cost=1))
    assert kept.exit_code == 0, kept.output
    late = CliRunner().invoke(app, [*agree(saved, step_time="1 ns", memory="100 GiB"), "--markdown"])
    assert late.exit_code == 3
    assert late.stdout.count("✅") == 1
    assert late.stdout.count("❌") == 1
    assert "1 of 2 limits are not kept" in late.stderr


def test_the_examples_for_pipelines_run_the_check(saved: Path) -> None:
    """The workflow as GitHub's schema has it; the hook's command as pre-commit runs it."""
    examples = Path(__file__).parents[2] / "examples" / "ci"
    validator = Path(sys.executable).parent / "check-jsonschema"
    if validator.is_file():
        asked = [validator, "--builtin-schema", "vendor.github-workflows", examples / "foretell-check.yml"]
        ran = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    config = yaml.safe_load((examples / "pre-commit-config.yaml").read_text())
    [hook] = config["repos"][0]["hooks"]
    program, *arguments = hook["entry"].split()
    assert (program, hook["language"], hook["pass_filenames"]) == ("foretell", "system", False)
    agree(saved, step_time="1 ns")
    assert CliRunner().invoke(app, arguments).exit_code == 3


def test_a_tolerance_stretches_every_limit(saved: Path) -> None:
    asked = agree(saved, step_time="1 s")
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    exact = told[0]["forecast"]
    agree(saved, step_time=f"{exact * 0.96:.9f} s")
    assert CliRunner().invoke(app, asked).exit_code == 3
    (saved / "plan.yaml").write_text((saved / "plan.yaml").read_text() + "tolerance: 0.05\n")
    assert CliRunner().invoke(app, asked).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: []", "has no list of steps"),
        ("steps: [1]", "a step is a table"),
        ("steps: [{source: a.graph, on: h200}]", "has no limit"),
        ("steps: [{source: a.graph, step_time: 1 s}]", "a step needs on"),
        ("steps: [{source: a.graph, on: h200, step_tim: 1 s}]", "Did you mean 'step_time'"),
        ("steps: [{source: a.graph, on: h200, cost: x}]", "dollars per step"),
        ("a: [", "is no YAML"),
        ("steps: [{source: a.graph, on: h200, cost: 1}]\ntolerance: -1", "tolerance must be"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_agreement(path)
