"""`megatron_memory`: peak allocated memory of Megatron-LM's own test runs, from their configuration.

Megatron fuses and splits what a PyTorch model would not, so no captured graph stands for its step. Memory follows from
shapes and from what `trainers/megatron.toml` says of that trainer; nothing is fitted to rows. The rank that reports
memory is the last one, so the last pipeline stage is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.errors import InputError
from foretell.units import Bytes
from foretell_bench.sources.rows import Row, Say, read_rows
from foretell_bench.sources.trainers import Rules, trainer
from foretell_bench.tables.figures import Figure, relative_errors

SOURCE = "megatron_memory"
_NUMBERS = (
    "nodes", "gpus_per_node", "mem_max_allocated_bytes", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "num_query_groups", "kv_channels", "seq_length", "max_position_embeddings", "micro_batch_size",
    "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "num_experts", "moe_router_topk", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "vocab_size", "encoder_num_layers", "decoder_num_layers", "encoder_seq_length",
    "decoder_seq_length",
)  # fmt: skip
_SWITCHES = (
    "group_query_attention", "sequence_parallel", "use_distributed_optimizer", "use_megatron_fsdp", "swiglu",
    "untie_embeddings_and_output_weights", "disable_bias_linear", "deterministic_mode", "moe_grouped_gemm",
)  # fmt: skip
_WORDS = ("world_source", "model_family", "platform", "position_embedding_type", "transformer_impl",
          "attention_backend", "optimizer")  # fmt: skip
_ARCHITECTURES = ("gpt", "moe", "bert", "t5")
_AMPERE = "a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A run's configuration, with Megatron's defaults for what its row leaves out."""

    family: str
    ampere: bool
    ranks: int
    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int
    chunks: int  # of layers that a stage holds
    micro_batch: int
    micro_steps: int
    layers: int
    decoder_layers: int
    width: int
    mlp: int
    heads: int
    groups: int
    head_width: int
    tokens: int
    decoder_tokens: int
    positions: int
    vocabulary: int
    experts: int
    experts_a_token: int
    expert_mlp: int
    shared_mlp: int
    gated: bool
    biased: bool
    rotary: bool
    untied: bool
    sequence_parallel: bool
    split_optimizer: bool
    split_all: bool
    muon: bool
    engine: bool
    unfused: bool
    deterministic: bool
    grouped: bool

    @property
    def replicas(self) -> int:
        return self.ranks // (self.tp * self.pp * self.cp)


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    say(f"counting {SOURCE}")
    rows = read_rows(data, SOURCE, (*_NUMBERS, *_SWITCHES, *_WORDS))
    told = [row for row in rows if row["world_source"] == "recipe_at_HEAD"]
    predicted, measured, refused = [], [], Counter[str]()
    for row in told:
        seen = _number(row, "mem_max_allocated_bytes")
        try:
            if not seen:
                raise InputError("no peak reported")
            predicted.append(float(peak_allocated(recipe(row))))
            measured.append(seen)
        except InputError as error:
            refused[str(error)] += 1
    note = f"{len(told)} of {len(rows)} rows are recipe_at_HEAD; shapes and stated rules, no graph"
    note += "".join(f"; {count} not counted: {why}" for why, count in refused.items())
    errors = relative_errors(predicted, measured)
    if not len(errors):
        return [Figure(source=SOURCE, measure="peak allocated, median error", value=None, bar=0.05, note=note)]
    return [
        Figure(source=SOURCE, measure="peak allocated, median error", value=float(np.median(errors)), bar=0.05,
               rows=len(errors), note=note),
        Figure(source=SOURCE, measure="peak allocated, mean error", value=float(errors.mean()), rows=len(errors)),
    ]  # fmt: skip


def recipe(row: Row) -> Recipe:
    """What a row configures; refused where its columns do not say what was run."""
    family = row["model_family"]
    if family not in _ARCHITECTURES:
        raise InputError(f"columns do not describe a {family} model")
    width, heads = _count(row, "hidden_size"), _count(row, "num_attention_heads")
    tp, pp, cp = (
        _count(row, f"{kind}_parallel_size", 1) for kind in ("tensor_model", "pipeline_model", "context")
    )  # fmt: skip
    ranks = _count(row, "nodes") * _count(row, "gpus_per_node")
    if ranks % (tp * pp * cp):
        raise InputError("ranks do not divide into the named parallelism")
    layers = _count(row, "num_layers", _count(row, "encoder_num_layers", 0))
    gated, experts = _on(row, "swiglu"), _count(row, "num_experts", 0)
    mlp = _count(row, "ffn_hidden_size", 64 * (8 * width // 192) if gated else 4 * width)
    micro_batch = _count(row, "micro_batch_size")
    rules = trainer("megatron")
    usual = int(rules["vocabulary"].get(family, rules["vocabulary"]["default"]))
    engine = row["transformer_impl"] != "local"
    return Recipe(
        family=family, ampere=row["platform"] == _AMPERE, ranks=ranks, tp=tp, pp=pp, cp=cp,
        ep=_count(row, "expert_model_parallel_size", 1), expert_tp=_count(row, "expert_tensor_parallel_size", tp),
        chunks=_chunks(row, layers // pp), micro_batch=micro_batch,
        micro_steps=max(_count(row, "global_batch_size") // (micro_batch * (ranks // (tp * pp * cp))), 1),
        layers=layers, decoder_layers=_count(row, "decoder_num_layers", 0), width=width, mlp=mlp, heads=heads,
        groups=_count(row, "num_query_groups", heads) if _on(row, "group_query_attention") else heads,
        head_width=_count(row, "kv_channels", width // heads),
        tokens=_count(row, "seq_length", _count(row, "encoder_seq_length", 0)),
        decoder_tokens=_count(row, "decoder_seq_length", 0), positions=_count(row, "max_position_embeddings"),
        vocabulary=_count(row, "vocab_size", usual), experts=experts,
        experts_a_token=_count(row, "moe_router_topk", 2), expert_mlp=_count(row, "moe_ffn_hidden_size", mlp),
        shared_mlp=_count(row, "moe_shared_expert_intermediate_size", 0), gated=gated,
        biased=not _on(row, "disable_bias_linear"), rotary=row["position_embedding_type"] == "rope",
        untied=_on(row, "untie_embeddings_and_output_weights"), sequence_parallel=_on(row, "sequence_parallel"),
        split_optimizer=_on(row, "use_distributed_optimizer"), split_all=_on(row, "use_megatron_fsdp"),
        muon=row["optimizer"] == "muon", engine=engine,
        unfused=row["attention_backend"] in ("unfused", "local") or not engine,
        deterministic=_on(row, "deterministic_mode"), grouped=_on(row, "moe_grouped_gemm"),
    )  # fmt: skip


def _chunks(row: Row, of_stage: int) -> int:
    if stages := _count(row, "num_virtual_stages_per_pipeline_rank", 0):
        return stages
    each = _count(row, "num_layers_per_virtual_pipeline_stage", 0)
    return max(of_stage // each, 1) if each else 1


def peak_allocated(recipe: Recipe) -> Bytes:
    """States, workspaces, and activations while the loss is formed."""
    rules = trainer("megatron")
    return round(_states(recipe, rules) + _workspaces(recipe, rules["workspace"]) + _activations(recipe, rules))


def _states(r: Recipe, rules: Rules) -> float:
    held = rules["parameter"]
    split = held["split_muon"] if r.muon else held["split"]
    shared, experts = _parameters(r)
    expert_replicas = max(r.ranks // (r.pp * r.ep * r.expert_tp), 1)
    total = 0.0
    for parameters, replicas in ((shared, r.replicas * r.cp), (experts, expert_replicas)):
        whole = held["weight"] + held["gradient"]
        if r.split_all:
            total += parameters * (whole + split) / replicas
        else:
            total += parameters * (whole + split / (replicas if r.split_optimizer else 1))
    return total


def _parameters(r: Recipe) -> tuple[float, float]:
    """On the last stage: of all but experts, and of experts."""
    attention = r.width * (r.heads + 2 * r.groups) * r.head_width / r.tp + r.heads * r.head_width * r.width / r.tp
    attention += r.biased * ((r.heads + 2 * r.groups) * r.head_width / r.tp + r.width) + 2 * r.width

    def mlp(inner: int, tp: int) -> float:
        sides = 1 + r.gated
        return r.width * inner * (sides + 1) / tp + r.biased * (inner * sides / tp + r.width)

    own = r.layers / r.pp
    words = _padded(r) * r.width / r.tp
    if r.experts:
        dense = attention + 2 * r.width + r.width * r.experts + (mlp(r.shared_mlp, r.tp) if r.shared_mlp else 0)
        experts = own * r.experts / r.ep * mlp(r.expert_mlp, r.expert_tp)
    else:
        dense, experts = attention + 2 * r.width + mlp(r.mlp, r.tp), 0.0
    total = own * dense + 2 * r.width + words * (2 if r.untied and r.pp == 1 else 1)
    if r.pp == 1 and not r.rotary:
        total += r.positions * r.width
    if r.decoder_layers:  # attends to itself, to the encoder, and has its own norm and bias of words
        total += r.decoder_layers * (dense + attention) + 2 * r.width + _padded(r) / r.tp
    if r.family == "bert":
        total += 2 * r.width * r.width + _padded(r) / r.tp  # head of words, pooler
    return total, experts


def _padded(r: Recipe) -> int:
    multiple = int(trainer("megatron")["parameter"]["padding"]) * r.tp
    return -(-r.vocabulary // multiple) * multiple


def _workspaces(r: Recipe, rules: Mapping[str, float]) -> float:
    engine = rules["engine_ampere" if r.ampere else "engine_hopper"]
    streams = rules["streams"] if r.grouped else 0
    return float(rules["deterministic" if r.deterministic else "default"] + r.engine * engine * (1 + streams))


def _activations(r: Recipe, rules: Rules) -> float:
    each, logits = rules["activation"], rules["logits"]["value"]
    tokens = r.micro_batch * r.tokens / r.cp
    beside = r.tp if r.sequence_parallel else 1
    head = each["final"] * tokens * r.width / beside
    first = each["embedding"] * tokens * r.width / beside if r.pp == 1 else 0.0
    own = r.layers / r.pp
    # Interleaved, the last stage has run so many chunks when its first micro-batch turns round.
    in_flight = min((r.chunks - 1) * r.pp + 1, r.chunks * r.micro_steps) / r.chunks
    layers = in_flight * own * _layer(r, rules, r.tokens, r.tokens)
    kept = 0 if r.engine else rules["attention"]["buffer"] * r.micro_batch * r.heads / r.tp * r.tokens**2 / r.cp
    words = tokens
    if r.decoder_layers:
        cross = _attention(r, rules, r.decoder_tokens, r.tokens)
        layers += r.decoder_layers * (_layer(r, rules, r.decoder_tokens, r.decoder_tokens) + cross)
        words = r.micro_batch * r.decoder_tokens
    return layers + head + first + kept + logits * words * _padded(r) / r.tp


def _layer(r: Recipe, rules: Rules, queries: int, keys: int) -> float:
    tokens, each = r.micro_batch * queries / r.cp, rules["activation"]
    beside = each["mlp"] * tokens * r.width / (r.tp if r.sequence_parallel else 1)
    sides = 2 + r.gated  # of the activation function
    if not r.experts:
        return _attention(r, rules, queries, keys) + beside + each["split"] * tokens * r.mlp * sides / r.tp
    routed = tokens * r.experts_a_token  # copied for every expert, its result, and that weighed
    inside = each["split"] * (routed * (3 * r.width + r.expert_mlp * sides) + tokens * r.shared_mlp * sides) / r.tp
    return _attention(r, rules, queries, keys) + beside + inside


def _attention(r: Recipe, rules: Rules, queries: int, keys: int) -> float:
    tokens, of_keys, each = r.micro_batch * queries / r.cp, r.micro_batch * keys / r.cp, rules["activation"]
    beside = each["attention"] * tokens * r.width / (r.tp if r.sequence_parallel else 1)
    # Queries and context for every query, keys and values for every key.
    values = each["split"] * r.head_width * (2 * r.heads * tokens + 2 * r.groups * of_keys) / r.tp
    if r.unfused:
        return beside + values + rules["attention"]["unfused"] * r.heads / r.tp * tokens * keys
    return beside + values + rules["attention"]["statistics"] * r.heads / r.tp * tokens


def _number(row: Row, column: str) -> float | None:
    return float(row[column]) if row[column] else None


def _count(row: Row, column: str, usual: int | None = None) -> int:
    value = _number(row, column)
    if value is None and usual is None:
        raise InputError(f"no {column}")
    return int(value) if value is not None else usual or 0


def _on(row: Row, column: str) -> bool:
    return row[column].lower() in ("true", "1", "1.0")
