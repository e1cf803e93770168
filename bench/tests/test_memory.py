"""`foretell bench memory` on small data: what is measured is what the files hold, and how errors are shown."""

import json
from pathlib import Path

import pytest
from foretell_bench.checkout import DATA
from foretell_bench.cli import app
from foretell_bench.measuring.memory import campaign, collect, compare, fit_convolution
from foretell_bench.measuring.memory.configurations import LIMITS, STEPS, UNSEEN, key
from typer.testing import CliRunner

from foretell import Graph
from foretell.errors import RequirementNotMet
from foretell.simulate.memory import replay
from foretell.sources.resolve import find_function

BASES = Path(__file__).parents[2] / "tests" / "fuzz" / "bases"


@pytest.mark.parametrize(("part", "configurations"), [("steps", STEPS), ("unseen", UNSEEN), ("limits", LIMITS)])
def test_files_are_of_the_configurations(part: str, configurations: list[campaign.Configuration]) -> None:
    rows = {row["key"]: row for row in collect.lines(DATA / f"h200_memory_{part}.jsonl")}
    known = {key(each): each for each in configurations}
    assert len(known) == len(configurations)
    assert rows.keys() <= known.keys()
    for name, row in rows.items():
        assert collect.portable(known[name])["source"] == row["source"]
        assert row["settings"] == known[name]["settings"]


def test_steps_of_our_own_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for each in STEPS:
        if each["source"].startswith("foretell_bench."):
            assert find_function(each["source"]).__name__ == each["source"].rpartition(":")[2]


def folder_of(tmp_path: Path, name: str) -> tuple[Path, dict[str, object]]:
    """A folder as a campaign leaves it, of one step that allocates what its replay says."""
    graph = Graph.load(BASES / f"{name}.graph")
    graph.save(tmp_path / f"{name}.graph")
    inside = [(0, 0, 0)] * len(graph.ops)
    (tmp_path / f"{name}.inside.json").write_text(json.dumps(inside))
    trace = replay(graph)
    peaks = {"peak_allocated": trace.peak_allocated, "peak_reserved": trace.peak_reserved}
    return tmp_path, {"key": name, "source": "timm/resnet18", "settings": {}, **peaks}


def test_steps_are_compared_with_their_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, row = folder_of(tmp_path, "cnn")
    monkeypatch.setattr(compare, "lines", lambda path: [row, {**row, "key": "no-such-graph"}])
    monkeypatch.setattr(compare, "TARGETS", {"allocated": 1e9, "reserved": 1e9})
    compare.run(["steps"], compare.Graphs(recorded=folder))
    shown = capsys.readouterr().out
    assert "no graph of no-such-graph" in shown
    assert "1 steps of 1 architectures" in shown
    monkeypatch.setattr(compare, "TARGETS", {"allocated": -1.0, "reserved": -1.0})
    with pytest.raises(RequirementNotMet, match="above the target"):
        compare.run(["steps"], compare.Graphs(recorded=folder), show_ops=True)
    assert "MiB measured" in capsys.readouterr().out


def test_a_folder_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, row = folder_of(tmp_path, "cnn")
    for part in ("steps", "unseen", "limits", "sweep"):
        (folder / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(collect, "DATA", tmp_path / "data")
    collect.run(folder, "h200")
    packed = tmp_path / "data"
    assert [collect.portable(row)] == collect.lines(packed / "h200_memory_steps.jsonl")
    assert {row["source"] for row in collect.lines(packed / "h200_memory_inside.jsonl.gz")} == {"timm/resnet18"}


def test_what_a_child_left_becomes_a_row(tmp_path: Path) -> None:
    configuration = {"source": "timm/resnet18", "settings": {"batch": "2"}}
    campaign.leave(configuration, tmp_path, {"peak_allocated": 5})
    row = campaign.finished(configuration, tmp_path, 0.0, late=False)
    assert (row["key"], row["peak_allocated"]) == ("resnet18__batch-2", 5)
    assert campaign.finished(configuration, tmp_path, 0.0, late=True)["error"] == "late"
    assert "resnet18__batch-2" in campaign.shown(row)
    assert [len(campaign.work(part, tmp_path, True)[0]) for part in ("steps", "unseen", "limits", "probes")] == [
        len(STEPS),
        len(UNSEEN),
        len(LIMITS),
        1,
    ]


def test_trees_explain_measured_workspaces() -> None:
    rows = [row for row in collect.lines(fit_convolution.SWEEPS[1]) if "error" not in row][:300]
    found = fit_convolution.from_sweep(rows)
    name, examples = max(found.items(), key=lambda item: len(item[1]))
    op = name.split()[0]
    trees = fit_convolution.fit(examples, op)
    right = [fit_convolution.predict(trees, p, op) >= 0 for p, _ in examples[:20]]
    assert all(right)
    assert {algorithm for tree in trees for algorithm in tree["algorithms"]} <= set(fit_convolution.NAMES)


def test_a_limit_that_was_not_measured_is_an_error() -> None:
    assert CliRunner().invoke(app, ["memory", "limits", "--only", "no-such-step"]).exit_code == 2
