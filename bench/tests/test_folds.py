"""Methods on folds and seeds: who is left out, what is kept of each row, and what ratios and intervals are of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.pages.method_folds import errors, ratios
from foretell_bench.sources.drawn import SourceRows, check, key_of, seal
from foretell_bench.tables import folds, paired
from foretell_bench.tables.folds import Fit, Task, folds_of, groups
from foretell_bench.tables.paired import Folds, Measured

from foretell.errors import InputError
from foretell.methods.conformance import made_up
from foretell.methods.protocol import STEP_TIME


def drawn(blind: int = 6) -> SourceRows:
    rows = made_up()
    rows = [replace(e, query=replace(e.query, architecture=f"net {i % 12}")) for i, e in enumerate(rows)]
    return SourceRows(source="made up", opened=tuple(rows[blind:]), blind=tuple(rows[:blind]))


def test_no_group_is_learned_from_and_predicted() -> None:
    rows = drawn()
    for seed in range(3):
        opened, blind = folds_of(rows, seed)
        for fold in range(folds.FOLDS):
            tested = {groups(rows)(e) for e, f in zip(rows.opened, opened, strict=True) if f == fold}
            tested |= {groups(rows)(e) for e, f in zip(rows.blind, blind, strict=True) if f == fold}
            learned = {groups(rows)(e) for e, f in zip(rows.opened, opened, strict=True) if f != fold}
            assert not tested & learned
    assert folds_of(rows, 0) != folds_of(rows, 1)


def test_few_architectures_are_left_out_by_cluster_or_plan() -> None:
    rows = drawn()
    few = SourceRows(
        source="few", opened=tuple(replace(e, query=replace(e.query, architecture="one")) for e in rows.opened)
    )
    assert groups(few)(few.opened[0]) != "one"


def test_every_open_and_every_blind_row_is_predicted_once_a_seed() -> None:
    rows = drawn()
    fits = [folds.fit({"made up": rows}, Task("made up", "additive", 0, fold)) for fold in range(folds.FOLDS)]
    opened = sorted(i for one in fits for i in one.opened)
    blind = sorted(i for one in fits for i in one.blind)
    assert opened == list(range(len(rows.opened)))
    assert blind == list(range(len(rows.blind)))
    assert all(values[STEP_TIME] > 0 for one in fits for values in one.opened.values())


def test_a_black_box_is_not_scored_on_what_it_ran() -> None:
    rows = drawn(blind=0)
    found = folds.fit({"made up": rows}, Task("made up", "ernest", 0, 0))
    tested = sum(fold == 0 for fold in folds_of(rows, 0)[0])
    assert 0 < found.trained < tested
    assert len(found.opened) <= tested - found.trained


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    rows, save = {"made up": drawn()}, tmp_path / "fits.jsonl"
    folds.run(rows, save, only=["additive"], seeds=1)
    before = save.read_text()
    assert len(before.splitlines()) == folds.FOLDS
    folds.run(rows, save, only=["additive"], seeds=1)
    assert save.read_text() == before
    paired.pack(folds.read(save), list(rows.values()), tmp_path / "all.jsonl.gz")
    kept = paired.load(tmp_path / "all.jsonl.gz")
    assert [one.task for one in kept.fits] == [one.task for one in folds.read(save)]
    assert kept.mean("made up", "additive", "opened") is not None


def test_blind_rows_are_those_that_were_drawn(tmp_path: Path) -> None:
    rows, seals = drawn(), tmp_path / "seals.json"
    seals.write_text(json.dumps({"made up": seal(rows.blind)}))
    check(rows, seals)
    first = rows.blind[0]
    changed = replace(first, measured={**first.measured, STEP_TIME: 2 * first.measured[STEP_TIME]})
    assert key_of(changed) != key_of(first)
    with pytest.raises(InputError, match="not those of"):
        check(replace(rows, blind=(changed, *rows.blind[1:])), seals)


def a_comparison(rows: int = 40, wrong: float = 0.2) -> Folds:
    """Foretell is 10 % off, the other `wrong`, and has no answer for the last row."""
    measured = [Measured(group=f"g{i % 8}", values={STEP_TIME: 2.0}) for i in range(rows)]
    about = {"source": "s", "seed": 0, "fold": 0, "trained": 1, "seconds": 0.0, "blind": {}}
    ours = Fit(method="foretell", opened={i: {STEP_TIME: 2.2} for i in range(rows)}, **about)  # type: ignore[arg-type]
    other = Fit(method="other", opened={i: {STEP_TIME: 2.0 * (1 + wrong)} for i in range(rows - 1)}, **about)  # type: ignore[arg-type]
    return Folds(fits=[ours, other], measured={"s": {"opened": measured, "blind": []}})


def test_a_ratio_is_of_rows_that_both_answered() -> None:
    found = a_comparison().ratio("s", "other", "foretell", "opened")
    assert found is not None
    assert (found.rows, found.groups) == (39, 8)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)
    squares = a_comparison().rmse_ratio("s", "other", "foretell", "opened")
    assert squares is not None
    assert squares.value == pytest.approx(2.0)


def test_a_ratio_of_few_rows_is_not_told() -> None:
    assert a_comparison(rows=30).ratio("s", "other", "foretell", "opened") is None


def test_an_interval_is_wider_where_groups_differ() -> None:
    one = a_comparison()
    for i in range(39):
        one.fits[1].opened[i][STEP_TIME] = 2.0 * (1 + 0.1 * (1 + i % 8))  # type: ignore[index]
    found = one.ratio("s", "other", "foretell", "opened")
    assert found is not None
    assert found.low < 0.85 * found.value < found.value < 0.87 * found.high / 0.8


def test_tables_say_each_method_over_ours() -> None:
    heads, rows = ratios(a_comparison(), "opened")
    assert heads[-1] == "s"
    assert rows == [("other", "2.00", "1 of 1", "0", "2.00 (2.00–2.00)")]
    _, table = errors(a_comparison(), "opened")
    assert table[0][0] == "foretell"
    assert table[1][1] == "20.0% (20.0–20.0) †"
