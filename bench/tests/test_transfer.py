"""The benchmark of few step times on made-up files: what was put in is found, and nothing is tested that was drawn."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.pages.transfer import fill
from foretell_bench.research.few_rows import Rivals, seen
from foretell_bench.sources.adapted import SETTINGS, product_graph
from foretell_bench.sources.settings import Row, halves, is_blind, left_out_in_turn
from foretell_bench.tables.tailoring import curve, figures, tailored
from foretell_bench.tables.transfer import OURS, RANDOM, ZERO_SHOT, Line, TransferErrors, read, run, save
from typer.testing import CliRunner

import foretell
from foretell.cli import app
from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.store.importers import formats

SLOWER = foretell.Profile(name="slower", device=1.5)
SHAPES = [(m, n, k) for m in (2048, 4096) for n, k in itertools.product((1024, 1536, 2048, 3072, 4096), repeat=2)]
PAGE = "".join(
    f"<!-- table: {n} -->\n<!-- end -->\n" for n in ("errors", "started", "rivals", "blind", "intervals", "tailoring")
)


def write(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    theirs = {column.ours: column.theirs for column in formats()[name].columns}
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(theirs.values()))
        writer.writeheader()
        writer.writerows({theirs[ours]: value for ours, value in row.items()} for row in rows)


def row(part: str, key: str = "a", network: str = "n", seconds: float = 1.0) -> Row:
    return Row(
        key=f"{part}/{key}", load=lambda: None, cluster=Cluster.parse("t4"), plan=Plan(), seconds=seconds, part=part,
        network=network,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products as an A100 would take them that is half as slow again as ours; thin, short and fp8 ones are left out."""
    made = tmp_path_factory.mktemp("data")
    rows = []
    for m, n, k in SHAPES:
        step = foretell.forecast(product_graph(m, n, k, "bfloat16"), "a100-80g-sxm", profile=SLOWER).step_time.seconds
        rows.append(
            {"device": "NVIDIA A100-SXM4-80GB", "dtype": "bfloat16", "m": m, "n": n, "k": k, "seconds": step * 10}
        )
    odd = rows[0] | {"dtype": "fp8"}, rows[0] | {"m": 1}, rows[0] | {"seconds": 0.001}
    write(made, "gemm", [*rows, *odd])
    return made


def test_a_profile_finds_what_was_put_in(folder: Path) -> None:
    (found,) = run(folder, ["gemm"], seeds=1, numbers=(5,))
    lines = {(line.method, line.drawn): line for line in found.lines}
    zero, ours = lines[ZERO_SHOT, "none"], lines[OURS, RANDOM]
    assert zero.mean == pytest.approx(1 / 3, abs=0.02)
    assert ours.mean < 0.02
    assert ours.blind is not None
    assert ours.blind < 0.02
    assert lines["zero-shot, scaled", RANDOM].mean < 0.02
    assert lines["ridge from scratch", RANDOM].mean > ours.mean
    assert "structural-matrix trees, pre-trained" not in {
        line.method for line in found.lines
    }  # no other device is there
    assert found.left_out["gemm: a100-80g-sxm"] == {"not bf16, thinner than 16 rows or shorter than 20 µs": 3}


def test_nothing_tested_was_drawn() -> None:
    rows = [row(f"network {i}", key) for i in range(60) for key in "ab"]
    fold = halves(rows)
    assert not {r.part for r in fold.drawn} & {r.part for r in fold.tested}
    assert not any(r.blind for r in fold.drawn)
    assert {r.blind for r in fold.tested} == {True, False}
    assert halves(rows[::-1]) == fold  # whatever the order of rows
    for fold in left_out_in_turn(rows, 20, 10):
        assert not {r.part for r in fold.drawn} & {r.part for r in fold.tested}


def test_parts_are_left_out_in_turn() -> None:
    rows = [row("large", f"{i}") for i in range(10)] + [row("small", f"{i}") for i in range(10)]
    folds = left_out_in_turn(rows, 20, 10)
    assert [{r.part for r in fold.tested} for fold in folds] in ([{"large"}, {"small"}], [{"small"}, {"large"}])


def test_names_say_what_is_blind() -> None:
    assert is_blind("alexnet")  # its hash ends in 7
    assert not is_blind("vgg11")  # in 6


def test_pre_trained_rivals_are_scaled_to_the_new_device() -> None:
    def of(m: int, n: int, factor: float) -> Any:
        graph = product_graph(m, n, 1024, "bfloat16")
        return seen(row("p", f"{m}-{n}", seconds=factor * m * n * 1e-9), graph)

    others = [of(m, n, 1.0) for m in (128, 256, 512, 1024) for n in (256, 512, 1024)]
    drawn, tested = [of(128, 512, 3.0), of(512, 256, 3.0)], [of(256, 1024, 3.0)]
    found = dict(Rivals(drawn, tested, others, {}).predict([0, 1]))
    assert found["ridge, pre-trained"][0] == pytest.approx(tested[0].seconds, rel=0.1)


def line(method: str, number: int, mean: float) -> Line:
    return Line(
        source="gemm", name="a", method=method, drawn=RANDOM if number else "none", number=number, open=mean, blind=mean,
        mean=mean, spread=(mean, mean), rows=8, inside=0.9, width=2.0, fit_seconds=1.0, measured_seconds=number,
    )  # fmt: skip


LINES = [
    line(ZERO_SHOT, 0, 0.3), line(OURS, 5, 0.1), line(OURS, 10, 0.25), line(OURS, 20, 0.15), line(OURS, 50, 0.1),
    line("ridge from scratch", 5, 0.5), line("ridge from scratch", 50, 0.2), line("trees from scratch", 50, 0.4),
]  # fmt: skip


def test_an_error_must_stay_low_to_count() -> None:
    (found,) = tailored(LINES)
    assert (found.rival, found.level, found.scratch.number) == ("ridge from scratch", 0.2, 50)
    assert found.ours is not None
    assert found.ours.number == 20  # after 10 it was worse again
    assert found.ours.seconds == 20 * 50 + 1
    assert found.ratio == 2.5
    assert list(curve(LINES, OURS)) == [0, 5, 10, 20, 50]


def test_what_was_saved_comes_back_and_fills_the_page(tmp_path: Path) -> None:
    path, page = tmp_path / "found.json", tmp_path / "page.md"
    save(TransferErrors(lines=LINES, left_out={"gemm: a": {"thin": 3}}), path)
    save(TransferErrors(lines=LINES, left_out={"gemm: a": {"thin": 4}}), path)  # in place of the same setting
    assert read(path) == TransferErrors(lines=LINES, left_out={"gemm: a": {"thin": 4}})
    page.write_text(PAGE)
    fill(page, LINES)
    text = page.read_text()
    assert "| `gemm` a | 8 | 30.0% |" in text
    assert "**10.0%**" in text  # misses the bar of 5 % after 50
    assert "a profile, 0: 30.0%, 5: 10.0%" in page.with_suffix(".svg").read_text()
    path.write_text("[]")
    with pytest.raises(InputError, match="holds no results"):
        read(path)


def test_the_command_shows_what_was_saved(tmp_path: Path) -> None:
    save(TransferErrors(lines=LINES, left_out={}), tmp_path / "found.json")
    said = CliRunner().invoke(app, ["bench", "transfer", "--from", str(tmp_path / "found.json"), "--json"])
    assert said.exit_code == 0
    shown = json.loads(said.stdout)
    assert len(shown) == len(figures(LINES))
    assert [each["met"] for each in shown if each["bar"]] == [False]
    nothing = CliRunner().invoke(app, ["bench", "transfer"], env={"FORETELL_DATA": ""})
    assert nothing.exit_code != 0


def test_sources_are_known_by_name(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no source 'gem'\. Did you mean 'gemm'"):
        run(folder, ["gem"])
    with pytest.raises(InputError, match="is no folder"):
        run(folder / "no", [])
    assert "gemm" in SETTINGS
