"""`foretell bench published`: jobs from documents, through `foretell.forecast` alone."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.sources.published_steps import jobs
from foretell_bench.tables import published
from foretell_bench.tables.published_rows import may_be_looked_at
from foretell_bench.tables.series import Series, series

from foretell.errors import InputError

LLAMA = {"kind": "llama", "d": 64, "layers": 2, "heads": 4, "kv": 2, "ffn": 128, "vocab": 512}


def row(**entries: Any) -> dict[str, Any]:
    usual = {
        "id": "a/1", "source": "a", "regime": "zero1", "labels": ["fused"], "model": LLAMA, "seconds": 0.01, "n": 2,
        "step": {"batch": 2, "seq": 64, "precision": "bf16", "clip": 1.0}, "plan": {"dp": 2, "zero": 1},
        "cluster": "2xa100-80g-sxm", "memory_gib": 1.0, "memory_kind": "reserved",
    }  # fmt: skip
    return usual | entries


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "published_steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_every_row_is_asked_or_counted(tmp_path: Path) -> None:
    other = row(id="a/2", model={"kind": "sdunet", "side": 32})
    refused = row(id="b/1", source="b", plan={"dp": 1, "tp": 2, "pp": 4}, cluster="8xa100-80g-sxm")
    found = published.run(written(tmp_path, row(), other, refused))
    assert len(found.jobs) == 3
    first, second, third = found.jobs
    assert first.error is not None
    assert first.memory_error is not None
    assert "blocks" in second.why
    assert second.error is None
    assert "sdunet" in third.why
    table = published.figures(found)
    assert table[0].rows == 1
    assert "1 of sdunet, which no source builds" in table[0].note
    assert "PlanError" in table[0].note
    assert {figure.source for figure in table} >= {"all jobs", "regime: zero1", "source: a", "device: a100-80g-sxm"}


def test_trainers_with_fused_kernels_keep_fp32_copies(tmp_path: Path) -> None:
    fp16 = row(step={"batch": 2, "precision": "fp16", "optimizer": "adamw"})
    data = written(tmp_path, row(source="dgxc-benchmarking"), row(labels=[]), fp16)
    settings = [dict(job.ask.model.settings) for job in jobs(data).items]
    assert [each.get("optimizer") for each in settings] == ["adamw-master", None, "adamw"]


def test_internevo_shares_state_by_owners(tmp_path: Path) -> None:
    """It was taken for Megatron's kernels and optimizer."""
    fsdp = row(id="internevo-memory/7b-fsdp", source="InternEvo", plan={"dp": 2, "zero": 3})
    alone = row(id="internevo-memory/7b-tp2", source="InternEvo", plan={"dp": 1, "tp": 2, "zero": 0})
    wide = row(source="InternEvo", plan={"dp": 16, "zero": 1}, cluster="2x8xa100-80g-sxm@ib-50g")
    asked = [job.ask for job in jobs(written(tmp_path, wide, alone, fsdp)).items]
    assert [(ask.plan.zero, ask.plan.sharding) for ask in asked] == [(1, "internevo"), (1, "internevo"), (3, "torch")]
    settings = dict(asked[0].model.settings)
    assert (settings["attention"], settings["optimizer"], settings["kernels"]) == (
        "flash1",
        "adamw-foreach",
        "fused-model",
    )


def test_megatron_deals_layers_evenly_and_counts_both_ends_where_they_do_not_divide(tmp_path: Path) -> None:
    piped = {"dp": 1, "pp": 4, "schedule": "interleaved", "virtual_stages": 2, "grad_accumulation": 8}
    networks = [LLAMA | {"layers": layers} for layers in (16, 14, 13)]
    rows = [row(plan=piped, model=network, cluster="4xa100-80g-sxm") for network in networks]
    found = [job.ask.plan.stages for job in jobs(written(tmp_path, *rows)).items]
    assert found == [(2,) * 8, (1, *(2,) * 6, 1), None]


def test_recipes_of_experts_say_how_rows_are_sent_and_what_is_recomputed(tmp_path: Path) -> None:
    """All of them were taken to send a token once to each node, and none to recompute."""
    experts = LLAMA | {"moe": {"experts": 4, "top": 2, "ffn": 64}}
    of = partial(row, file="Megatron-Bridge/docs", model=experts, plan={"dp": 8, "ep": 4})
    rows = [
        of(name="gpt-oss-120b", cluster="8xh100-sxm"), of(name="gpt-oss-120b", cluster="8xb200"),
        of(name="qwen3-30b-a3b", cluster="8xh100-sxm", labels=["fused", "fp8"]),
    ]  # fmt: skip
    asked = [job.ask for job in jobs(written(tmp_path, *rows)).items]
    assert [(a.plan.dispatch, a.plan.checkpointing, a.plan.zero) for a in asked] == [
        ("all-to-all", "layernorm+moe_act", 1), ("deepep", "layernorm+moe_act", 1), ("deepep", "none", 1),
    ]  # fmt: skip
    assert "fp8:current" in dict(asked[2].model.settings)["precision"]


def test_megatron_shares_experts_over_tp_with_sequence_parallelism_alone(tmp_path: Path) -> None:
    """Its rows were written without, as it was refused beside cp once, and every rank of tp sent all rows."""
    experts = LLAMA | {"moe": {"experts": 4, "top": 2, "ffn": 64}}
    plans = [{"dp": 4, "tp": 2, "ep": 4, "cp": 2}, {"dp": 4, "tp": 2}, {"dp": 8, "ep": 4}]
    rows = [row(source="dgxc-benchmarking", model=experts, plan=p, cluster="2x8xh100-sxm@ib-400g") for p in plans]
    found = [job.ask.plan.sequence_parallel for job in jobs(written(tmp_path, *rows)).items]
    assert found == [True, False, False]


def test_maxtext_keeps_queries_keys_and_values(tmp_path: Path) -> None:
    """Its recipe says so, where rows took every block to be run again."""
    plan = {"dp": 8, "zero": 3, "checkpointing": "full"}
    rows = [row(source="dgxc-benchmarking", file=f"{who}/README", plan=plan) for who in ("maxtext", "llama3.1")]
    found = [job.ask.plan.checkpointing for job in jobs(written(tmp_path, *rows)).items]
    assert found == ["layernorm+core_attn+mlp", "full"]


def test_megatron_adds_up_in_fp32_and_recipes_do_not(tmp_path: Path) -> None:
    piped = {"dp": 1, "pp": 2, "grad_accumulation": 4}
    rows = [row(), row(plan=piped), row(source="dgxc-benchmarking"), row(source="dgxc-benchmarking", plan=piped)]
    kept = [dict(job.ask.model.settings)["precision"] for job in jobs(written(tmp_path, *rows)).items]
    assert kept == ["parameters:bf16/gradients:fp32/master:fp32"] * 2 + ["bf16"] * 2


def test_a_document_says_its_software_and_the_sides_of_its_pictures(tmp_path: Path) -> None:
    source = {"kind": "source", "source": "torchvision/retinanet_resnet50_fpn", "set": {"batch": 2, "image_size": 800}}
    detected = row(source="FlagPerf", model=source, regime="detection", notes="COCO (about 800 × 1088 after resizing)")
    first, second = jobs(written(tmp_path, detected, row())).items
    settings = dict(first.ask.model.settings)
    assert (settings["image_size"], settings["image_width"]) == ("800", "1088")
    assert (first.ask.software, second.ask.software) == ("torch-1.8", None)
    assert first.ask.key != replace(first.ask, software=None).key


def test_a_job_of_experts_is_followed_as_it_grows(tmp_path: Path) -> None:
    rows = [
        row(id=f"a/{n}", plan={"dp": n, "ep": 8}, cluster=cluster)
        for n, cluster in ((8, "8xa100-80g-sxm"), (16, "2x8xa100-80g-sxm"))
    ]
    taken = jobs(written(tmp_path, *rows)).items
    [drift] = series(list(zip(taken, (1.0, 1.2), (1.0, 1.0), strict=True)))
    assert (drift.kind, drift.devices, drift.value) == ("drift", (8, 16), pytest.approx(0.2))


def test_what_notes_say_of_the_engine_and_the_board_is_asked_for(tmp_path: Path) -> None:
    noted = row(notes="DeepSpeed ZeRO-3 on A800/H800 (NVLink 400 GB/s)", labels=[], plan={"dp": 2, "zero": 3})
    piped = row(notes="Megatron-DeepSpeed", plan={"dp": 1, "pp": 2, "zero": 1, "grad_accumulation": 4})
    own = row(step={"batch": 2, "precision": "bf16", "optimizer": "master"})
    first, second, third = jobs(written(tmp_path, noted, piped, own)).items
    assert (first.device, first.ask.plan.sharding) == ("a800-80g-sxm", "deepspeed")
    assert dict(first.ask.model.settings)["optimizer"] == "adamw-master"
    assert (second.device, second.ask.plan.sharding) == ("a100-80g-sxm", "deepspeed"), "it adds up in fp32"
    assert [dict(job.ask.model.settings)["kernels"] for job in (second, third)] == ["fused-model"] * 2
    assert dict(third.ask.model.settings)["precision"] == "parameters:bf16/master:fp32"


def test_plans_of_a_source_are_ranked_and_one_job_followed_as_it_grows(tmp_path: Path) -> None:
    rows = [
        row(id=f"a/{number}", plan=plan, cluster=cluster)
        for number, (plan, cluster) in enumerate(
            (
                ({"dp": 8, "zero": 1}, "8xa100-80g-sxm"),
                ({"dp": 8, "zero": 2}, "8xa100-80g-sxm"),
                ({"dp": 4, "tp": 2, "zero": 1}, "8xa100-80g-sxm"),
                ({"dp": 32, "zero": 1}, "4x8xa100-80g-sxm@ib-50g"),
                ({"dp": 32, "zero": 1, "hybrid_shard": 8}, "4x8xa100-80g-sxm@ib-50g"),
            )
        )
    ]
    taken = jobs(written(tmp_path, *rows)).items
    predicted, published_seconds = (2.0, 2.5, 1.5, 2.0, 2.2), (1.0, 2.0, 1.2, 2.0, 1.1)
    found = series(list(zip(taken, predicted, published_seconds, strict=True)))
    [ranking] = [s for s in found if s.kind == "ranking"]
    assert (ranking.devices, ranking.jobs, ranking.value) == (
        (8, 8),
        3,
        pytest.approx(1.0),
    )  # by sample, tp=2 is slowest
    drifts = [s for s in found if s.kind == "drift"]
    assert sorted(s.value for s in drifts) == pytest.approx([-0.5, 0.0])  # sharded among all, and among eight
    assert all(s.devices == (8, 32) for s in drifts)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    job = published.Compared(
        source="s", network="n", regime="r", device="d", architecture="a", devices=1, error=-0.5
    )  # fmt: skip
    drift = Series(kind="drift", source="s", devices=(8, 16), jobs=2, value=0.1)
    kept = published.PublishedErrors(jobs=[job], series=[drift])
    published.save(kept, tmp_path / "found.json")
    assert published.read(tmp_path / "found.json") == kept
    (tmp_path / "found.json").write_text("[1]")
    with pytest.raises(InputError, match="holds no published jobs"):
        published.read(tmp_path / "found.json")


@pytest.mark.parametrize(
    ("entries", "trainer"),
    [
        ({"notes": "Megatron-DeepSpeed"}, "megatron-deepspeed"),
        ({"file": "maxtext/README.md", "labels": ["fused", "xla"]}, "maxtext"),
        ({"file": "llama3_8B-megatron/README.md", "labels": []}, "megatron"),
        ({}, "megatron"),  # fused kernels
        ({"labels": []}, None),
        ({"model": {"kind": "source", "source": "torchvision/resnet18", "set": {"batch": 8}}, "labels": []}, "plain"),
    ],
)
def test_who_ran_a_job_is_a_fact_of_its_row(tmp_path: Path, entries: dict[str, Any], trainer: str | None) -> None:
    [job] = jobs(written(tmp_path, row(**entries))).items
    assert (job.trainer, job.ask.trainer) == (trainer, trainer)


def test_a_model_is_built_with_all_that_its_row_says(tmp_path: Path) -> None:
    """An MLP without a gate, wide heads and norms of queries and keys were read as a plain Llama's."""
    experts = {"experts": 4, "top": 2, "ffn": 64}
    models = [
        LLAMA | more for more in ({"act": "relu2"}, {"hd": 32}, {"qk_norm": True}, {"qk_norm": True, "moe": experts})
    ]
    configs = [
        json.loads(job.ask.model.source)
        for job in jobs(written(tmp_path, *(row(id=f"a/{n}", model=m) for n, m in enumerate(models)))).items
    ]
    assert [c["model_type"] for c in configs] == ["nemotron", "llama", "qwen3", "qwen3_moe"]
    assert [c["head_dim"] for c in configs] == [16, 32, 16, 16]
    overlapped = row(plan={"dp": 1, "tp": 2}, labels=["fused", "tp-overlap"])
    refused = row(
        plan={"dp": 1, "tp": 2, "cp": 2}, cluster="4xh100-sxm", notes="sequence_parallel with cp is refused, so without"
    )
    [once] = jobs(written(tmp_path, refused)).items
    assert once.ask.plan.sequence_parallel, "it ran so"
    recipes = [row(file="Megatron-Bridge/docs"), row(file="Megatron-Bridge", plan={"dp": 2}), row()]
    assert [j.ask.plan.overlap_gather for j in jobs(written(tmp_path, *recipes)).items] == [True, True, False]
    assert [job.ask.plan.overlap_tp for job in jobs(written(tmp_path, overlapped, row())).items] == [True, False]


def test_of_sources_in_part_jobs_are_kept_apart_one_by_one() -> None:
    assert may_be_looked_at("InternEvo", "any")
    assert not may_be_looked_at("Lambda", "any")
    assert may_be_looked_at("dgxc-benchmarking", "dgxc/8b-n32-bf16")
    assert not may_be_looked_at("dgxc-benchmarking", "dgxc/8b-n16-bf16")


def test_groups_have_bars_and_intervals_where_they_are_large_enough() -> None:
    rows = [
        published.Compared(
            source="s", id=f"s/{n}", regimes=("dense", "FSDP"), network="dense, eager", regime="fsdp", device="d", fits=n > 0,
            architecture="a", devices=8, error=0.01 * n, left_out_inside=n != 9, left_out_width=1.5, memory_error=0.02,
        )
        for n in range(10)
    ]  # fmt: skip
    table = {(f.source, f.measure): f for f in published.figures(published.PublishedErrors(jobs=rows, series=[]))}
    assert table["FSDP", "step time, median error"].bar == 0.08
    assert table["FSDP", "jobs inside"].value == pytest.approx(0.9)
    assert ("fp8", "jobs inside") not in table
    assert table["all jobs", "ran, but called impossible"].value == pytest.approx(0.1)
    assert table["all jobs", "ran, but called impossible"].met is False
    assert table["trainer: unknown", "step time, median error"].rows == 10
