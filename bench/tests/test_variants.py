"""Variants on the same folds and seeds: kept fit by fit, and compared fold by fold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.methods.nearest import NearestNetwork
from foretell_bench.tables import variants

from foretell.methods.conformance import CHECKS, check, made_up
from foretell.methods.dnnabacus import DNNAbacus
from foretell.methods.protocol import STEP_TIME


def test_an_architecture_is_in_one_fold() -> None:
    examples = made_up()
    by = {}
    for e, fold in zip(examples, variants.folds(examples), strict=True):
        assert by.setdefault(e.query.architecture, fold) == fold
    assert len(set(by.values())) == 4  # as many as there are architectures


def test_batches_of_every_architecture_are_left_out() -> None:
    examples = made_up()
    found = variants.folds(examples, 2, rows=True)
    assert set(found) == {0, 1}
    assert abs(found.count(0) - found.count(1)) <= 1


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    examples, lines = made_up(), list[str]()
    kept = tmp_path / "variants.json"
    variants.run("made up", examples, kept, only=["nearest network"], say=lines.append)
    assert len(lines) == 4
    variants.run("made up", examples, kept, only=["nearest network", "additive"], say=lines.append)
    assert len(lines) == 8  # the second one's alone
    rows = variants.table(variants.read(kept))
    assert [row[:2] for row in rows] == [("made up", "additive"), ("made up", "nearest network")]
    assert all(row[-1] == "4" for row in rows)


def test_ratios_are_of_the_same_fold_and_seed() -> None:
    def fit(variant: str, fold: int, mean: float) -> dict[str, object]:
        return {"source": "s", "variant": variant, "fold": fold, "seed": 0, "mean": mean}

    found = {str(i): fit(v, f, m) for i, (v, f, m) in enumerate(
        [("ScaleDL", 0, 0.1), ("ScaleDL", 1, 0.4), ("ScaleDL, messages cut", 0, 0.2), ("ScaleDL, messages cut", 1, 0.4)])}  # fmt: skip
    assert variants.table(found)[1][4] == "1.50 (1.05 to 1.95)"


def test_the_nearest_network_keeps_to_the_protocol() -> None:
    assert check(NearestNetwork) == tuple(CHECKS)


@pytest.mark.nightly
def test_trees_are_chosen_on_architectures_left_out() -> None:
    examples = [replace(e, measured={STEP_TIME: e.measured[STEP_TIME]}) for e in (*made_up(), *made_up())]
    tuned, plain = DNNAbacus().fit(examples), DNNAbacus(tuned=False).fit(examples)
    assert set(plain.chosen_.values()) == {0}
    assert DNNAbacus(chosen={STEP_TIME: 3}).fit(examples).chosen_ == {STEP_TIME: 3}
    assert set(tuned.chosen_) == set(plain.chosen_)
    assert all(answer.values[STEP_TIME] > 0 for answer in tuned.predict([e.query for e in examples]))


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_every_variant_can_be_made(name: str) -> None:
    assert variants.VARIANTS[name](0, "cpu").name
