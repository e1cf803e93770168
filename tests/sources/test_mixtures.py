"""Mixtures of experts by name and by Megatron's arguments have the parameters that their makers publish."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretell.sources.resolve import load_workload
from foretell.workload import Workload

PUBLISHED = {  # billions
    "mixtral-8x7b": 46.7, "mixtral-8x22b": 140.6, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235.1, "deepseek-v2-lite": 15.7,
    "deepseek-v2": 235.7, "deepseek-v3": 671.0, "gpt-oss-20b": 20.9, "gpt-oss-120b": 116.8, "grok-1": 314.0,
}  # fmt: skip
_QWEN = "--swiglu --qk-layernorm --disable-bias-linear --untie-embeddings-and-output-weights --group-query-attention "
MEGATRON = {
    30.5: _QWEN + "--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --num-query-groups 4 --kv-channels 128 "
    "--num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --ffn-hidden-size 6144 --vocab-size 151936",
    671.0: "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --multi-latent-attention "
    "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --swiglu "
    "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-layer-freq '([0]*3+[1]*58)' --vocab-size 129280 --untie-embeddings-and-output-weights",
}  # fmt: skip


def billions(workload: Workload) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in workload.model().parameters()) / 1e9


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_mixtures_have_the_published_parameters(name: str) -> None:
    assert billions(load_workload(f"hf/{name}")) == pytest.approx(PUBLISHED[name], rel=0.006)


@pytest.mark.parametrize("total", MEGATRON)
def test_mixtures_of_megatrons_arguments_have_them_too(total: float, tmp_path: Path) -> None:
    file = tmp_path / "arguments.txt"
    shared = "--seq-length 128 --micro-batch-size 1 --position-embedding-type rope"
    file.write_text(f"{shared} {MEGATRON[total]}")
    assert billions(load_workload(str(file))) == pytest.approx(total, rel=0.006)
