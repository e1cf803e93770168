"""`fsdp_mpt`: pre-training throughput of MPT under FSDP on 8 to 128 A100.

A profile is fitted on the other model sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell_bench.graphs import configured
from foretell_bench.sources.question import Ask, Measure, Question, gpt

SOURCE: Final = "fsdp_mpt"
MEASURES: Final = (Measure(name="throughput of other model sizes, mean error", of="rate", statistic="mean", bar=0.08),)
# Width, layers, heads, as the parameter counts of the source confirm.
_SHAPES: Final = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip
# FSDP gathers in bf16 and updates fp32 shards. The benchmark's own script asks for `--attn_impl triton`, which is the first
# FlashAttention (scripts/train/benchmarking/submit_benchmarks.py of the source).
_SETTINGS: Final = {"precision": "bf16", "optimizer": "adamw-master", "attention": "flash1"}
_DEVICES: Final = {"a100_80gb": "a100-80g-sxm", "a100_40gb": "a100-40g-sxm"}


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if row["model"] not in _SHAPES or row["device"] not in _DEVICES:
        raise LeftOut(f"of {row['model']} on {row['device']}, whose shape or device is not known")
    if row["sharding"] != "FULL_SHARD" or row["offload"]:
        raise LeftOut("with a sharding that is not full, or offloading")
    width, layers, heads = _SHAPES[row["model"]]
    config = gpt(
        vocab_size=50368, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        max_position_embeddings=2048, enable_bias=False,
    )  # fmt: skip
    nodes = f"{-(-row['gpus'] // 8)}x{min(row['gpus'], 8)}"
    plan = Plan(
        dp=row["gpus"], zero=3, grad_accumulation=row["grad_accumulation"],
        checkpointing="full" if row["checkpointing"] else "none",
    )  # fmt: skip
    return Question(
        ask=Ask(
            model=configured(config, _SETTINGS, row["micro_batch"], length=row["sequence"]), plan=plan,
            cluster=Cluster.parse(f"{nodes}x{_DEVICES[row['device']]}@roce-200g"),
        ),
        domain=SOURCE, part=row["model"], seconds=row["global_batch_tokens"] / row["tokens_per_second"],
    )  # fmt: skip
