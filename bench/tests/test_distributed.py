"""The benchmark on small made-up files: it finds what was put in, and says what it cannot run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from foretell_bench.sources import mpt, placements, submissions
from foretell_bench.sources.overlap import exposed_seconds, last_bucket, slowest_of
from foretell_bench.sources.rows import is_in_half, read_rows
from foretell_bench.tables.distributed import SOURCES, Found, read, run, save
from foretell_bench.tables.figures import Figure, rank_correlation, relative_errors
from typer.testing import CliRunner

from foretell.cli import app
from foretell.errors import InputError


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def quiet(text: str) -> None:
    """Nobody watches."""


def steps_of_a_known_cluster() -> list[dict[str, object]]:
    """ResNet-50 on T4: nodes that send 1 GB/s, compute of 5 ms a sample."""
    rows: list[dict[str, object]] = []
    job = placements._Job("imagenet", "t4", 4 * 25_600_000)
    truth = placements._Calibration(4e9, 1e9, 2e-5, 1.0, 0.02, 0.4)
    for batch in (20, 40, 80):
        alone = 0.005 * batch
        common = {"app": "imagenet", "cluster": "aws", "gpu": "T4", "local_bsz": batch}
        rows.append(
            {**common, "placement": 1, "num_nodes": 1, "num_replicas": 1, "step_time_s": alone, "sync_time_s": 0.001}
        )
        for placement in (2, 3, 4, 11, 12, 13, 14, 22, 24, 44, 111, 112, 114, 122, 222, 224, 244, 333, 344, 444):
            counts = tuple(sorted(map(int, str(placement)), reverse=True))
            [(step, sync)] = truth.steps(job, [placements._Step(counts, batch, alone, 0.0, 0.0)])
            rows.append({**common, "placement": placement, "num_nodes": len(counts), "num_replicas": sum(counts),
                         "step_time_s": step, "sync_time_s": sync})  # fmt: skip
    return rows


def test_a_cluster_is_calibrated_on_half_of_its_placements(tmp_path: Path) -> None:
    write(tmp_path / "ddp_step_times.csv", steps_of_a_known_cluster())
    step, sync, ernest = placements.figures(tmp_path, quiet, 1)
    assert step.value is not None and step.value < 0.02  # noqa: PT018
    assert sync.value is not None and sync.value < 0.05  # noqa: PT018
    assert step.met
    assert ernest.value is not None and ernest.value > step.value  # noqa: PT018
    assert ernest.met is None


def test_the_spread_of_nodes_is_found_in_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def filling(submission: submissions._Submission) -> float:
        return 3e-4 * (submission.batch + 10)  # in place of a forecast: a device that ten samples' worth never fill

    monkeypatch.setattr(submissions, "_Compute", lambda say: filling)
    rows: list[dict[str, object]] = []
    for org, software in (("a", 1.0), ("b", 0.7), ("c", 1.3)):
        for devices, batch in ((8, 400), (64, 50), (256, 32)):
            submission = submissions._Submission("a100-80g-sxm", devices, 8, None, batch, 0.0)
            step = submissions._step(submission, software * filling(submission), 0.04)
            rows.append({"round": "v1", "org": org, "benchmark": "resnet", "accelerator": "NVIDIA A100-SXM4-80GB",
                         "acc_per_node": 8, "num_acc": devices, "global_batch_size": batch * devices,
                         "step_time_s": step, "host_network": ""})  # fmt: skip
    write(tmp_path / "mlperf_training.csv", rows)
    ours, linear = submissions.figures(tmp_path, quiet, 1)
    assert ours.rows == 18
    assert ours.met
    assert ours.value is not None and ours.value < 0.01  # noqa: PT018
    assert "spread by 4%" in ours.note
    assert linear.value is not None and linear.value > 0.1  # noqa: PT018


def test_ports_of_a_submission() -> None:
    assert submissions._port("Management: 1x Ethernet 40Gb/s, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec") == 200e9
    assert submissions._port("1x ConnectX-5 IB EDR 100Gb/Sec") == 12.5e9
    assert submissions._port("TODO") is None


def test_what_cannot_run_is_named(tmp_path: Path) -> None:
    found = list(run(tmp_path))
    assert {each.source for each in found} == set(SOURCES)
    assert all(figure.value is None and figure.note for each in found for figure in each.figures)


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ddp_step_times"):
        list(run(tmp_path, only=["ddp_step_times"]))
    with pytest.raises(InputError, match="Did you mean 'ddp_step_times'"):
        run(tmp_path, only=["dpp_step_times"])
    with pytest.raises(InputError, match="is no folder"):
        run(tmp_path / "nowhere")
    write(tmp_path / "few.csv", [{"a": 1}])
    with pytest.raises(InputError, match="has no column b; it has a"):
        read_rows(tmp_path, "few", ("a", "b"))


def test_the_verb(tmp_path: Path) -> None:
    write(tmp_path / "ddp_step_times.csv", steps_of_a_known_cluster())
    result = CliRunner().invoke(
        app, ["bench", "distributed", "--data", str(tmp_path), "--only", "ddp_step_times", "--json"]
    )
    assert result.exit_code == 0
    assert [line["met"] for line in json.loads(result.stdout)] == [True, True, None]
    drawn = CliRunner().invoke(app, ["bench", "distributed", "--data", str(tmp_path)])
    assert "megatron_memory" in drawn.stdout


def test_what_was_found_is_kept_and_put_on_a_page(tmp_path: Path) -> None:
    write(tmp_path / "ddp_step_times.csv", steps_of_a_known_cluster())
    kept, page = tmp_path / "results" / "found.json", tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- table: distributed -->\nold\n<!-- end -->\n\nAfter.\n")
    asked = ["bench", "distributed", "--data", str(tmp_path), "--only", "ddp_step_times"]
    assert CliRunner().invoke(app, [*asked, "--save", str(kept), "--page", str(page)]).exit_code == 0
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text  # noqa: PT018
    assert "| `ddp_step_times` | step time, unseen placements, mean error |" in text
    save(Found(source="fsdp_mpt", figures=(Figure(source="fsdp_mpt", measure="m", value=0.5, bar=0.1),)), kept)
    assert [each.source for each in read(kept)] == ["ddp_step_times", "fsdp_mpt"]  # other sources stay
    shown = CliRunner().invoke(app, ["bench", "distributed", "--from", str(kept), "--page", str(page)])
    assert "missed" in shown.stdout
    assert "| `fsdp_mpt` | m | **50.0%** | ≤ 10.0% | 0 |" in page.read_text()


def test_a_page_without_a_place_and_results_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing asked for")
    (tmp_path / "none.json").write_text("{}x")
    for options, said in (
        (["--data", str(tmp_path), "--page", str(tmp_path / "page.md")], "has no place for the table"),
        (["--from", str(tmp_path / "none.json")], "holds no results of this benchmark"),
        ([], "give --data FOLDER"),
    ):
        result = CliRunner().invoke(app, ["bench", "distributed", *options], env={"FORETELL_DATA": None})
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())


def test_figures() -> None:
    assert Figure(source="s", measure="m", value=0.1, bar=0.2).met
    assert not Figure(source="s", measure="m", value=0.1, bar=0.2, at_least=True).met
    assert not Figure(source="s", measure="m", value=None, bar=0.2).met
    assert relative_errors([1.1], [1.0])[0] == pytest.approx(0.1)
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


def test_communication_hides_behind_compute_but_for_its_last_bucket() -> None:
    last = last_bucket(1000 * 2**20)
    assert last == pytest.approx(0.025)
    assert last_bucket(1) == 1.0
    assert exposed_seconds(1.0, 0.1, last, 0.5) == pytest.approx(0.1 * 0.025)
    assert exposed_seconds(0.0, 0.1, last, 0.5) == pytest.approx(0.1)
    assert exposed_seconds(1.0, 0.1, 1.0, 0.5) == pytest.approx(0.1)


def test_the_slowest_of_many() -> None:
    sampled = np.random.default_rng(0).standard_normal((20000, 16)).max(axis=1).mean()
    assert slowest_of(16) == pytest.approx(sampled, rel=0.03)
    assert slowest_of(1) == 0
    assert 40 < sum(is_in_half(str(i)) for i in range(100)) < 60


def test_a_shallow_model_is_continued_in_depth_and_attention_has_a_factor_of_its_own() -> None:
    two, four = mpt._Parts(0.2, 1.0, 0.3, 0.1), mpt._Parts(0.4, 1.6, 0.5, 0.1)
    ten = mpt._at_depth(two, four, 10)
    assert (ten.attention, ten.rest, ten.host, ten.waiting) == pytest.approx((1.0, 3.4, 1.1, 0.1))
    case = mpt._Case("7b", mpt._Parts(1.0, 2.0, 0.0, 0.5), 1.0)
    assert case.seconds((1.0, 1.0, 1.0, 1.0)) == pytest.approx(3.5)
    assert case.seconds((3.0, 1.0, 1.0, 2.0)) == pytest.approx(6.0)
