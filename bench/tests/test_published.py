"""`foretell bench published`: jobs from documents, through `foretell.forecast` alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.sources.published_steps import jobs
from foretell_bench.tables import published

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
    assert len(found) == 3
    first, second, third = found
    assert first.error is not None
    assert first.memory_error is not None
    assert "blocks" in second.why
    assert second.error is None
    assert "sdunet" in third.why
    table = published.figures(found)
    assert table[0].rows == 1
    assert "1 of sdunet, which no source builds" in table[0].note
    assert "PlanError" in table[0].note
    assert {figure.source for figure in table} >= {"all jobs", "class: zero1", "source: a", "device: a100-80g-sxm"}


def test_trainers_with_fused_kernels_keep_fp32_copies(tmp_path: Path) -> None:
    data = written(tmp_path, row(), row(labels=[]), row(step={"batch": 2, "precision": "fp16", "optimizer": "adamw"}))
    settings = [dict(job.ask.model.settings) for job in jobs(data).items]
    assert [each.get("optimizer") for each in settings] == ["adamw-master", None, "adamw"]


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    kept = [published.Compared(source="s", regime="r", device="d", devices=1, fused=False, error=-0.5)]
    published.save(kept, tmp_path / "found.json")
    assert published.read(tmp_path / "found.json") == kept
    (tmp_path / "found.json").write_text("[1]")
    with pytest.raises(InputError, match="holds no published jobs"):
        published.read(tmp_path / "found.json")
