"""`vtrain_single_node`: GPT steps of Megatron-DeepSpeed on a node of A100, every layer checkpointed.

A profile is fitted on the other model shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell_bench.graphs import configured
from foretell_bench.sources.question import Ask, Measure, Question, gpt

SOURCE: Final = "vtrain_single_node"
MEASURES: Final = (
    Measure(name="iteration time of other model shapes, mean error", of="seconds", statistic="mean", bar=0.08),
)
_VOCABULARY: Final = 51200  # GPT-2's, padded as Megatron does for every split up to 8


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    dp, tp, pp = row["dp"], row["tp"], row["pp"]
    if row["layers"] % pp:
        raise LeftOut("whose layers do not divide into its stages")
    config = gpt(
        vocab_size=_VOCABULARY, hidden_size=row["hidden"], num_hidden_layers=row["layers"],
        num_attention_heads=row["heads"], max_position_embeddings=row["sequence"],
    )  # fmt: skip
    plan = Plan(
        dp=dp, tp=tp, pp=pp, checkpointing="full", stages=[row["layers"] // pp] * pp if pp > 1 else None,
        grad_accumulation=max(row["global_batch"] // (row["micro_batch"] * dp), 1),
    )  # fmt: skip
    settings = {"seq": str(row["sequence"]), "precision": "fp16", "optimizer": "adamw-master"}
    return Question(
        ask=Ask(
            model=configured(config, settings, row["micro_batch"]), plan=plan,
            cluster=Cluster.parse(f"1x{row['gpus']}xa100-40g-sxm"),
        ),
        domain=SOURCE, part=f"{row['hidden']} × {row['layers']}", seconds=row["step_seconds"],
    )  # fmt: skip
