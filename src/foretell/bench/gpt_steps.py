"""`vtrain_single_node`: iteration times of GPT steps on a node of A100, every layer checkpointed.

Factors are fitted on some model shapes and tested on the others, each shape once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from foretell.bench.cases import Answer, Models, Refusal, ask, errors_across, sample
from foretell.bench.figures import Figure
from foretell.bench.rows import Row, Say, read_rows
from foretell.hardware import Cluster
from foretell.units import Seconds
from foretell.workload import Plan

SOURCE = "vtrain_single_node"
_COLUMNS = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
            "tensor parallelism", "data parallelism", "pipeline parallelism", "iteration time (ms)")  # fmt: skip
_VOCABULARY = 51200  # GPT-2's, padded as Megatron does for every split up to 8
_MEASURE = "iteration time of other model shapes, mean error"


@dataclass(frozen=True, slots=True)
class _Case:
    shape: str
    answer: Answer
    seconds: Seconds


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    rows = read_rows(data, SOURCE, _COLUMNS)
    models, cases, refused = Models(say), [], Counter[str]()
    chosen = sample(rows, most, by=("hidden size", "# layers"))
    for row in chosen:
        answer = _ask(models, row)
        say(f"{SOURCE}: {row['hidden size']} × {row['# layers']} on {row['# GPUs']}")
        if isinstance(answer, Answer):
            cases.append(_Case(_shape(row), answer, float(row["iteration time (ms)"]) / 1e3))
        else:
            refused[answer.why[:80]] += 1
    note = f"{len(chosen)} of {len(rows)} rows asked"
    note += "".join(f"; {count} not run: {why}" for why, count in refused.items())
    errors = errors_across([(c.shape, c.answer, c.seconds) for c in cases])
    if not len(errors):
        return [
            Figure(source=SOURCE, measure=_MEASURE, value=None, bar=0.08, note=f"too few rows to calibrate; {note}")
        ]
    return [Figure(source=SOURCE, measure=_MEASURE, value=float(errors.mean()), bar=0.08, rows=len(errors), note=note)]


def _shape(row: Row) -> str:
    return f"{row['hidden size']} x {row['# layers']}"


def _ask(models: Models, row: Row) -> Answer | Refusal:
    hidden = int(row["hidden size"])
    config = {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": _VOCABULARY, "hidden_size": hidden,
        "word_embed_proj_dim": hidden, "ffn_dim": 4 * hidden, "num_hidden_layers": int(row["# layers"]),
        "num_attention_heads": int(row["attention heads"]), "max_position_embeddings": int(row["sequence length"]),
        "activation_function": "gelu", "dropout": 0.0,
    }  # fmt: skip
    settings = {"seq": row["sequence length"], "precision": "fp16", "checkpointing": "true"}
    dp, tp, pp = (int(row[f"{kind} parallelism"]) for kind in ("data", "tensor", "pipeline"))
    micro_steps = int(row["global batch"]) // (int(row["micro batch"]) * dp)
    plan = Plan(dp=dp, tp=tp, pp=pp, grad_accumulation=max(micro_steps, 1))
    cluster = Cluster.parse(f"{row['# GPUs']}xa100-40g-sxm")
    return ask(models.graph(config, settings, int(row["micro batch"])), cluster, plan)
