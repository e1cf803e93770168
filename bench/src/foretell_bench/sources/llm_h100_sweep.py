"""`llm_h100_sweep`: pre-training of two Llamas by nanotron on nodes of eight H100, or that it crashed.

A profile is fitted on the other model size. Memory is what the first rank allocated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell_bench.graphs import configured
from foretell_bench.sources.question import Ask, Measure, Question

SOURCE: Final = "llm_h100_sweep"
_READABLE: Final = 0.10  # MFU; many rows below it are the shared cluster's trouble
_FEW: Final = f"{_READABLE:.0%} MFU and more"
MEASURES: Final = (
    Measure(name=f"tokens/s, other size, {_FEW}, median error", of="rate", statistic="median", bar=0.12, readable=True),
    Measure(name=f"tokens/s, other size, {_FEW}, mean error", of="rate", statistic="mean", bar=0.18, readable=True),
    Measure(name="tokens/s, other size, all rows, median error", of="rate", statistic="median", bar=0.25),
    Measure(name="tokens/s, rank correlation", of="rate", statistic="rank", bar=0.95),
    Measure(name="memory, mean error", of="allocated", statistic="mean", bar=0.08),
    Measure(name="crashed or not, called right", of="crash", statistic="right", bar=0.95),
)
_LLAMA: Final = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 131072,
                 "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096}  # fmt: skip
LLAMAS: Final[dict[str, dict[str, Any]]] = {
    "1B": _LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True},
    "8B": _LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
}  # fmt: skip
# nanotron adds gradients up in fp32, beside parameters in bf16 and fp32 copies that its optimizer updates.
SETTINGS: Final = {
    "seq": "4096", "precision": "parameters:bf16/gradients:fp32/master:fp32", "optimizer": "adamw-fused",
    "attention": "flash2",  # of the flash-attn package, which nanotron calls
}  # fmt: skip


def questions(data: Path) -> Selection[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if row["model"] not in LLAMAS:
        raise LeftOut(f"of a model {row['model']!r} whose shape is not known")
    crashed = row["status"] == "crashed"
    plan = plan_of(row)
    if not crashed and not row["tokens_per_second"]:
        raise LeftOut("without a throughput")
    tokens = plan.dp * row["micro_batch"] * row["grad_accumulation"] * row["sequence"]
    settings = SETTINGS | {"seq": str(row["sequence"])}
    return Question(
        ask=Ask(
            model=configured(LLAMAS[row["model"]], settings, row["micro_batch"]), plan=plan,
            cluster=Cluster.parse(f"{row['nodes']}x8xh100-sxm@efa-400g"),
        ),
        domain=SOURCE, part=row["model"], crashed=crashed, readable=(row["mfu"] or 0.0) >= _READABLE,
        seconds=None if crashed else tokens / row["tokens_per_second"],
        allocated=None if crashed or not row["memory_bytes"] else round(row["memory_bytes"]),
    )  # fmt: skip


def plan_of(row: Row) -> Plan:
    stages = nanotron_stages(LLAMAS[row["model"]], row["pp"]) if row["pp"] > 1 else None
    if stages is not None and 0 in stages[1:-1]:
        stages = None  # the head or the loss alone on a stage in the middle, which a Plan cannot say
    return Plan(
        dp=row["dp"], tp=row["tp"], pp=row["pp"], zero=row["zero"], sequence_parallel=row["tp"] > 1,
        grad_accumulation=row["grad_accumulation"], stages=stages,
        sharding="nanotron" if row["zero"] else "torch",
    )  # fmt: skip


def nanotron_stages(config: dict[str, Any], pipeline: int) -> tuple[int, ...]:
    """Layers of each stage: a stage takes blocks until it has more than its share of the parameters, the last one included.

    That is what nanotron's `build_model` does (`models/base.py`); its authors' page has five layers for the first of eight
    stages of an 8 B Llama.
    """
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    layer = 4 * width**2 + 3 * width * config["intermediate_size"]
    costs = [*[layer] * layers, config["vocab_size"] * width]  # embedding, norm, cast and loss count for nothing
    stages = [0] * pipeline
    at, so_far = 0, 0
    for block, cost in enumerate(costs):
        stages[at] += block < layers
        so_far += cost
        if at < pipeline - 1 and so_far > sum(costs) * (at + 1) / pipeline:
            at += 1
    return tuple(stages)
