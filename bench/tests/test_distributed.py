"""The benchmark on small made-up files: every row is asked of `forecast`, a profile finds what was put in."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.asking import Answer, Asker
from foretell_bench.graphs import Model, configured, named
from foretell_bench.sources import ddp_step_times, fsdp_mpt, llm_h100_sweep, megatron_memory, mlperf_training
from foretell_bench.sources import vtrain_single_node as vtrain
from foretell_bench.sources.question import Ask, Question, evenly, filled, nodes_of, part_of
from foretell_bench.tables.baselines import ernest, per_sample
from foretell_bench.tables.distributed import QUESTIONS, SourceFigures, read, run, save
from foretell_bench.tables.figures import Figure, rank_correlation, relative_errors
from typer.testing import CliRunner

import foretell
from foretell.cli import app
from foretell.errors import InputError, NotModelled
from foretell.store.importers import formats

TRUTH = foretell.Profile(name="truth", device=1.5, host=1.2, communication=2.0, fixed_seconds=0.004)
PLACEMENTS = ("1", "2", "3", "4", "11", "12", "13", "22", "24", "44", "111", "112", "122", "222", "244", "444")


def write(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A public file, its columns named as the source names them; what a row leaves out is empty."""
    theirs = {column.ours: column.theirs for column in formats()[name].columns}
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(theirs.values()))
        writer.writeheader()
        writer.writerows({theirs[ours]: value for ours, value in row.items()} for row in rows)


def placements(seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        {"app": "ncf", "cluster": "aws", "device": "T4", "kind": "placements", "placement": p, "nodes": len(p),
         "replicas": sum(map(int, p)), "batch": 512, "step_seconds": seconds.get(p, 1.0), "sync_seconds": 0.01, "measured": 1}
        for p in PLACEMENTS
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of a job as they would be on a cluster whose factors we know."""
    made = tmp_path_factory.mktemp("data")
    write(made, "ddp_step_times", placements({}))
    asks = [(q.ask, TRUTH) for q in ddp_step_times.questions(made).items]
    with Asker() as asker:
        seconds = [answer.seconds for answer in asker(asks)]
    write(made, "ddp_step_times", placements(dict(zip(PLACEMENTS, seconds, strict=True))))
    return made


def test_every_row_is_asked_of_forecast_and_a_profile_finds_what_was_put_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[foretell.Profile | None] = []
    ask = foretell.forecast

    def counted(*args: Any, **named: Any) -> foretell.Forecast:
        calls.append(named.get("profile"))
        return ask(*args, **named)

    monkeypatch.setattr(foretell, "forecast", counted)
    [found] = run(folder, only=["ddp_step_times"])
    step, _sync, baseline = found.figures
    assert calls.count(None) == len(PLACEMENTS)
    assert step.rows == sum(q.tested for q in ddp_step_times.questions(folder).items) > 3
    assert step.zero_shot is not None and step.zero_shot > 0.3  # noqa: PT018
    assert step.value is not None and step.value < 0.05  # noqa: PT018
    assert baseline.value is not None and baseline.zero_shot is None  # noqa: PT018
    assert step.note.startswith("of 16 rows 16 were forecast")
    [profile] = found.profiles
    assert profile.card.rows_left_out == step.rows
    assert profile.card.error_after == pytest.approx(step.value)


def test_a_run_that_was_stopped_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = tmp_path / "answers.jsonl"
    [first] = run(folder, only=["ddp_step_times"], answers=answers)
    answers.write_text(answers.read_text()[:-20])  # cut off in the middle of a line
    calls: list[object] = []
    ask = foretell.forecast
    monkeypatch.setattr(foretell, "forecast", lambda *a, **k: calls.append(k) or ask(*a, **k))
    [second] = run(folder, only=["ddp_step_times"], answers=answers)
    assert len(calls) == 1
    assert second.figures == first.figures


def test_what_cannot_be_forecast_is_counted_by_its_reason(tmp_path: Path) -> None:
    sweep = {"model": "1B", "nodes": 1, "gpus": 8, "micro_batch": 1, "grad_accumulation": 1, "global_batch": 8, "dp": 8,
             "pp": 1, "tp": 1, "zero": 0, "sequence": 4096, "mfu": 0.4, "tokens_per_second": 1e5, "memory_bytes": 20.0,
             "status": "ok"}  # fmt: skip
    write(tmp_path, "llm_h100_sweep", [sweep, sweep | {"model": "3B"}, sweep | {"status": "crashed", "mfu": None}])
    taken = llm_h100_sweep.questions(tmp_path)
    assert str(taken) == "2 of 3 rows; left out: 1 of a model '3B' whose shape is not known"
    ran, crashed = taken.items
    assert ran.seconds == pytest.approx(8 * 4096 / 1e5)
    assert ran.allocated == 20 * 2**30
    assert crashed.crashed and crashed.seconds is None  # noqa: PT018
    assert str(ran.ask.plan) == "dp=8,grad_accumulation=1"


def test_what_cannot_run_is_named(tmp_path: Path) -> None:
    found = list(run(tmp_path))
    assert {each.source for each in found} == set(QUESTIONS)
    assert all(figure.value is None and figure.note for each in found for figure in each.figures)


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ddp_step_times"):
        list(run(tmp_path, only=["ddp_step_times"]))
    with pytest.raises(InputError, match="Did you mean 'ddp_step_times'"):
        run(tmp_path, only=["dpp_step_times"])
    with pytest.raises(InputError, match="is no folder"):
        run(tmp_path / "nowhere")


def test_nanotron_cuts_stages_by_parameters() -> None:
    """The block that goes beyond a stage's share still belongs to it; it was counted to the next."""
    assert llm_h100_sweep.nanotron_stages(llm_h100_sweep.LLAMAS["1B"], 4) == (6, 5, 5, 0)
    assert llm_h100_sweep.nanotron_stages(llm_h100_sweep.LLAMAS["8B"], 2) == (18, 14)
    assert llm_h100_sweep.nanotron_stages(llm_h100_sweep.LLAMAS["8B"], 8)[0] == 5, "as its authors print it"
    row = {"model": "1B", "dp": 1, "tp": 1, "pp": 8, "zero": 0, "grad_accumulation": 256}
    assert llm_h100_sweep.plan_of(row).stages is None, "its head stands alone on the last stage but one"


def test_a_gpt_of_megatron_has_equal_stages_and_is_checkpointed(tmp_path: Path) -> None:
    row = {"gpus": 8, "global_batch": 16, "micro_batch": 2, "hidden": 1024, "heads": 16, "layers": 12, "sequence": 1024,
           "tp": 2, "dp": 2, "pp": 2, "step_seconds": 500}  # fmt: skip
    write(tmp_path, vtrain.SOURCE, [row, row | {"layers": 13}])
    taken = vtrain.questions(tmp_path)
    assert taken.left_out == {"whose layers do not divide into its stages": 1}
    [question] = taken.items
    assert str(question.ask.plan) == "dp=2,tp=2,pp=2,stages=6-6,checkpointing=full,grad_accumulation=4"
    assert question.seconds == 0.5


def test_mpt_is_sharded_over_all_devices(tmp_path: Path) -> None:
    row = {"model": "7b", "sequence": 2048, "gpus": 16, "device": "a100_80gb", "micro_batch": 4, "grad_accumulation": 2,
           "global_batch_tokens": 100, "tokens_per_second": 50, "sharding": "FULL_SHARD", "checkpointing": True,
           "offload": False}  # fmt: skip
    write(tmp_path, fsdp_mpt.SOURCE, [row, row | {"model": "9z"}, row | {"sharding": "SHARD_GRAD_OP"}])
    taken = fsdp_mpt.questions(tmp_path)
    assert len(taken.items) == 1
    assert sum(taken.left_out.values()) == 2
    [question] = taken.items
    assert str(question.ask.plan) == "dp=16,zero=3,checkpointing=full,grad_accumulation=2"
    assert question.ask.model.length == 2048
    assert question.seconds == 2.0


def test_submissions(tmp_path: Path) -> None:
    row = {"round": "v1", "organisation": "a", "benchmark": "resnet", "device": "NVIDIA A100-SXM4-80GB", "devices": 20,
           "devices_per_node": 8, "global_batch": 4000, "step_seconds": 0.1,
           "network": "Management: 1x Ethernet 40Gb/s, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec"}  # fmt: skip
    others = [row | {"benchmark": "bert"}, row | {"device": "TPU"}, row | {"devices": None}]
    write(tmp_path, mlperf_training.SOURCE, [row, *others])
    taken = mlperf_training.questions(tmp_path)
    assert taken.rows == 4
    assert len(taken.left_out) == 3
    [question] = taken.items
    assert [node.count for node in question.ask.cluster.nodes] == [8, 8, 4]
    assert question.ask.cluster.nodes[0].port == 200e9
    assert question.samples == 200
    assert mlperf_training.port_of("1x ConnectX-5 IB EDR 100Gb/Sec") == 12.5e9
    assert mlperf_training.port_of("TODO") is None


MEGATRON = {
    "model_family": "gpt", "device": "h100", "nodes": 1, "gpus_per_node": 8, "world_source": "recipe_at_HEAD",
    "peak_allocated_bytes": 10**9, "layers": 12, "hidden": 512, "heads": 8, "sequence": 1024, "micro_batch": 4,
    "max_position_embeddings": 1024, "global_batch": 32, "tp": 2, "pp": 2, "layers_per_virtual_stage": 3, "bf16": True,
    "distributed_optimizer": True, "sequence_parallel": True, "test_case": "a",
}  # fmt: skip


def test_recipes_of_megatron_become_plans(tmp_path: Path) -> None:
    others = [{"world_source": "default"}, {"mtp_layers": 1}, {"model_family": "mimo"}, {"tp": 3}, {"optimizer": "muon"},
              {"layers": 13}]  # fmt: skip
    write(tmp_path, megatron_memory.SOURCE, [MEGATRON, *(MEGATRON | other for other in others)])
    taken = megatron_memory.questions(tmp_path)
    assert sum(taken.left_out.values()) == len(others)
    [question] = taken.items
    assert str(question.ask.plan) == (
        "dp=2,tp=2,pp=2,zero=1,sequence_parallel=true,schedule=interleaved,virtual_stages=2,stages=3-3-3-3,"
        "grad_accumulation=4,overlap=false"
    )
    config = json.loads(question.ask.model.source)
    assert config["vocab_size"] % 256 == 0
    settings = dict(question.ask.model.settings)
    assert (settings["kernels"], settings["precision"]) == ("megatron", "parameters:bf16/gradients:fp32/master:fp32")
    assert (question.reports, question.allocated, question.seconds) == (-1, 10**9, None)


def test_a_run_of_megatron_is_named_after_what_has_no_column(tmp_path: Path) -> None:
    names = ("gpt_cross_entropy_loss_fusion", "gpt_defer_embedding_wgrad_compute")
    write(tmp_path, megatron_memory.SOURCE, [MEGATRON | {"test_case": name} for name in names])
    taken = megatron_memory.questions(tmp_path)
    assert [dict(q.ask.model.settings)["kernels"] for q in taken.items] == ["megatron-compiled-loss"]
    assert "wgrad_deferral_limit (2)" in next(iter(taken.left_out))


def test_a_model_says_what_it_is_captured_at() -> None:
    one = named("torchvision/resnet18", {"precision": "fp32"}, 40)
    assert one.captures() == [("torchvision/resnet18", {"precision": "fp32", "batch": size}) for size in ("8", "16")]
    long = configured({"a": 1}, {}, 3, length=4096)
    assert [settings["seq"] for _, settings in long.captures()] == ["512", "512", "1024", "1024"]


def test_an_impossible_plan_is_told_from_one_that_is_not_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = named("foretell_bench.workloads:ncf", {}, 8)
    ask = Ask(model=model, cluster=nodes_of("t4", [4]), plan=foretell.Plan(dp=2))
    with Asker() as asker:
        impossible, fine = asker([(ask, None), (replace(ask, plan=foretell.Plan(dp=4)), None)])
        assert impossible.impossible and impossible.why.startswith("PlanError")  # noqa: PT018
        assert not fine.why and fine.seconds > 0 and len(fine.allocated) == 1  # noqa: PT018

        def refuse(*args: Any, **named: Any) -> None:
            raise NotModelled("not yet")

        monkeypatch.setattr(foretell, "forecast", refuse)
        [unknown] = asker([(replace(ask, plan=foretell.Plan(tp=4)), None)])
        assert unknown == Answer(why="NotModelled: not yet", impossible=False)


def question(samples: int, devices: int, seconds: float) -> Question:
    ask = Ask(model=Model(source="x", batch=samples), cluster=nodes_of("t4", [devices]), plan=foretell.Plan(dp=devices))
    return Question(ask=ask, domain="d", part="p", seconds=seconds)


def test_baselines() -> None:
    known = [question(b, n, 0.1 + 0.01 * b + 0.02 * n) for b in (1, 8, 64) for n in (1, 2, 4)]
    [found] = ernest(known, [question(32, 3, 1.0)])
    assert found == pytest.approx(0.48, rel=0.02)
    assert per_sample([question(10, 1, 1.0), question(20, 4, 2.0)], [question(30, 8, 1.0)]) == [pytest.approx(3.0)]


def test_splits_depend_on_names_alone() -> None:
    assert 40 < sum(part_of(str(i), 2) == "part 1 of 2" for i in range(100)) < 60
    assert {part_of(str(i), 4) for i in range(100)} == {f"part {n} of 4" for n in (1, 2, 3, 4)}
    rows = [{"kind": k, "n": n} for k in "ab" for n in range(20)]
    assert len({r["n"] for r in evenly(rows, 10, by=lambda r: r["kind"]) if r["kind"] == "a"}) == 5
    assert filled(20, 8) == [8, 8, 4]
    assert filled(2, 8) == [2]


def test_the_verb_keeps_what_it_found_and_fills_a_page(folder: Path, tmp_path: Path) -> None:
    kept, page = tmp_path / "results" / "found.json", tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- table: distributed -->\nold\n<!-- end -->\n\nAfter.\n")
    asked = ["bench", "distributed", "--data", str(folder), "--only", "ddp_step_times", "--json"]
    result = CliRunner().invoke(app, [*asked, "--save", str(kept), "--page", str(page)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["met"] is True
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text  # noqa: PT018
    assert "| data | measure | zero-shot | with a profile | bar | rows |" in text
    save(SourceFigures(source="fsdp_mpt", figures=(Figure(source="fsdp_mpt", measure="m", value=0.5, bar=0.1),)), kept)
    assert [each.source for each in read(kept)] == ["ddp_step_times", "fsdp_mpt"]  # other sources stay
    assert read(kept)[0].profiles
    shown = CliRunner().invoke(app, ["bench", "distributed", "--from", str(kept), "--page", str(page)])
    assert "missed" in shown.stdout
    assert "| `fsdp_mpt` | m |  | **50.0%** | ≤ 10.0% | 0 |" in page.read_text()


def test_a_page_without_a_place_and_results_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing asked for")
    (tmp_path / "none.json").write_text("{}x")
    for options, message in (
        (["--data", str(tmp_path), "--page", str(tmp_path / "page.md")], "has no place for the table"),
        (["--from", str(tmp_path / "none.json")], "holds no results of this benchmark"),
        ([], "give --data FOLDER"),
    ):
        result = CliRunner().invoke(app, ["bench", "distributed", *options], env={"FORETELL_DATA": None})
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())


def test_figures() -> None:
    assert Figure(source="s", measure="m", value=0.1, bar=0.2).met
    assert not Figure(source="s", measure="m", value=0.1, bar=0.2, at_least=True).met
    assert not Figure(source="s", measure="m", value=None, bar=0.2).met
    assert relative_errors([1.1], [1.0])[0] == pytest.approx(0.1)
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert Answer(why="x").seconds == 0
