"""`foretell bench measure` on small data: the seeded design, packing, the card, sequences and designs."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from foretell_bench.checkout import DATA
from foretell_bench.measuring import captures, design, products_floor
from foretell_bench.measuring.h200 import card, collect, collect_sweeps, sequences, unseen
from foretell_bench.measuring.h200.architectures import FAMILY
from foretell_bench.measuring.h200.points import LATER, REPEATS, STEPS
from foretell_bench.measuring.h200.sweeps import SWEEPS
from foretell_bench.speed.store import made

from foretell.errors import RequirementNotMet
from foretell.measure.record import Record
from foretell.store.lines import RecordFile
from foretell.store.store import Store


@pytest.fixture(scope="module")
def records() -> list[Record]:
    chance = random.Random(1)
    known = ("timm/resnet18", "timm/resnet50")
    drawn = [made(number, chance) for number in range(len(known))]
    return [replace(r, step=replace(r.step, source=s, kernel_seconds=1.0)) for r, s in zip(drawn, known, strict=True)]


def test_the_dataset_is_of_the_seeded_design() -> None:
    """Points are drawn anew at every import: a change of the tables or of a name would draw others."""
    stored = {step.point for step in Store(DATA / "h200").steps("kind = 'step'")}
    keys = [point.key for point in STEPS]
    assert len(set(keys)) == len(keys)
    assert len(stored & set(keys)) > 0.9 * len(keys)
    assert {point.key for point in REPEATS} <= set(keys)
    assert not {point.key for point in LATER} & set(keys)


def test_families_are_those_of_the_dataset() -> None:
    known = json.loads((DATA / "h200" / "families.json").read_text())
    assert {source: family for source, family in FAMILY.items() if known.get(source) != family} == {}
    assert unseen.kin("hf/gpt2-xl") == "decoder"
    assert unseen.kin("torchvision/vgg19") == "cnn"


def test_sweeps_have_different_batches_of_one_setting() -> None:
    for sweep in SWEEPS.values():
        keys = [point.key for part in sweep.parts for point in part]
        assert len(keys) == len(set(keys))
        for part in sweep.parts:
            assert len({point.but_batch for point in part}) == 1


def test_records_are_packed_and_described(
    records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "records.jsonl"
    RecordFile(lines).append(records)
    packed = tmp_path / "records.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    store = tmp_path / "store"
    collect.run([packed], store)
    assert "2 records written" in capsys.readouterr().out
    collect.run([packed], store)
    assert "0 records written" in capsys.readouterr().out
    card.run(store)
    assert "2 steps: 2 points of 2 architectures" in capsys.readouterr().out


def test_records_keep_as_many_digits_as_they_are_worth(records: list[Record]) -> None:
    rounded = collect.rounded(records[0])
    for op in rounded.ops:
        assert op.device_seconds is None or float(f"{op.device_seconds:.4g}") == op.device_seconds
    assert collect.recorded_alone(records[0]) is False
    assert all(op.kernels == () for op in collect_sweeps.slim(records[0]).ops)


def test_sequences_are_compared_op_by_op() -> None:
    measured, captured = ["a", "b", "c", "d"], ["a", "x", "c", "d"]
    assert sequences.in_order(measured, captured) == 3
    assert sequences.difference(measured, captured) == [("b", "x")]


def test_a_store_is_compared_with_captures(
    records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    store.append(records)
    sequences.recorded(tmp_path / "store", tmp_path / "recorded.json.gz")
    with gzip.open(tmp_path / "recorded.json.gz", "rt") as file:
        found = json.load(file)
    assert len(found["steps"]) == 2
    broken = {**found["steps"][0], "source": "timm/no-such-network"}
    answer = sequences.compared((broken, found["names"]))
    assert "error" in answer
    capsys.readouterr()
    done = {**answer, "captured": 4, "same": 3, "alike": 2, "others": [["b", "x", 1]], "recorded": 4}
    del done["error"]
    sequences.show([answer, done])
    assert "1 of 2 steps captured; of 4 ops 75.00%" in capsys.readouterr().out


def test_a_design_is_judged_by_the_seconds_it_takes() -> None:
    curves: design.Curves = {
        "d-optimal": [(10.0, 0.4, 0.3, 0.5), (20.0, 0.2, 0.1, 0.3)],
        "random": [(10.0, 0.5, 0.4, 0.6), (40.0, 0.2, 0.1, 0.3)],
    }
    [found] = design.ratios(curves, [0.2])
    assert found["ratio"] == pytest.approx(2.0)
    assert design.seconds_to(curves["random"], 0.1) is None


def test_products_of_one_row_more_are_compared() -> None:
    seconds = {(16, 8, 8): 1e-3, (17, 8, 8): 2e-3, (16, 4, 4): 1e-3}
    assert products_floor.row_differences(seconds) == pytest.approx([np.log(2)])
    assert {products_floor.is_tested((16, n, 64)) for n in range(64)} == {False, True}


def test_names_that_are_known_are_not_captured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coverage.jsonl"
    good, bad = (captures.Outcome(name=f"timm/{n}", ok=n == "a", seconds=1.0, ops=5) for n in "ab")
    captures.write_results(out, {each.name: each for each in (good, bad)})
    monkeypatch.setattr(captures, "all_names", lambda library: ["timm/a"])
    captures.run(out, captures.Options(libraries=["timm"]))
    assert "100.0%" in capsys.readouterr().out
    monkeypatch.setattr(captures, "all_names", lambda library: ["timm/a", "timm/b"])
    with pytest.raises(RequirementNotMet, match="1 of 2 names"):
        captures.run(out, captures.Options(libraries=["timm"]))
    assert captures.read_results(out) == {"timm/a": good, "timm/b": bad}
