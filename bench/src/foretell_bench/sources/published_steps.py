"""`published_steps`: jobs that their authors described in documents: seconds per optimizer step, sometimes peak memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from foretell.errors import InputError, PlanError
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.store.importers import LeftOut, Row, Selection, public_lines, take
from foretell.units import GIB, Bytes, Seconds
from foretell_bench.graphs import Model, configured, named
from foretell_bench.sources.question import Ask, gpt

SOURCE: Final = "published_steps"
MemoryKind = Literal["allocated", "reserved", "smi"]
_BERT_LARGE: Final = {
    "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 30522,
}  # fmt: skip
_TASKS: Final = {"qa": "BertForQuestionAnswering", "mlm": "BertForMaskedLM"}
_APEX: Final = "apex-O2"  # of a time when attention was products, a softmax and dropout
_ONCE_REFUSED: Final = {"sequence_parallel with cp": ("sequence_parallel", True), "zero=1 with ep": ("zero", 1)}
# Whose recipes gather parameters while the next forward pass runs: overlap_param_sync of NeMo-Framework-Launcher's
# conf/training, overlap_param_gather of Megatron-Bridge's perf_recipes.
_GATHERS_AHEAD: Final = ("nemo", "megatron-bridge")
# What Megatron-Bridge's recipes say, by network and board, at the release of the rows (scripts/performance/configs, February to
# April 2026): Userbuffers, HybridEP, which sends a token once to each node, what is recomputed. All share the optimizer's state.
_BRIDGE: Final = "megatron-bridge"
_RECOMPUTED: Final = {"checkpointing": "layernorm+moe_act"}
_RECIPES: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("llama3-70b", "h100-sxm"): {"overlap_tp": True},
    ("gpt-oss-120b", "h100-sxm"): _RECOMPUTED,
    ("gpt-oss-120b", "b200"): _RECOMPUTED | {"dispatch": "deepep"},
    ("qwen3-30b-a3b", "h100-sxm"): {"dispatch": "deepep"},
}
# Who adds up gradients of bf16 in fp32: Megatron by itself (accumulate_allreduce_grads_in_fp32). Recipes leave them in bf16
# (grad_sync_dtype of NeMo-Framework-Launcher's examples, grad_reduce_in_fp32 of Megatron-Bridge's perf_recipes).
_SUMS_IN_FP32: Final = ("megatron", "megatron-deepspeed")
_TP_OVERLAP: Final = "tp-overlap"
_ENGINE: Final = "DeepSpeed"  # adds up gradients and updates parameters by itself, on fp32 copies
# Who gives every chunk of a pipeline as many layers, or counts the embedding and the loss as a layer each where they do not
# divide (account_for_embedding_in_pipeline_split, DeepSpeed's type:transformer|embedding).
_DEALS_EVENLY: Final = ("megatron", "megatron-deepspeed", "nemo", "megatron-bridge", "internevo")
# MaxText's recipe keeps products for queries, keys and values alone (POLICY=save_qkv_proj of dgxc-benchmarking's
# maxtext/configure.sh), where rows take all to be run again. No word says so: the nearest keeps what attention's last product
# makes, too.
_KEEPS_QKV: Final = {"checkpointing": "layernorm+core_attn+mlp"}
# Whose experts share tensors over tp only with sequence parallelism: Megatron refuses a plan without it (TransformerConfig).
_SEQUENCE_WITH_EXPERTS: Final = ("megatron", "nemo", "megatron-bridge")
# Whose AdamW is torch's, on fp32 copies, and whose attention FlashAttention 1 (doc/en/install.md of InternEvo: 1.0.5).
_OF_TORCH: Final = ("internevo",)
# Whose documents these are, the more particular first: what they describe was run by it.
_WORDS: Final = {
    "megatron-deepspeed": "megatron-deepspeed", "deepspeed": "deepspeed", "maxtext": "maxtext", "torchtitan": "torchtitan",
    "megatron-bridge": "megatron-bridge", "nemo": "nemo", "dgxc-benchmarking": "nemo", "megatron": "megatron",
    "internevo": "internevo", "mosaicml": "composer", "llm-foundry": "composer", "nanotron": "nanotron", "litgpt": "litgpt",
    "torchtune": "torchtune", "lightning": "lightning", "axolotl": "axolotl", "llama-factory": "llamafactory",
    "accelerate": "accelerate", "colossal": "colossalai",
}  # fmt: skip
# Which PyTorch ran, by document, then by trainer: as its README says (FlagPerf's networks of vision), or of its time.
_SOFTWARE: Final[Mapping[str, Mapping[str, str]]] = {
    "FlagPerf": {"plain": "torch-1.8", "deepspeed": "2023-11", "megatron": "2024-04"},
    "BigScience": {"megatron-deepspeed": "2022-03"},
    "InternEvo": {"internevo": "2023-07"},
}
_PICTURES: Final = re.compile(r"about (\d+) × (\d+) after resizing")  # sides of what ran, where a row has one
_BOARDS: Final = {"A800": ("a100-80g-sxm", "a800-80g-sxm"), "H800": ("h100-sxm", "h800-sxm")}  # as written → as run


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A row: the question, and what was published."""

    id: str
    source: str
    network: str  # what kind of network it trains
    regime: str
    labels: tuple[str, ...]
    trainer: str | None  # who ran it, as its file, notes and labels say; None: they do not
    ask: Ask
    seconds: Seconds | None
    memory: Bytes | None
    memory_kind: MemoryKind | None

    @property
    def device(self) -> str:
        return self.ask.cluster.nodes[0].device.name

    @property
    def architecture(self) -> str:
        return self.ask.cluster.nodes[0].device.architecture

    @property
    def devices(self) -> int:
        return sum(node.count for node in self.ask.cluster.nodes)


def jobs(data: Path) -> Selection[Job]:
    return take(public_lines(data, SOURCE), _job)


def _job(row: Row) -> Job:
    try:
        plan, cluster = _plan(row), Cluster.parse(_cluster(row))
    except (PlanError, InputError) as error:
        raise LeftOut(f"whose plan or cluster is not possible: {error}") from None
    memory, trainer = row.get("memory_gib"), _who(row)
    return Job(
        id=row["id"], source=row["source"], network=_network(row), regime=row["regime"], labels=tuple(row.get("labels", ())),
        trainer=trainer,
        ask=Ask(
            model=_model(row), plan=plan, cluster=cluster, trainer=trainer, parts=True,
            software=_SOFTWARE.get(row["source"], {}).get(trainer or ""),
        ),
        seconds=row.get("seconds"), memory=None if memory is None else round(memory * GIB),
        memory_kind=cast(MemoryKind | None, row.get("memory_kind")),
    )  # fmt: skip


def _network(row: Row) -> str:
    kind = row["model"]["kind"]
    if kind == "source":
        return "detection" if row["regime"] == "detection" else "convolutional"
    if kind == "bert":
        return "BERT"
    if row["model"].get("moe"):
        return "mixture of experts"
    return "dense, fused kernels" if "fused" in row.get("labels", ()) else "dense, eager"


def _plan(row: Row) -> Plan:
    """As the job ran: what rows were written without, as it was refused once, their notes say. With the engine that they name,
    whose pipelines have buffers of their own."""
    ran: dict[str, Any] = {name: value for what, (name, value) in _ONCE_REFUSED.items() if what in _notes(row)}
    if _who(row) == _BRIDGE:
        board = re.sub(r"^(\d+x)+|@.*$", "", row["cluster"])
        ran |= {"zero": row["plan"].get("zero", 1), **_RECIPES.get((row.get("name", ""), board), {})}
    if _who(row) == "maxtext":
        ran |= _KEEPS_QKV
    if _who(row) in _SEQUENCE_WITH_EXPERTS and min(row["plan"].get("tp", 1), row["plan"].get("ep", 1)) > 1:
        ran["sequence_parallel"] = True
    plan = Plan(**row["plan"] | ran)
    plan = replace(
        plan, overlap_tp=plan.overlap_tp or (plan.tp > 1 and _TP_OVERLAP in row.get("labels", ())),
        overlap_gather=plan.zero == 1 and _who(row) in _GATHERS_AHEAD,
        stages=_stages(row["model"].get("layers", 0), plan) if _who(row) in _DEALS_EVENLY else plan.stages,
    )  # fmt: skip
    if (
        _who(row) == "internevo" and plan.zero < 3 and "fsdp" not in row["id"]
    ):  # the names of its plans say which have FSDP
        return replace(plan, zero=1, sharding="internevo")
    sums_apart = plan.pp == 1 or _who(row) in _SUMS_IN_FP32
    return replace(plan, sharding="deepspeed") if _ENGINE in _notes(row) and plan.zero and sums_apart else plan


def _stages(layers: int, plan: Plan) -> list[int] | None:
    """Layers of each chunk; None where trainers need more said."""
    chunks = plan.pp * plan.virtual_stages
    if plan.pp == 1 or plan.stages is not None:
        return None
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    each, rest = divmod(layers + 2, chunks)
    return None if rest or each < 2 else [each - 1, *[each] * (chunks - 2), each - 1]


def _who(row: Row) -> str | None:
    """The trainer that its document names; kernels of Megatron are run by it, and a loop of their own by small models."""
    document = " ".join(str(row.get(part) or "") for part in ("source", "file", "notes")).lower()
    if (named := next((trainer for word, trainer in _WORDS.items() if word in document), None)) is not None:
        return named
    if row["model"]["kind"] in ("source", "bert"):
        return "plain"
    return "megatron" if "fused" in row.get("labels", ()) else None


def _cluster(row: Row) -> str:
    """Boards whose links are cut down are written as their siblings; notes say where it was one of them."""
    text = str(row["cluster"])
    for name, (written, run) in _BOARDS.items():
        text = text.replace(written, run) if name in _notes(row) else text
    return text


def _notes(row: Row) -> str:
    return row.get("notes") or ""


def _model(row: Row) -> Model:
    model, step = row["model"], row["step"]
    if model["kind"] == "source":
        settings = {name: str(value) for name, value in model["set"].items() if name != "batch"}
        if pictures := _PICTURES.search(_notes(row)):
            settings |= {"image_size": pictures[1], "image_width": pictures[2]}
        return named(model["source"], settings, model["set"]["batch"], sizes=(2, 4))
    settings = _trainer(row)
    if "seq" in step:
        settings["seq"] = str(step["seq"])
    config = _config(model, step.get("seq", 2048))
    if model.get("attn") == "math" or _APEX in row.get("labels", ()):
        config["attn_implementation"] = "eager"
    return configured(config, settings, step["batch"])


def _trainer(row: Row) -> dict[str, str]:
    """What the trainer keeps, and with which kernels it computes: all fused, or those of its model alone."""
    step, precision, optimizer = row["step"], row["step"]["precision"], row["step"].get("optimizer")
    fused, engine = "fused" in row.get("labels", ()), _ENGINE in _notes(row)
    settings = {"precision": precision}
    if step.get("clip"):
        settings["clip_grad_norm"] = str(step["clip"])
    of_torch = fused and _who(row) in _OF_TORCH
    if of_torch:
        settings["attention"] = "flash1"
    if optimizer == "master" or of_torch:  # PyTorch's own, on fp32 copies
        settings |= {"precision": f"parameters:{precision}/master:fp32", "optimizer": "adamw-foreach"}
    elif optimizer is not None:
        settings["optimizer"] = optimizer
    elif fused and precision == "bf16" and _who(row) in _SUMS_IN_FP32:
        settings |= {"precision": "parameters:bf16/gradients:fp32/master:fp32", "optimizer": "adamw-fused"}
    elif fused or engine:
        settings["optimizer"] = "adamw-master"
    if fused:
        settings["kernels"] = "fused-model" if engine or of_torch or optimizer == "master" else "megatron"
    return _in_fp8(settings, _who(row)) if "fp8" in row.get("labels", ()) else settings


def _in_fp8(settings: dict[str, str], trainer: str | None) -> dict[str, str]:
    """Of rows whose precision is what the rest of the step computes in. They do not say which recipe: it is Transformer
    Engine's usual one, with weights kept in 8 bits as NeMo's recipes have them (`fp8_params`). Megatron-Bridge's are `fp8_cs` on
    Hopper."""
    kept = Precision.parse(settings["precision"])
    recipe: Literal["current", "delayed"] = "current" if trainer == _BRIDGE else "delayed"
    return settings | {"precision": replace(kept, name="", fp8=recipe, weights="fp8").name}


def _config(model: Mapping[str, Any], length: int) -> dict[str, Any]:
    kind = model["kind"]
    if kind == "bert":
        return _BERT_LARGE | {"architectures": [_TASKS[model["task"]]], "max_position_embeddings": max(512, length)}
    if kind not in ("llama", "gpt"):
        raise LeftOut(f"of {kind}, which no source builds")
    shared = {
        "hidden_size": model["d"], "num_hidden_layers": model["layers"], "num_attention_heads": model["heads"],
        "vocab_size": model["vocab"], "max_position_embeddings": length,
    }  # fmt: skip
    if kind == "gpt":
        dropout = {"dropout": model.get("dropout", 0.0), "attention_dropout": model.get("dropout", 0.0)}
        return gpt(**shared, **dropout, ffn_dim=model["ffn"])
    width = model.get("hd", model["d"] // model["heads"])
    shared |= {"num_key_value_heads": model["kv"], "tie_word_embeddings": bool(model.get("tied")), "head_dim": width}
    return _decoder(model, shared)


def _decoder(model: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """One with rotary positions: of experts, with norms of queries and keys, or with an MLP that has no gate."""
    normed = bool(model.get("qk_norm"))
    if moe := model.get("moe"):
        experts = {"num_experts_per_tok": moe["top"], **shared}
        if normed:
            return {
                "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": moe["experts"],
                "moe_intermediate_size": moe["ffn"], "norm_topk_prob": True, **experts,
            }  # fmt: skip
        return {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": moe["experts"],
            "intermediate_size": moe["ffn"], **experts,
        }  # fmt: skip
    if model.get("act") == "relu2":
        return {
            "model_type": "nemotron", "architectures": ["NemotronForCausalLM"], "intermediate_size": model["ffn"], **shared,
        }  # fmt: skip
    name, of = ("qwen3", "Qwen3ForCausalLM") if normed else ("llama", "LlamaForCausalLM")
    return {
        "model_type": name, "architectures": [of], "intermediate_size": model["ffn"],
        "attention_bias": bool(model.get("bias")), **shared,
    }  # fmt: skip
