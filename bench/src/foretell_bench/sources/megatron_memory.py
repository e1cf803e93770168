"""`megatron_memory`: peak allocated memory of Megatron-LM's own test runs, from their configuration.

The rank that reports is the last one. Megatron fuses kernels and keeps fp32 sums of gradients, which the forecast of a
PyTorch model with the same shapes does not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from foretell.errors import PlanError
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Taken, public_rows, take
from foretell_bench.graphs import configured
from foretell_bench.sources.question import Ask, Measure, Question, gpt, nodes_of

SOURCE: Final = "megatron_memory"
MEASURES: Final = (
    Measure(name="peak allocated, median error", of="allocated", statistic="median", bar=0.05),
    Measure(name="peak allocated, mean error", of="allocated", statistic="mean"),
)
_DEVICES: Final = {"a100": "a100-80g-sxm", "h100": "h100-sxm", "gb200": "gb200"}
_VOCABULARY: Final = {"bert": 28996}  # of cased word pieces; else GPT-2's, as the recipes leave it out
_GPT2: Final = 50257
_PADDED: Final = 128  # the vocabulary is padded to a multiple of this × tensor parallelism
_NOT_SAID: Final = {
    "multi_latent_attention": "with multi-head latent attention", "mtp_layers": "with multi-token prediction",
    "fp8_format": "in fp8", "fp4_format": "in fp4", "torch_fsdp2": "with torch's FSDP",
    "offloaded_layers": "with offloading", "optimizer_offload": "with offloading",
}  # fmt: skip


def questions(data: Path) -> Taken[Question]:
    return take(public_rows(data, SOURCE), _question)


def _question(row: Row) -> Question:
    if row["world_source"] != "recipe_at_HEAD":
        raise LeftOut("whose number of devices is not known")
    if not row["peak_allocated_bytes"]:
        raise LeftOut("without a peak")
    for column, why in _NOT_SAID.items():
        if row[column]:
            raise LeftOut(why)
    if (row["optimizer"] or "adam") != "adam":
        raise LeftOut(f"with {row['optimizer']}")
    config, plan = _config(row), plan_of(row)
    half = "fp16" if row["fp16"] else "bf16"
    settings = {"seq": str(row["sequence"]), "precision": half, "optimizer": "adamw-master"}
    return Question(
        ask=Ask(
            model=configured(config, settings, row["micro_batch"]), plan=plan,
            cluster=nodes_of(_DEVICES[row["device"]], [row["gpus_per_node"]] * row["nodes"]),
        ),
        domain=SOURCE, part=row["test_case"], allocated=row["peak_allocated_bytes"], reports=-1,
    )  # fmt: skip


def plan_of(row: Row) -> Plan:
    tp, pp, cp, ep = (row[name] or 1 for name in ("tp", "pp", "cp", "ep"))
    ranks = row["nodes"] * row["gpus_per_node"]
    if ranks % (tp * pp * cp):
        raise LeftOut("whose devices do not divide into its plan")
    if (ep > 1 and row["expert_tp"] not in (None, 1)) or (row["experts"] and tp > 1 and row["expert_tp"] != 1):
        raise LeftOut("with experts split by tensor parallelism")
    dp, chunks = ranks // (tp * pp * cp), _chunks(row, pp)
    if row["layers"] % (pp * chunks):
        raise LeftOut("whose layers do not divide into its stages")
    sharded = 3 if row["megatron_fsdp"] else 1 if row["distributed_optimizer"] else 0
    try:
        return Plan(
            dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=sharded, virtual_stages=chunks,
            schedule="interleaved" if chunks > 1 else "1f1b",
            sequence_parallel=bool(row["sequence_parallel"]) and tp > 1,
            checkpointing="selective" if row["recompute_granularity"] == "selective" else "none",
            stages=[row["layers"] // (pp * chunks)] * (pp * chunks) if pp > 1 else None,
            grad_accumulation=max(row["global_batch"] // (row["micro_batch"] * dp), 1),
        )  # fmt: skip
    except PlanError as error:
        raise LeftOut(f"whose plan is not possible: {error}") from None


def _chunks(row: Row, pp: int) -> int:
    if row["virtual_stages"]:
        return int(row["virtual_stages"])
    each = row["layers_per_virtual_stage"]
    return max(row["layers"] // pp // each, 1) if each and pp > 1 else 1


def _config(row: Row) -> dict[str, Any]:
    family, multiple = row["model_family"], _PADDED * (row["tp"] or 1)
    vocabulary = row["vocabulary"] or _VOCABULARY.get(family, _GPT2)
    width, heads = row["hidden"], row["heads"]
    shared = {
        "vocab_size": -(-vocabulary // multiple) * multiple, "hidden_size": width, "num_hidden_layers": row["layers"],
        "num_attention_heads": heads, "max_position_embeddings": row["max_position_embeddings"] or row["sequence"],
        "tie_word_embeddings": not row["untied_embeddings"],
    }  # fmt: skip
    mlp = row["ffn_hidden"] or (64 * (8 * width // 192) if row["swiglu"] else 4 * width)
    groups = row["query_groups"] if row["group_query_attention"] else heads
    head = {"num_key_value_heads": groups, "head_dim": row["kv_channels"] or width // heads}
    if family == "bert":
        return {"model_type": "bert", "architectures": ["BertForMaskedLM"], "intermediate_size": mlp, **shared}
    if family == "moe" and row["experts"]:
        if not row["swiglu"]:
            raise LeftOut("of experts without a gate")
        return {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": row["experts"],
            "num_experts_per_tok": row["moe_top_k"] or 2, "intermediate_size": row["moe_ffn_hidden"] or mlp, **shared, **head,
        }  # fmt: skip
    if family not in ("gpt", "moe"):
        raise LeftOut(f"of {family}, whose configuration the columns do not say")
    if row["swiglu"] or row["position_embedding"] == "rope":
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "intermediate_size": mlp,
            **shared,
            **head,
        }
    if groups != heads:
        raise LeftOut("of grouped queries with learned positions")
    return gpt(**shared, ffn_dim=mlp, dropout=0.1, attention_dropout=0.1)
